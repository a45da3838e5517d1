"""Ids from the operating system's randomness."""

import os

from responses_ws.protocol.ids import make_id

_BYTES, _AT_ONCE = 24, 64
_random: list[bytes] = []
"""Read and not used yet. A child process must not use them, too."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.clear)


def new_id(prefix: str) -> str:
    """A fresh id: the prefix and 192 random bits, no time in it."""
    try:
        # One step, whatever other threads do.
        random = _random.pop()
    except IndexError:
        block = os.urandom(_BYTES * (_AT_ONCE + 1))
        *more, random = (block[start : start + _BYTES] for start in range(0, len(block), _BYTES))
        _random.extend(more)
    return make_id(prefix, random)
