"""Where a rendered prompt can be continued: found with small conversations of the same shape, remembered by shape."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import msgspec

from . import facts as made
from .chat_template import TemplateFault
from .conversation import Message

T = TypeVar("T")
Kind = Literal["u", "s", "t", "a", "c"]
"""A message's kind: user, system, tool, assistant, assistant with calls."""
_KINDS: Mapping[str, Kind] = {"user": "u", "system": "s", "tool": "t"}
_ALIKE = re.compile(r"(.{1,3}?)\1{2,}")
"""Of a run of messages of one kind, or of calls and their results, the template is shown two: the third is rendered as
the second."""
_MOST_REMEMBERED = 512


class Outline(msgspec.Struct):
    """What decides how a message bears on its neighbours. Decoded from the message; the rest is skipped."""

    role: str
    tool_calls: list[msgspec.Raw] | None = None

    @property
    def kind(self) -> Kind:
        return _KINDS.get(self.role) or ("c" if self.tool_calls else "a")


outline_of = msgspec.json.Decoder(Outline).decode


class Setting(msgspec.Struct, frozen=True):
    """What a small conversation has to have in common with the real one to be rendered as it is."""

    has_tools: bool
    has_front: bool
    """There are system messages at the beginning, and they are rendered further down."""
    effort: str | None


class Anchor(msgspec.Struct, frozen=True):
    """The last message that a log keeps."""

    kind: Kind
    is_sampled: bool
    """It is an answer, its text as sampled; otherwise it was rendered, and its end with it."""


class Seam(msgspec.Struct, frozen=True):
    """What stands between an anchor's text and what follows it."""

    skipped: str
    """Is in the log already: the scaffold around the anchor's end."""
    closing: str = ""
    """The control token behind it, which a sampled answer may hold or not."""


class Seams:
    """Of one template."""

    def __init__(self, render: Callable[..., str], mark: str, stops: re.Pattern[str]) -> None:
        self._render = render
        self._mark = mark
        self._stops = stops
        self._known: dict[Any, Seam | None] = {}
        self._openings: dict[Any, str | None] = {}

    def find(self, anchor: Anchor, old: Sequence[Kind], new: Sequence[Kind], setting: Setting) -> Seam | None:
        """How to go on behind ``anchor``, where ``old`` messages once came after it and now ``new`` ones do.

        None: the template writes the anchor, or what is before it, otherwise now. ``old`` is the beginning of ``new``.
        """
        shape = (anchor, _short(old), _short(new), setting)
        return _remembered(self._known, shape, lambda: self._seam(*shape))

    def opening(self, last: Kind, setting: Setting) -> str | None:
        """What the template writes behind a last message of this kind for the model to go on; None: not always that."""

        def made_of_it() -> str | None:
            context = [*before(Anchor(last, is_sampled=False)), *stand_ins([last], "x")]
            closed = self._render(context, setting, opens_answer=False)
            opened = self._render(context, setting, opens_answer=True)
            return opened[len(closed) :] if opened.startswith(closed) else None

        return _remembered(self._openings, (last, setting), made_of_it)

    def _seam(self, anchor: Anchor, old: Sequence[Kind], new: Sequence[Kind], setting: Setting) -> Seam | None:
        context = [*before(anchor), *stand_ins([anchor.kind], self._mark)]

        def text_of(messages: list[Message], *, opens_answer: bool = False) -> str:
            return self._render(messages, setting, opens_answer=opens_answer)

        head, found, tail = text_of([*context, *stand_ins(new, "x")], opens_answer=True).partition(self._mark)
        if not found or self._mark in tail:
            return None
        alone_head, found, own = text_of(context).partition(self._mark)
        if not found:
            return None
        if old:
            old_head = text_of([*context, *stand_ins(old, "x")]).partition(self._mark)[0]
            is_same = head == old_head
        elif anchor.kind in "ac":
            # Not compared as a last message: of that some templates show what they do not show later.
            is_same = head.startswith(text_of(context[:-1]))
        else:
            is_same = head == alone_head
        if not is_same:
            return None
        if not anchor.is_sampled:
            return Seam(own) if tail.startswith(own) else None
        stop = self._stops.search(own)
        if stop is None:
            # Nothing ends an answer but that something else begins. Where a call ends cannot be told then.
            return Seam("") if anchor.kind == "a" else None
        seam = Seam(own[: stop.start()], stop[0])
        return seam if tail.startswith(seam.skipped + seam.closing) else None


def _remembered(known: dict[Any, T | None], key: Any, make: Callable[[], T | None]) -> T | None:
    """Of messages that a template refuses: None. Safe in threads: what is forgotten meanwhile is made again."""
    found = known.get(key, known)
    if found is not known:
        return cast("T | None", found)
    try:
        value = make()
    except TemplateFault:
        value = None
    if len(known) >= _MOST_REMEMBERED:
        known.clear()
    known[key] = value
    return value


def before(anchor: Anchor) -> list[Message]:
    """The conversation that a message of the anchor's kind may follow."""
    if anchor.kind in "ac":
        return [made.user("x")]
    if anchor.kind == "t":
        return [made.user("x"), *stand_ins(["c"], "x")]
    return [made.user("x"), made.answer("x")]


def stand_ins(kinds: Sequence[Kind], text: str) -> list[Message]:
    """Messages of these kinds, in the common form, that all say ``text``. In a call it is an argument."""
    messages: list[Message] = []
    for kind in kinds:
        if kind == "t":
            messages.append(made.result(text=text))
        elif kind == "c":
            arguments = msgspec.json.encode({"x": text}).decode()
            messages.append(made.answer("", tool_calls=[made.call(arguments=arguments)]))
        else:
            role = {"u": "user", "s": "system", "a": "assistant"}[kind]
            messages.append({"role": role, "content": text})
    return messages


def _short(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    if len(kinds) < 3:
        return tuple(kinds)
    return cast("tuple[Kind, ...]", tuple(_ALIKE.sub(r"\1\1", "".join(kinds))))
