"""How much of a model's reasoning a client is told."""

import re
from typing import Literal

from responses_ws.protocol.request import Request

Form = Literal["reasoning_text", "summary_text", "untold"]
"""The raw text as it comes; the same as a summary; or nothing while it is made."""

CONCISE_CHARACTERS = 300


def form_of(request: Request, *, shows_raw: bool) -> Form:
    """The form that a client has asked for, as far as the server shows it.

    There is no second model that summarises: a summary *is* the reasoning, the whole for ``auto`` and ``detailed``,
    its beginning for ``concise``. Where raw reasoning is not shown, every summary is a concise one.
    """
    if request.reasoning_summary is None:
        return "reasoning_text" if shows_raw else "untold"
    return "untold" if request.reasoning_summary == "concise" or not shows_raw else "summary_text"


_SENTENCE_END = re.compile(r"[.!?…](?=\s)|\n")


def concise(text: str) -> str:
    """The beginning of a text: as many whole sentences as fit in 300 characters; one longer than that, cut."""
    text = text.strip()
    if len(text) <= CONCISE_CHARACTERS:
        return text
    beginning = text[:CONCISE_CHARACTERS]
    ends = [match.end() for match in _SENTENCE_END.finditer(beginning)]
    if ends:
        return beginning[: ends[-1]].rstrip()
    return f"{beginning[:-1].rpartition(' ')[0] or beginning[:-1]}…"
