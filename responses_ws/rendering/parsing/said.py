"""The deltas of one answer, collected until its reader is told."""

from typing import Any

from responses_ws.protocol.sampling import CallArguments, CallEnd, CallStart, Delta, ReasoningDelta, TextDelta


class Said:
    """What has become sayable since the last `take`. Neighbours of one kind become one delta."""

    __slots__ = ("deltas", "ids", "logprobs", "calls")

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.ids = 0
        """Read, and not yet accounted for by a delta."""
        self.logprobs: list[dict[str, Any]] = []
        """Of ids whose text is not said yet."""
        self.calls = 0

    def text(self, text: str) -> None:
        logprobs = tuple(self.logprobs)
        self.logprobs.clear()
        last = self.deltas[-1] if self.deltas else None
        if type(last) is TextDelta:
            said = TextDelta(last.text + text, last.tokens + self.ids, last.logprobs + logprobs)
            self.deltas[-1] = said
        else:
            self.deltas.append(TextDelta(text, self.ids, logprobs))
        self.ids = 0

    def reasoning(self, text: str) -> None:
        self.logprobs.clear()
        last = self.deltas[-1] if self.deltas else None
        if type(last) is ReasoningDelta:
            self.deltas[-1] = ReasoningDelta(last.text + text, last.tokens + self.ids)
        else:
            self.deltas.append(ReasoningDelta(text, self.ids))
        self.ids = 0

    def start(self, name: str, call_id: str | None = None) -> None:
        self.logprobs.clear()
        self.deltas.append(CallStart(self.calls, name, call_id))
        self.calls += 1

    def arguments(self, text: str) -> None:
        """Of the newest call."""
        self.logprobs.clear()
        last = self.deltas[-1] if self.deltas else None
        if type(last) is CallArguments:
            self.deltas[-1] = CallArguments(last.index, last.text + text, last.tokens + self.ids)
        elif text:
            self.deltas.append(CallArguments(self.calls - 1, text, self.ids))
        else:
            return
        self.ids = 0

    def end(self) -> None:
        """The newest call is whole."""
        self.logprobs.clear()
        self.deltas.append(CallEnd(self.calls - 1))

    def take(self) -> list[Delta]:
        deltas, self.deltas = self.deltas, []
        return deltas
