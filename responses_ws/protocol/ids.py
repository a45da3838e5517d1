"""Shapes of the ids we hand out."""

from collections.abc import Callable

NewId = Callable[[str], str]
"""Gives a fresh id for a prefix: ``new_id("msg") == "msg_" + 48 hexadecimal digits``.

The pure rooms take it as an argument, so that tests can count instead. At run time the digits come from
``secrets``: an id is unguessable and carries no time.
Source: OpenAI's prefixes (resp, msg, fc, ctc, rs, call); clients do not parse them.
"""


def make_id(prefix: str, entropy: bytes) -> str:
    """``prefix_`` and the hexadecimal digits of ``entropy`` (24 bytes at run time)."""
    return f"{prefix}_{entropy.hex()}"
