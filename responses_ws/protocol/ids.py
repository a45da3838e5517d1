"""Shapes of the ids we hand out."""

import re
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


_WELL_FORMED = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


def is_well_formed(given: str) -> bool:
    """Whether this could be an id of ours. If not, no store need be asked: it may not even be storable text."""
    return _WELL_FORMED.match(given) is not None
