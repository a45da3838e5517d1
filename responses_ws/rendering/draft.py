"""The two ways to render by a template: what is new, or all of it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from responses_ws.protocol.errors import InvalidRequest

from .base import Ask, Draft
from .chat import ChatPrompt
from .chat_template import TemplateFault
from .conversation import Message, call_id_of
from .facts import CALL_ID
from .forms import Form
from .seams import Anchor, Kind, Seam, Setting, before, outline_of, stand_ins
from .tokenizer import Hidden
from .tokens import TokenLog

if TYPE_CHECKING:
    from .template import TemplateRenderer

_decode = msgspec.json.decode
_Piece = tuple[Sequence[int], int, bool]
"""Ids, how many messages the log then holds, and whether reasoning is among them."""


class _TemplateDraft(Draft):
    def __init__(self, renderer: "TemplateRenderer", prompt: ChatPrompt, ask: Ask, base: TokenLog) -> None:
        self._renderer = renderer
        self._prompt = prompt
        self._ask = ask
        self._base = base
        """What is kept of the log so far."""
        self.kept_tokens = len(base)
        self._pieces: list[_Piece] = []
        self._opening: Sequence[int] = ()

    def log(self) -> TokenLog:
        log = self._base
        for ids, messages, has_reasoning in self._pieces:
            if len(ids) or messages > log.messages:
                log = log.extended(ids, "rendered", messages=messages, has_reasoning=has_reasoning)
        return log.extended(self._opening, "opening", messages=len(self._prompt.log))

    def _texts(
        self, messages: list[Message], text: str, render: Callable[[list[Message]], str]
    ) -> list[tuple[str, int, bool]]:
        """``text`` of these messages, the last ones, in two where the next user message may change what is written.

        Each with the number of messages up to its end, and whether there is reasoning in it. ``render`` gives the text
        of others in their place, as the end of a longer one.
        """
        renderer, held = self._renderer, self._base.messages
        has_reasoning = _has_reasoning(renderer, messages)
        whole = [(text, held + len(messages), has_reasoning)]
        last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
        if renderer.facts.has_late_head:
            last -= 1
        elif not (renderer.forgets_at_user and has_reasoning):
            return whole
        if last < 0 or last == len(messages) - 1 or messages[last].get("tool_calls"):
            return whole
        kinds = [outline_of(message).kind for message in self._prompt.log.since(held + last)]
        anchor = Anchor(kinds[0], is_sampled=False)
        seam = renderer.seams.find(anchor, kinds[1:], kinds[1:], renderer.setting(self._prompt, self._ask))
        if seam is None:
            return whole
        marked = {**messages[last], "content": renderer.mark}
        tail = render([*messages[:last], marked, *messages[last + 1 :]]).rpartition(renderer.mark)[2]
        if not text.endswith(tail) or not tail.startswith(seam.skipped):
            return whole
        position = len(text) - len(tail) + len(seam.skipped)
        if not renderer.tokenizer.is_seam(text[:position], text[position:]):
            return whole
        return [(text[:position], held + last + 1, False), (text[position:], held + len(messages), has_reasoning)]

    def _encode(self, texts: list[tuple[str, int, bool]], opening: str | None, hidden: Hidden, behind: str) -> None:
        """Texts with the numbers of messages after them, and what the last one ends with for the model to go on."""
        tokenizer = self._renderer.tokenizer
        last, messages, has_reasoning = texts[-1]
        closed = last.removesuffix(opening) if opening is not None and last.endswith(opening) else None
        is_apart = closed is not None and opening is not None and tokenizer.is_seam(closed, opening)
        if is_apart and closed is not None:
            texts[-1] = (closed, messages, has_reasoning)
        for text, messages, has_reasoning in texts:
            ids = tokenizer.encode(text, hidden, behind=behind)
            self._pieces.append((ids, messages, has_reasoning))
            if len(ids):
                behind = tokenizer.name_of(ids[-1]) or ""
        if is_apart and opening is not None:
            self._opening = self._renderer.ids_of_opening(opening, behind)
        else:
            # Where the answer begins cannot be told: all of it goes, should nothing be said.
            self._opening = self._pieces.pop()[0]


class FullDraft(_TemplateDraft):
    """Everything, from zero."""

    path = "full"

    def __init__(self, renderer: "TemplateRenderer", prompt: ChatPrompt, ask: Ask, base: TokenLog) -> None:
        super().__init__(renderer, prompt, ask, base)
        self._messages = list(prompt.log)
        self.size = prompt.byte_length + len(prompt.instructions) + len(ask.tools or b"")

    def make(self) -> None:
        hidden = self._renderer.hidden()
        messages: list[Message] = _decode(b"[%s]" % b",".join(self._messages))
        front: list[Message] = _decode(b"[%s]" % self._prompt.instructions)
        texts = self._texts(
            messages,
            self._text([*front, *messages], hidden),
            lambda others: self._text([*front, *others], hidden),
        )
        opening = self._opening_of([*front, *messages])
        self._encode(texts, opening, hidden, "")

    def _text(self, messages: list[Message], hidden: Hidden) -> str:
        try:
            return self._renderer.render(messages, self._ask, hidden, size=self.size)
        except TemplateFault as exc:
            told = f": {exc.said}" if exc.said else "."
            raise InvalidRequest(f"This model's chat template refuses the conversation{told}", param="input") from exc

    def _opening_of(self, messages: list[Message]) -> str | None:
        if not messages:
            return None
        last = outline_of(msgspec.json.encode(messages[-1])).kind
        return self._renderer.seams.opening(last, self._renderer.setting(self._prompt, self._ask))


class NextDraft(_TemplateDraft):
    """What comes after the first ``kept`` spans of ``log``, at ``seam``."""

    def __init__(
        self, renderer: "TemplateRenderer", prompt: ChatPrompt, ask: Ask, log: TokenLog, *, kept: int, seam: Seam
    ) -> None:
        dropped = len(log.spans) - kept
        super().__init__(renderer, prompt, ask, log.until(kept) if dropped else log)
        is_all_kept = all(span.kind == "opening" for span in log.spans.since(kept))
        self.path = "append" if is_all_kept else "rewind"
        self._seam = seam
        self._new = prompt.log.since(self._base.messages)
        self._last = prompt.log[self._base.messages - 1] if self._base.messages else b"{}"
        self.size = sum(map(len, self._new)) + (len(prompt.instructions) if renderer.facts.has_late_head else 0)

    def make(self) -> None:
        if not self._make_by_form():
            self._make_by_template()

    def _make_by_form(self) -> bool:
        """Of new messages that are only texts to the template, without it."""
        renderer, seam, hidden = self._renderer, self._seam, self._renderer.hidden()
        found = renderer.forms.texts(self._new)
        if found is None or CALL_ID in seam.skipped or any(hidden.cover(text) is not text for text in found[1]):
            return False
        kinds, texts = found
        setting = renderer.setting(self._prompt, self._ask)
        anchor = "sampled" if self._base.spans.last.kind == "sampled" else outline_of(self._last).kind
        form = renderer.forms.find((seam, anchor, *kinds, setting), lambda: self._form(setting))
        tail = None if form is None else self._behind_seam(form.written(texts), seam.skipped)
        if tail is None:
            return False
        self._encode_new([(tail, self._base.messages + len(texts), False)], kinds[-1], hidden)
        return True

    def _form(self, setting: Setting) -> Form | None:
        renderer = self._renderer
        new: list[Message] = _decode(b"[%s]" % b",".join(self._new))

        def tail(messages: list[Message]) -> str:
            return self._rendered(messages, renderer.hidden()).partition(renderer.mark)[2]

        return renderer.forms.learnt(self._context(new), new, setting, tail)

    def _make_by_template(self) -> None:
        new: list[Message] = _decode(b"[%s]" % b",".join(self._new))
        hidden = self._renderer.hidden()
        try:
            text = self._rendered(new, hidden)
        except TemplateFault:
            self._make_full()
            return
        skipped = self._seam.skipped
        if self._base.spans.last.kind == "sampled" and new and new[0]["role"] == "tool":
            # The last of the calls that stand for the answer's has the id of the real one.
            last_id = self._context(new)[-1]["tool_calls"][-1]["id"]
            skipped = skipped.replace(CALL_ID, call_id_of(last_id, self._renderer.facts.manners))
        tail = self._behind_seam(text.partition(self._renderer.mark)[2], skipped)
        if tail is None:
            self._make_full()
            return
        texts = self._texts(new, tail, lambda others: self._rendered(others, hidden))
        self._encode_new(texts, outline_of(self._new[-1] if self._new else self._last).kind, hidden)

    def _rendered(self, new: list[Message], hidden: Hidden) -> str:
        """Text of a small conversation that ends in these messages.

        Raises TemplateFault.
        """
        renderer, has_late_head = self._renderer, self._renderer.facts.has_late_head
        front = renderer.front(self._prompt) if has_late_head else []
        told = [*front, *self._context(new), *new]
        return renderer.render(told, self._ask, hidden, size=self.size, stands_in=not has_late_head)

    def _behind_seam(self, tail: str, skipped: str) -> str | None:
        """What is new in a text behind the mark; None: it does not go on as it was thought to."""
        closing = self._seam.closing
        if not tail.startswith(skipped + closing):
            return None
        if closing and self._base.last_id in self._renderer.stop_ids:
            return tail[len(skipped) + len(closing) :]
        return tail[len(skipped) :]

    def _encode_new(self, texts: list[tuple[str, int, bool]], last: Kind, hidden: Hidden) -> None:
        renderer, last_id = self._renderer, self._base.last_id
        opening = renderer.seams.opening(last, renderer.setting(self._prompt, self._ask))
        behind = None if last_id is None else renderer.tokenizer.name_of(last_id)
        self._encode(texts, opening, hidden, behind or "")

    def _context(self, new: Sequence[Message]) -> list[Message]:
        """A small conversation that ends in what stands for the message before the new ones."""
        outline = outline_of(self._last)
        is_sampled = self._base.spans.last.kind == "sampled"
        calls = _calls_for(new, self._last)
        if not self._renderer.facts.manners.takes_several_calls:
            calls = calls[-1:]
        kind: Kind = ("c" if calls else "a") if is_sampled else outline.kind
        anchor = Anchor(kind, is_sampled)
        (marked,) = stand_ins([kind], self._renderer.mark)
        context = before(anchor)
        if kind == "c":
            asking = stand_ins(["c"], "x")[0]["tool_calls"][0]
            others, last = _renamed(calls[:-1], asking), _renamed(calls[-1:], marked["tool_calls"][0])
            marked["tool_calls"] = [*others, *last] or marked["tool_calls"]
        elif kind == "t":
            asking = context[-1]["tool_calls"]
            asking += _renamed(calls, asking[0])
        return [*context, marked]

    def _make_full(self) -> None:
        """The small conversation has promised what the real one does not keep."""
        full = FullDraft(self._renderer, self._prompt, self._ask, TokenLog(self._base.fingerprint))
        full.make()
        self.path, self.kept_tokens = "full", 0
        self._base, self._pieces, self._opening = full._base, full._pieces, full._opening


def _calls_for(new: Sequence[Message], last: bytes) -> list[tuple[str, str]]:
    """(id, name) of the calls that the first of the new messages answer, if they do."""
    if not new or new[0]["role"] != "tool":
        return []
    made = {call["id"]: call["function"]["name"] for call in _decode(last).get("tool_calls") or ()}
    calls = []
    for message in new:
        if message["role"] != "tool":
            break
        calls.append((message["tool_call_id"], made.get(message["tool_call_id"], "x")))
    return calls


def _renamed(calls: Sequence[tuple[str, str]], like: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**like, "id": call_id, "function": {**like["function"], "name": name}} for call_id, name in calls]


def _has_reasoning(renderer: "TemplateRenderer", messages: Sequence[Message]) -> bool:
    """Whether the template writes any of the reasoning in these messages, the last of a conversation."""
    if renderer.facts.forgets_at_once:
        return False
    for message in reversed(messages):
        if message["role"] == "user" and renderer.facts.forgets_at_user:
            return False
        if message.get("reasoning_content"):
            return True
    return False
