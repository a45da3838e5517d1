"""A prompt in harmony about to be rendered."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from responses_ws.rendering.base import Ask, Draft
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.conversation import Manners, adapted
from responses_ws.rendering.tokens import TokenLog

if TYPE_CHECKING:
    from .renderer import HarmonyRenderer

_decode = msgspec.json.decode
# Arguments are the model's own words.
_MANNERS = Manners(takes_objects=False)


class HarmonyDraft(Draft):
    def __init__(self, renderer: "HarmonyRenderer", prompt: ChatPrompt, ask: Ask) -> None:
        self._renderer = renderer
        self._prompt = prompt
        self._ask = ask
        self._base = TokenLog(renderer.fingerprint(prompt, ask))
        """What is kept of the log as it is."""
        self._again: Sequence[int] = ()
        """Behind that, what is kept of it as history has it."""
        self._has_reasoning = False
        """There is analysis in that."""
        self._held = 0
        """How many messages both hold."""
        self._pieces: list[tuple[Sequence[int], int, bool]] = []
        self.path = "full"
        log = prompt.tokens
        if (
            log is not None
            and log.messages
            and log.fingerprint == self._base.fingerprint
            and log.messages <= len(prompt.log)
        ):
            self._held = log.messages
        self._new: list[dict[str, Any]] = _decode(b"[%s]" % b",".join(prompt.log.since(self._held)))
        self._answered = max((index for index, message in enumerate(self._new) if _is_final(message)), default=-1)
        """The last of the new messages that answers the user; analysis before it is forgotten."""
        if log is not None and self._held:
            self._continue(log)
        self.kept_tokens = len(self._base)
        self.size = sum(map(len, prompt.log.since(self._held)))
        if not self._held:
            self.size += len(prompt.instructions) + len(ask.tools or b"")

    def make(self) -> None:
        renderer = self._renderer
        if not self._held:
            front: list[dict[str, Any]] = _decode(b"[%s]" % self._prompt.instructions)
            told = [message for message in adapted(front, _MANNERS) if message["role"] == "system"]
            others = [message for message in adapted(front, _MANNERS) if message["role"] != "system"]
            ids = renderer.head([message["content"] for message in told], self._ask)
            for message in others:
                ids += renderer.message(message, keeps_analysis=False)
            self._pieces.append((ids, 0, False))
        for index, message in enumerate(adapted(self._new, _MANNERS)):
            if message["role"] == "tool" and "name" not in message:
                message["name"] = self._name_of(message["tool_call_id"])
            keeps_analysis = index > self._answered
            ids = renderer.message(message, keeps_analysis=keeps_analysis)
            has_reasoning = keeps_analysis and bool(message.get("reasoning_content"))
            self._pieces.append((ids, self._held + index + 1, has_reasoning))

    def log(self) -> TokenLog:
        log = self._base
        if len(self._again):
            log = log.extended(self._again, "sampled", messages=self._held, has_reasoning=self._has_reasoning)
        for ids, messages, has_reasoning in self._pieces:
            log = log.extended(ids, "rendered", messages=messages, has_reasoning=has_reasoning)
        return log.extended(self._renderer.controls.opening, "opening", messages=len(self._prompt.log))

    def _continue(self, log: TokenLog) -> None:
        """Keep what can be kept of ``log``."""
        spans, controls = log.spans, self._renderer.controls
        end = _unopened(log, len(spans))
        start = _unopened(log, end - 1) if end and spans[end - 1].kind == "sampled" else end
        answered = self._answered >= 0 or controls.has_final(_ids(log, start, end))
        if answered:
            reasoned = next((index for index in range(end) if spans[index].has_reasoning), end)
            start = min(start, _unopened(log, reasoned))
        old = _ids(log, start, end)
        settled = controls.settled(old, forgets_analysis=answered)
        if settled == list(old):
            self.path = "append"
            self._base = log.until(end)
        else:
            self.path = "rewind"
            self._base = log.until(start)
            self._again = settled
            self._has_reasoning = not answered and any(spans[index].has_reasoning for index in range(start, end))

    def _name_of(self, call_id: str) -> str:
        """The tool of a call in the messages before the new ones."""
        for message in self._earlier():
            for call in message.get("tool_calls") or ():
                if call["id"] == call_id:
                    return str(call["function"]["name"])
        return "unknown"

    def _earlier(self) -> Iterator[dict[str, Any]]:
        for index in range(self._held - 1, -1, -1):
            yield _decode(self._prompt.log[index])


def _is_final(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and bool(message.get("content")) and not message.get("tool_calls")


def _unopened(log: TokenLog, spans: int) -> int:
    """How many of the first ``spans`` spans there are before the openings at their end."""
    while spans and log.spans[spans - 1].kind == "opening":
        spans -= 1
    return spans


def _ids(log: TokenLog, start: int, end: int) -> Sequence[int]:
    """Of the spans from ``start`` up to ``end``."""
    spans = log.spans
    first = spans[start - 1].end if start else 0
    return log.since(first)[: (spans[end - 1].end if end else 0) - first]
