"""One answer in harmony → deltas."""

import codecs
from collections.abc import Sequence
from typing import Any, Literal

from responses_ws.protocol.sampling import Delta, FinishReason
from responses_ws.rendering.base import OutputParser
from responses_ws.rendering.parsing.said import Said

from .controls import ANALYSIS, ASSISTANT, Controls

FUNCTIONS = "functions."
"""The namespace of the client's tools."""

_BETWEEN_MESSAGES = "\n\n"
"""What keeps two messages apart that become one: a preamble and the answer, for instance."""


class HarmonyParser(OutputParser):
    """Analysis is reasoning, a message to a tool is a call of it, all else is text.

    It reads control tokens itself. `openai_harmony.StreamableParser` takes ``<|start|>`` within a message for text,
    refuses an answer that goes on without one, and says nothing of what stands in a header by mistake.

    Args:
        tail: the opening of the model's turn, and what was said in its stead.
    """

    def __init__(self, controls: Controls, *, tail: Sequence[int]) -> None:
        self._controls = controls
        self._said = Said()
        self._within: Literal["header", "text", "reasoning", "call"] = "header"
        self._header: list[int] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._last: Literal["", "text", "reasoning", "call"] = ""
        """What was said last."""
        self._needs_gap = False
        self._read(tail, ())
        self._said.ids = 0

    def feed(self, ids: Sequence[int], logprobs: Sequence[dict[str, Any]] = ()) -> list[Delta]:
        self._read(ids, logprobs)
        self.calls = self._said.calls
        return self._said.take()

    def finish(self, reason: FinishReason) -> list[Delta]:
        is_cut_off = reason in ("length", "content_filter")
        if self._within == "call" and is_cut_off:
            self._say(self._decoder.decode(b"", final=True))
        elif self._within != "header" or not is_cut_off:
            self._end()
        self.calls = self._said.calls
        return self._said.take()

    def _read(self, ids: Sequence[int], logprobs: Sequence[dict[str, Any]]) -> None:
        controls, said = self._controls, self._said
        for position, token_id in enumerate(ids):
            said.ids += 1
            if logprobs:
                said.logprobs.append(logprobs[position])
            if token_id in controls.ends:
                self._end()
            elif token_id == controls.start:
                # A model may forget to end a message.
                self._end()
            elif self._within == "header":
                if token_id == controls.message:
                    self._begin()
                else:
                    self._header.append(token_id)
            else:
                self.reasoning_tokens += self._within == "reasoning"
                self._say(self._decoder.decode(controls.bytes_of(token_id)))

    def _begin(self) -> None:
        """A message's content begins."""
        header = self._controls.header_of(self._header)
        self._header = []
        if header.stray:
            self._tell_stray(header.stray)
        if header.recipient is not None:
            self._within = self._last = "call"
            self._said.start(header.recipient.removeprefix(FUNCTIONS))
        else:
            self._within = "reasoning" if header.channel == ANALYSIS else "text"
            self._needs_gap = self._last == self._within
        self._said.logprobs.clear()

    def _end(self) -> None:
        """A message ends, if there is one."""
        if self._within == "header":
            stray = self._controls.text_of(self._header).removeprefix(ASSISTANT)
            self._header = []
            if stray.strip():
                self._tell_stray(stray)
            return
        self._say(self._decoder.decode(b"", final=True))
        if self._within == "call":
            self._said.end()
        self._within = "header"
        self._said.logprobs.clear()

    def _tell_stray(self, text: str) -> None:
        """Something that is no message; perhaps it should have become a call."""
        self.malformed_calls += 1
        self._within, self._needs_gap = "text", self._last == "text"
        self._say(text)
        self._within = "header"

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._within == "call":
            self._said.arguments(text)
            return
        if self._needs_gap:
            text, self._needs_gap = _BETWEEN_MESSAGES + text, False
        if self._within == "reasoning":
            self._said.reasoning(text)
            self._last = "reasoning"
        else:
            self._said.text(text)
            self._last = "text"
