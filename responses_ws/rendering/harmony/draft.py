"""A prompt in harmony about to be rendered."""

from array import array
from collections.abc import Sequence
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
        self._pieces: list[tuple[Sequence[int], int, bool]] = []
        """Ids of new messages, how many messages the log then holds, and whether there is analysis in them."""
        log = prompt.tokens
        is_of_this = log is not None and log.fingerprint == self._base.fingerprint
        self._log = log if log and is_of_this and 0 < log.messages <= len(prompt.log) else None
        self._held = self._log.messages if self._log is not None else 0
        self._new = prompt.log.since(self._held)
        self.path = "full" if self._log is None else "append"
        self.kept_tokens = 0
        self.size = sum(map(len, self._new))
        if self._log is None:
            self.size += len(prompt.instructions) + len(ask.tools or b"")

    def make(self) -> None:
        new = adapted(_decode(b"[%s]" % b",".join(self._new)), _MANNERS)
        answered = max((index for index, message in enumerate(new) if _is_final(message)), default=-1)
        if self._log is not None:
            self._continue(self._log, is_answered=answered >= 0)
        else:
            self._pieces.append((self._head(), 0, False))
        for index, message in enumerate(new):
            if message["role"] == "tool" and "name" not in message:
                message["name"] = self._name_of(message["tool_call_id"])
            # What led to an answer is forgotten with it.
            keeps_analysis = index > answered
            ids = self._renderer.message(message, keeps_analysis=keeps_analysis)
            has_reasoning = keeps_analysis and bool(message.get("reasoning_content"))
            self._pieces.append((ids, self._held + index + 1, has_reasoning))

    def log(self) -> TokenLog:
        log = self._base
        if len(self._again):
            log = log.extended(self._again, "sampled", messages=self._held, has_reasoning=self._has_reasoning)
        for ids, messages, has_reasoning in self._pieces:
            log = log.extended(ids, "rendered", messages=messages, has_reasoning=has_reasoning)
        return log.extended(self._renderer.controls.opening, "opening", messages=len(self._prompt.log))

    def _head(self) -> list[int]:
        front = adapted(_decode(b"[%s]" % self._prompt.instructions), _MANNERS)
        ids = self._renderer.head([one["content"] for one in front if one["role"] == "system"], self._ask)
        for message in front:
            if message["role"] != "system":
                ids += self._renderer.message(message, keeps_analysis=False)
        return ids

    def _continue(self, log: TokenLog, *, is_answered: bool) -> None:
        """Keep what can be kept of ``log``."""
        spans, controls = log.spans, self._renderer.controls
        end = _unopened(log, len(spans))
        start = _unopened(log, end - 1) if end and spans[end - 1].kind == "sampled" else end
        is_answered = is_answered or controls.has_final(_ids(log, start, end))
        if is_answered:
            reasoned = next((index for index in range(end) if spans[index].has_reasoning), end)
            start = min(start, _unopened(log, reasoned))
        old = _ids(log, start, end)
        settled = array("I", controls.settled(old, forgets_analysis=is_answered))
        first = spans[start - 1].end if start else 0
        kept = end
        while kept > start and old[: spans[kept - 1].end - first] != settled[: spans[kept - 1].end - first]:
            kept -= 1
        self.path = "append" if kept == end else "rewind"
        self._base = log.until(kept)
        self.kept_tokens = len(self._base)
        self._again = settled[self.kept_tokens - first :]
        self._has_reasoning = not is_answered and any(spans[index].has_reasoning for index in range(kept, end))

    def _name_of(self, call_id: str) -> str:
        """The tool of a call in the messages before the new ones."""
        for index in range(self._held - 1, -1, -1):
            for call in _decode(self._prompt.log[index]).get("tool_calls") or ():
                if call["id"] == call_id:
                    return str(call["function"]["name"])
        return "unknown"


def _is_final(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and bool(message.get("content")) and not message.get("tool_calls")


def _unopened(log: TokenLog, spans: int) -> int:
    """How many of the first ``spans`` spans there are before the openings at their end."""
    while spans and log.spans[spans - 1].kind == "opening":
        spans -= 1
    return spans


def _ids(log: TokenLog, start: int, end: int) -> "array[int]":
    """Of the spans from ``start`` up to ``end``."""
    spans = log.spans
    first = spans[start - 1].end if start else 0
    return log.since(first)[: (spans[end - 1].end if end else 0) - first]
