"""The events of llama.cpp's ``/completion`` in, tokens out. No IO."""

from typing import Any

import msgspec

from responses_ws.protocol.sampling import Finished, Progress, Started, TokenDelta, Tokens
from responses_ws.protocol.usage import Usage

from .base import EngineError
from .chat_errors import error_in_stream
from .sse import AnswerReader


class Gap(Tokens, frozen=True, gc=False):
    """Several tokens of which the server told only the last: it keeps those that end within a character to itself."""

    text: str = ""
    """What all of them spell."""


class _Prompt(msgspec.Struct, frozen=True, gc=False):
    total: int = 0
    cache: int = 0
    processed: int = 0


class _Alternative(msgspec.Struct, gc=False):
    token: str = ""
    bytes: list[int] = []
    logprob: float = 0.0


class _Probability(_Alternative, gc=False):
    top_logprobs: list[_Alternative] = []


class _Timings(msgspec.Struct, gc=False):
    cache_n: int = 0


class _Chunk(msgspec.Struct, gc=False):
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str | None = None
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    prompt_progress: _Prompt | None = None
    completion_probabilities: list[_Probability] = []
    timings: _Timings | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk, strict=False).decode


class CompletionReader(AnswerReader[TokenDelta]):
    """The state of one answer.

    Args:
        stop_ids: the first is what the model's template ends an answer with.
        alternatives: how many a token its log probabilities are told with.
        is_constrained: where a grammar leaves nothing but an end, the server takes any that the vocabulary has,
            ``<|endoftext|>`` within ChatML, say. It is told as the first of ``stop_ids``.
    """

    def __init__(
        self, stop_ids: tuple[int, ...] = (), alternatives: int | None = None, *, is_constrained: bool = False
    ) -> None:
        self._stop_ids = stop_ids
        self._is_constrained = is_constrained
        self._alternatives = alternatives
        self._prompt: _Prompt | None = None
        self._heard = 0
        """Tokens so far, those of gaps included."""
        self._held: Tokens | None = None
        """A token without text: perhaps the end."""
        self._end: _Chunk | None = None

    def feed(self, data: bytes, deltas: list[TokenDelta]) -> None:
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise EngineError("protocol", f"the engine sent a chunk that cannot be read: {exc}") from exc
        if chunk.error:
            raise error_in_stream(chunk.error)
        if chunk.stop:
            self._end = chunk
            self.is_done = True
        elif chunk.prompt_progress is not None:
            # Its `tokens` are a dummy.
            self._read(chunk.prompt_progress, deltas)
        elif chunk.tokens:
            if self._prompt is None:
                self._read(_Prompt(chunk.tokens_evaluated), deltas)
            self._hear(chunk, deltas)

    def finish(self, deltas: list[TokenDelta]) -> None:
        if not self.is_done:
            raise EngineError("protocol", "the engine's stream ended before its answer did")
        prompt, end = self._prompt or _Prompt(), self._end or _Chunk()
        if end.stop_type == "eos" and self._stop_ids:
            # Another model's end, or one that was not told, as behind half a character.
            self._held = Tokens(self._stop_ids[:1], self._held.logprobs if self._held else ())
        self._release(deltas)
        usage = Usage(
            input_tokens=end.tokens_evaluated or prompt.total,
            output_tokens=max(self._heard, end.tokens_predicted),
            cached_tokens=prompt.cache if end.timings is None else end.timings.cache_n,
        )
        deltas.append(Finished("length" if end.stop_type == "limit" else "stop", usage.clamped()))

    def _read(self, prompt: _Prompt, deltas: list[TokenDelta]) -> None:
        if self._prompt is None:
            deltas.append(Started(prompt_tokens=prompt.total, cached_tokens=prompt.cache))
        else:
            deltas.append(Progress(done=prompt.processed, total=prompt.total))
        self._prompt = prompt

    def _hear(self, chunk: _Chunk, deltas: list[TokenDelta]) -> None:
        ids = chunk.tokens
        logprobs = tuple(self._told(one) for one in chunk.completion_probabilities)
        count = max(chunk.tokens_predicted - self._heard, len(ids))
        self._heard += count
        self._release(deltas)
        if ids[-1] in self._stop_ids:
            # The server knows the ends of its model; those of others are ours to see.
            self.is_done = True
            deltas.append(Tokens(self._stop_ids[:1] if self._is_constrained else ids, logprobs))
        elif not chunk.content:
            self._held = Tokens(ids, logprobs)
        else:
            deltas.append(Gap(ids, logprobs, chunk.content) if count > len(ids) else Tokens(ids, logprobs))

    def _release(self, deltas: list[TokenDelta]) -> None:
        if self._held is not None:
            deltas.append(self._held)
            self._held = None

    def _told(self, given: _Probability) -> dict[str, Any]:
        tops = given.top_logprobs[: self._alternatives or 0]
        return {**msgspec.to_builtins(given), "top_logprobs": [msgspec.to_builtins(top) for top in tops]}
