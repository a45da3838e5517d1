"""What a template writes around new texts, for those that it only writes: learnt once, then joined without it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from .chat_template import TemplateFault, values_for
from .conversation import Message, adapted
from .facts import TOOL, Facts
from .seams import Kind, Setting
from .unseen import Book, Looked, Slot, WatchedTemplate

_MOST_REMEMBERED = 256
_MOST_NEW = 8
_MOST_CHARACTERS = 1 << 20
_KINDS: Mapping[str, Kind] = {"user": "u", "tool": "t"}
_SAMPLES = (" \n a", "7", '{"b": [null]}', "true\n\n", "None", "[c](d) é世")
"""Texts that a template might not write as they are."""


class _Told(msgspec.Struct, forbid_unknown_fields=True):
    """A new message of which there is nothing else to tell."""

    role: str
    content: str
    tool_call_id: str | None = None


_told_of = msgspec.json.Decoder(_Told).decode


class Form:
    """What stands before, between and behind the texts of new messages."""

    __slots__ = ("_first", "_others")

    def __init__(self, pieces: Sequence[str], slots: Sequence[Slot]) -> None:
        self._first = pieces[0]
        self._others = list(zip(slots, pieces[1:], strict=True))

    def written(self, texts: Sequence[str]) -> str:
        pieces = [self._first]
        for slot, piece in self._others:
            assert slot.number is not None, "only numbered texts have a form"
            pieces += (slot.of(texts[slot.number]), piece)
        return "".join(pieces)


class Forms:
    """Of one template. Thread-safe: what is forgotten or learnt twice does no harm.

    A form is exact: `unseen` texts have stood in for the new ones, and whatever the template may do with a text but
    write or strip it ends the attempt. As a second look, some texts are written both ways.
    """

    def __init__(self, source: str, *, nonce: str, mark: str, facts: Facts, values: Mapping[str, Any]) -> None:
        self._mark, self._values = mark, values
        self._manners = manners = facts.manners
        self._known: dict[Any, Form | None] = {}
        self._is_learning = threading.Lock()
        self._template: WatchedTemplate | None = None
        """None: messages are not told one by one, more is to be written among them, or it is different each time."""
        if not (facts.has_late_head or manners.alternates or manners.answers_results):
            try:
                self._template = WatchedTemplate(source, nonce=nonce)
            except Looked:
                pass

    def texts(self, messages: Sequence[bytes]) -> tuple[list[Kind], list[str]] | None:
        """Kinds and texts of new messages; None: they have no form."""
        if self._template is None or not 0 < len(messages) <= _MOST_NEW:
            return None
        kinds: list[Kind] = []
        texts: list[str] = []
        for message in messages:
            try:
                told = _told_of(message)
            except msgspec.ValidationError:
                return None
            kind, text = _KINDS.get(told.role), told.content
            if kind is None or not text or text.isspace():
                return None
            kinds.append(kind)
            texts.append(text)
        return kinds, texts

    def find(self, key: tuple[Any, ...], learn: Callable[[], Form | None]) -> Form | None:
        """The form of a shape, which ``key`` tells whole; None: it has none."""
        try:
            return self._known[key]
        except KeyError:
            form = learn()
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = form
        return form

    def learnt(
        self,
        context: list[Message],
        new: list[Message],
        setting: Setting,
        tail: Callable[[list[Message]], str],
    ) -> Form | None:
        """The form of messages like the ``new`` ones behind a small conversation, which ends with the mark. ``tail``
        is what others in their place are rendered as, behind the mark."""
        before = len(adapted(context, self._manners))
        messages = adapted([*context, *new], self._manners)
        if len(messages) != before + len(new):
            return None
        try:
            form = self._form(messages, before, setting)
            if form is None:
                return None
            for sample in _SAMPLES:
                if form.written([sample] * len(new)) != tail([{**one, "content": sample} for one in new]):
                    return None
        except (Looked, TemplateFault):
            return None
        return form

    def _form(self, messages: list[Message], before: int, setting: Setting) -> Form | None:
        """Of the messages behind the first ``before``. Raises Looked, TemplateFault."""
        template = self._template
        assert template is not None, "only of a template that is watched"
        with self._is_learning:
            template.book.clear()
            text = template.render(
                [_veiled(message, template.book, at - before) for at, message in enumerate(messages)],
                tools=[TOOL] if setting.has_tools else None,
                opens_answer=True,
                most_characters=_MOST_CHARACTERS,
                values={**values_for(setting.effort), **self._values},
            )
            pieces, slots = template.book.read(text.partition(self._mark)[2])
        return None if any(slot.number is None for slot in slots) else Form(pieces, slots)


def _veiled(message: Message, book: Book, number: int) -> Message:
    """The message with unseen texts for what is the client's; its content is the ``number``-th, below 0: it is ours."""
    veiled = {**message, "content": book.unseen(number)} if number >= 0 else dict(message)
    for field in ("tool_call_id", "name"):
        if field in veiled:
            veiled[field] = book.unseen(None)
    if "tool_calls" in veiled:
        veiled["tool_calls"] = [
            {**call, "id": book.unseen(None), "function": {**call["function"], "name": book.unseen(None)}}
            for call in veiled["tool_calls"]
        ]
    return veiled
