"""Benchmarks: what a turn costs through each door, measured beside each other on one machine."""
