"""An answer on its way out, looked at before it leaves: some of it held back, redacted, or cut."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from responses_ws.protocol.sampling import (
    Annotation,
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    OutputItem,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)

from .base import Finding, Passage
from .passages import REDACTED, merged

Said = TextDelta | ReasoningDelta | RefusalDelta | CallArguments
Check = Callable[[Passage, str], Awaitable[Sequence[Finding]]]
"""Looks at a passage and what came before it."""

_SOURCES: dict[type, str] = {
    TextDelta: "assistant",
    RefusalDelta: "assistant",
    ReasoningDelta: "reasoning",
    CallArguments: "tool",
}


class OutputFilter:
    """Lets an answer pass one classifier.

    Deltas leave whole, with their tokens and log probabilities, once everything but the last ``holds_back``
    characters has been looked at. What is redacted leaves as a mark, when all of it is there. After a cut nothing
    leaves but the count of tokens: the model has made them. In the arguments of a call, which somebody would run, a
    redaction is a cut.
    """

    def __init__(self, check: Check, *, before: str, carries: int, holds_back: int, step: int) -> None:
        self._check = check
        self._carries = carries
        self._holds_back = holds_back
        self._step = step
        self._pending: dict[Any, _Pending] = {}
        """By kind of text, or index of the call."""
        self.before = before
        """What has left, as the model said it: its last ``carries`` characters."""
        self.has_changed = False
        """What has left is not what the model said."""
        self.has_cut = False
        self.has_looked = False
        """There was something to look at."""

    async def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        """What may leave now."""
        leaving: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, TextDelta | ReasoningDelta | RefusalDelta | CallStart | Annotation | OutputItem):
                await self._end_texts(leaving, but=type(delta))
            if self.has_cut:
                leaving += [_silent(delta)] if isinstance(delta, Said) else []
            elif isinstance(delta, Said):
                key = delta.index if isinstance(delta, CallArguments) else type(delta)
                pending = self._pending.setdefault(key, _Pending(_SOURCES[type(delta)]))
                pending.deltas.append(delta)
                pending.text += delta.text
            elif isinstance(delta, CallEnd):
                await self._end(delta.index, leaving)
                leaving += [] if self.has_cut else [delta]
            elif isinstance(delta, Finished):
                leaving += await self.end()
                if self.has_cut:
                    # Its own usage says more than our count.
                    leaving[-1] = Finished("content_filter", delta.usage)
                else:
                    leaving.append(delta)
            else:
                leaving.append(delta)
        for key, pending in list(self._pending.items()):
            if not self.has_cut and len(pending.text) - pending.seen >= self._step:
                await self._look(key, leaving, is_end=False)
        return leaving

    async def end(self) -> list[Delta]:
        """Everything that is still held: no more will come."""
        leaving: list[Delta] = []
        for key in list(self._pending):
            await self._end(key, leaving)
        return leaving

    def held(self) -> list[Delta]:
        """What has not left."""
        return [delta for pending in self._pending.values() for delta in pending.deltas]

    async def _end_texts(self, leaving: list[Delta], but: type) -> None:
        for key in [key for key in self._pending if isinstance(key, type) and key is not but]:
            await self._end(key, leaving)

    async def _end(self, key: Any, leaving: list[Delta]) -> None:
        if key in self._pending and not self.has_cut:
            await self._look(key, leaving, is_end=True)
            self._pending.pop(key, None)

    async def _look(self, key: Any, leaving: list[Delta], *, is_end: bool) -> None:
        pending = self._pending[key]
        text = pending.text
        self.has_looked |= bool(text)
        findings = await self._check(Passage(text, pending.source), self.before) if text else ()
        is_call = pending.source == "tool"
        spans: list[tuple[int, int]] = []
        cut: int | None = None
        for finding in findings:
            starts = [span.start for span in finding.spans]
            if finding.action == "refuse" or (finding.action == "redact" and is_call):
                cut = min([*starts, len(text) if cut is None else cut]) if starts else 0
            elif finding.action == "redact":
                spans += [(span.start, span.end) for span in finding.spans]
        spans = merged(spans)
        if cut is not None:
            self._release(pending, self._boundary(pending, spans, cut), spans, leaving)
            self._cut(leaving)
            return
        limit = len(text) if is_end else max(0, len(text) - self._holds_back)
        self._release(pending, self._boundary(pending, spans, limit), spans, leaving)
        pending.seen = len(pending.text)
        if any(not finding.spans for finding in findings):
            # Found in all of it: what follows is not to be judged by this.
            self.before = ""

    @staticmethod
    def _boundary(pending: "_Pending", spans: list[tuple[int, int]], limit: int) -> int:
        """The last end of a delta up to ``limit`` that is within no span."""
        ends = [0]
        for delta in pending.deltas:
            ends.append(ends[-1] + len(delta.text))
        return next(end for end in reversed(ends) if end <= limit and not any(a < end < b for a, b in spans))

    def _release(self, pending: "_Pending", boundary: int, spans: list[tuple[int, int]], leaving: list[Delta]) -> None:
        """Let the deltas below ``boundary`` go."""
        start = 0
        while pending.deltas and start + len(pending.deltas[0].text) <= boundary:
            delta = pending.deltas.popleft()
            end = start + len(delta.text)
            told = _told(delta, start, spans)
            self.has_changed |= told is not delta
            leaving.append(told)
            start = end
        if self._carries:
            self.before = (self.before + pending.text[:start])[-self._carries :]
        pending.text = pending.text[start:]

    def _cut(self, leaving: list[Delta]) -> None:
        self.has_cut = self.has_changed = True
        for pending in self._pending.values():
            leaving += map(_silent, pending.deltas)
        self._pending.clear()
        leaving.append(Finished("content_filter"))


class _Pending:
    """Deltas of one text that have not left."""

    __slots__ = ("source", "deltas", "text", "seen")

    def __init__(self, source: str) -> None:
        self.source = source
        self.deltas: deque[Said] = deque()
        self.text = ""
        self.seen = 0
        """Characters that have been looked at."""


def _told(delta: Said, start: int, spans: Sequence[tuple[int, int]]) -> Said:
    """The delta, whose text begins at ``start``, without what is within spans; a mark where a span begins."""
    end = start + len(delta.text)
    touching = [(a, b) for a, b in spans if a < end and b > start]
    if not touching:
        return delta
    pieces: list[str] = []
    at = start
    for a, b in touching:
        if a >= start:
            pieces += [delta.text[at - start : a - start], REDACTED]
        at = min(b, end)
    pieces.append(delta.text[at - start :])
    return _with_text(delta, "".join(pieces))


def _silent(delta: Said) -> Said:
    """Only its tokens: they were made."""
    return _with_text(delta, "")


def _with_text(delta: Said, text: str) -> Said:
    if isinstance(delta, TextDelta):
        return msgspec.structs.replace(delta, text=text, logprobs=())
    return msgspec.structs.replace(delta, text=text)
