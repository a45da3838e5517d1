"""Ids from the operating system's randomness."""

import secrets

from responses_ws.protocol.ids import make_id


def new_id(prefix: str) -> str:
    """A fresh id: the prefix and 192 random bits, no time in it."""
    return make_id(prefix, secrets.token_bytes(24))
