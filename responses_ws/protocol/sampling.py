"""The words that engines speak: the pieces of one sampling step, as text or as tokens."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from .usage import Usage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
ConstraintKind = Literal["json_schema", "structural_tag", "gbnf", "regex"]


class Started(msgspec.Struct, frozen=True, gc=False):
    """The engine has begun and knows its prompt; optional, before any other delta."""

    prompt_tokens: int
    cached_tokens: int = 0


class Progress(msgspec.Struct, frozen=True, gc=False):
    """The engine is reading its prompt: a sign of life, before any output."""

    done: int
    """Tokens read, cached ones included."""
    total: int


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """What a token engine has sampled, in order; the token that ended the answer included, where it told it."""

    ids: Sequence[int]
    logprobs: tuple[dict[str, Any], ...] = ()
    """Where they were asked for, one a token, in the form of `TextDelta.logprobs`."""


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Visible text. ``tokens``: how many tokens it stands for; one a piece where the engine does not say."""

    text: str
    tokens: int = 1
    logprobs: tuple[dict[str, Any], ...] = ()
    """Where they were asked for: ``{token, bytes, logprob, top_logprobs: [{token, bytes, logprob}]}`` a token."""


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """Raw reasoning text of an open model."""

    text: str
    tokens: int = 1


class RefusalDelta(msgspec.Struct, frozen=True, gc=False):
    """Text with which the model declines."""

    text: str
    tokens: int = 1


class CallStart(msgspec.Struct, frozen=True, gc=False):
    """A tool call begins. ``index`` names it until its CallEnd.

    Engines give the name as offered to them. ``namespace``, ``custom`` and ``item`` are filled in on the way to the
    turn by ``rendering.tools``, which knows what the name stood for.
    """

    index: int
    name: str
    call_id: str | None = None
    namespace: str | None = None
    custom: bool = False
    item: dict[str, Any] | None = None
    """How the item of a hosted tool's call begins; ``name`` is then as it was offered. None: the client's call."""


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """A piece of a call's arguments, in the model's own characters."""

    index: int
    text: str
    tokens: int = 1


class CallEnd(msgspec.Struct, frozen=True, gc=False):
    """The call is whole."""

    index: int


class Annotation(msgspec.Struct, frozen=True, gc=False):
    """A note on the text before it in the same message: an object with ``type``, such as ``url_citation``."""

    annotation: dict[str, Any]


class OutputItem(msgspec.Struct, frozen=True, gc=False):
    """A whole item that the engine has made by itself, as of a tool that it has run. Its id is the engine's."""

    item: dict[str, Any]


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The one last piece. ``usage`` is None where the engine reported none."""

    reason: FinishReason
    usage: Usage | None = None
    continuation: Any = None
    """How the engine can tell this answer again, when it is asked to go on from it: opaque to all others."""


Delta = (
    Started
    | Progress
    | TextDelta
    | Annotation
    | ReasoningDelta
    | RefusalDelta
    | CallStart
    | CallArguments
    | CallEnd
    | OutputItem
    | Finished
)
"""What an engine yields that answers in text."""
TokenDelta = Started | Progress | Tokens | Finished
"""What an engine yields that answers in tokens."""


class Constraint(msgspec.Struct, frozen=True):
    """A form that the sampled text is held to, from its first token on."""

    kind: ConstraintKind
    value: dict[str, Any] | str
    """``json_schema``: the schema; ``structural_tag``: xgrammar's object of that name; ``gbnf`` and ``regex``: text."""
