"""Tokens to money: prices, the double-entry ledger, and where it is told."""
