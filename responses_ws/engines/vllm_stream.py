"""What vLLM has sampled, from the events of its routes for token ids. No IO."""

from typing import Any

import msgspec

from responses_ws.protocol.sampling import Finished, FinishReason, TokenDelta, Tokens
from responses_ws.protocol.usage import Usage

from .base import EngineError
from .chat_errors import error_in_stream
from .sse import AnswerReader

# `/v1/completions` repeats the prompt in its first chunk: six bytes an id.
MAX_EVENT_BYTES = 16 * 1024 * 1024

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "repetition": "stop"}


class _Logprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None
    top_logprobs: list["_Logprob"] = []

    def told(self) -> dict[str, Any]:
        given = list(self.token.encode()) if self.bytes is None else self.bytes
        return {"token": self.token, "bytes": given, "logprob": self.logprob}


class _Logprobs(msgspec.Struct, gc=False):
    """``content`` on the one route, the others on the other: then one a token each."""

    content: list[_Logprob] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []

    def told(self, top: int) -> tuple[dict[str, Any], ...]:
        """In the form of `TextDelta.logprobs`, with ``top`` alternatives; vLLM gives the sampled token as a first."""
        if self.content is not None:
            return tuple(
                {**one.told(), "top_logprobs": [other.told() for other in one.top_logprobs[:top]]}
                for one in self.content
            )
        tops = self.top_logprobs or [None] * len(self.tokens)
        return tuple(
            {
                **_Logprob(token, logprob or 0.0).told(),
                "top_logprobs": [_Logprob(*other).told() for other in list((others or {}).items())[:top]],
            }
            for token, logprob, others in zip(self.tokens, self.token_logprobs, tops, strict=False)
        )


class _Choice(msgspec.Struct, gc=False):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class VllmStream(AnswerReader[TokenDelta]):
    """The state of one answer. ``top``: how many alternatives were asked for a token."""

    max_event_bytes = MAX_EVENT_BYTES

    def __init__(self, top: int = 0) -> None:
        self._top = top
        self._reason: str | None = None
        self._usage: _Usage | None = None

    def feed(self, data: bytes, deltas: list[TokenDelta]) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise EngineError("protocol", f"the engine sent a chunk that cannot be read: {exc}") from exc
        if chunk.error:
            raise error_in_stream(chunk.error)
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices:
            if choice.token_ids:
                logprobs = choice.logprobs.told(self._top) if choice.logprobs is not None else ()
                deltas.append(Tokens(choice.token_ids, logprobs))
            if choice.finish_reason is not None:
                self._reason = choice.finish_reason

    def finish(self, deltas: list[TokenDelta]) -> None:
        if self._reason is None:
            raise EngineError("protocol", "the engine's stream ended before its answer did")
        if self._reason == "abort":
            raise EngineError("unavailable", "the engine was made to abort its answer")
        reason = _REASONS.get(self._reason)
        if reason is None:
            raise EngineError("engine", f"the engine ended its answer with {self._reason!r}")
        deltas.append(Finished(reason, self._counted()))

    def _counted(self) -> Usage | None:
        said = self._usage
        if said is None:
            return None
        details = said.prompt_tokens_details
        return Usage(
            input_tokens=said.prompt_tokens,
            output_tokens=said.completion_tokens,
            cached_tokens=(details.cached_tokens or 0) if details is not None else 0,
        ).clamped()
