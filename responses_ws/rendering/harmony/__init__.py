"""Harmony, the form in which gpt-oss models read and write: through the package openai-harmony."""
