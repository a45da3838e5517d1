"""What SGLang has sampled, from the events of ``/generate``. No IO."""

from typing import Any

import msgspec

from responses_ws.protocol.sampling import Finished, FinishReason, Started, TokenDelta, Tokens
from responses_ws.protocol.usage import Usage

from .base import EngineError
from .chat_errors import error_in_stream
from .sse import AnswerReader

# An event holds all ids so far, and all that was asked for with them.
MAX_EVENT_BYTES = 16 * 1024 * 1024

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}

_Logprob = tuple[float | None, int, str | None]
"""Its value, the token's id and text."""


class _Reason(msgspec.Struct, gc=False):
    type: str
    message: str = ""
    status_code: int | None = None


class _Meta(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: _Reason | None = None
    output_token_logprobs: list[_Logprob] = []
    output_top_logprobs: list[list[_Logprob] | None] = []


class _Chunk(msgspec.Struct, gc=False):
    output_ids: list[int] = []
    meta_info: _Meta | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class SGLangStream(AnswerReader[TokenDelta]):
    """The state of one answer. ``top``: how many alternatives were asked for a token.

    An event has all ids of the answer so far or, from a server with ``--incremental-streaming-output``, those since
    the event before; which of both, its count of all of them tells.
    """

    max_event_bytes = MAX_EVENT_BYTES

    def __init__(self, top: int | None = None) -> None:
        self._top = top
        self._told = 0
        self._meta: _Meta | None = None

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
        meta = chunk.meta_info
        if meta is None:
            raise EngineError("protocol", "the engine sent a chunk without meta_info")
        if self._meta is None and meta.prompt_tokens is not None:
            deltas.append(Started(meta.prompt_tokens, min(meta.cached_tokens, meta.prompt_tokens)))
        new = self._new(chunk.output_ids, meta.completion_tokens)
        if new:
            self._told += len(new)
            deltas.append(Tokens(new, () if self._top is None else self._logprobs(meta, len(new), self._top)))
        self._meta = _replaced(self._meta, meta)
        if meta.finish_reason is not None and meta.finish_reason.type == "abort":
            raise _aborted(meta.finish_reason)

    def finish(self, deltas: list[TokenDelta]) -> None:
        meta = self._meta
        if meta is None or meta.finish_reason is None:
            raise EngineError("protocol", "the engine's stream ended before its answer did")
        reason = _REASONS.get(meta.finish_reason.type)
        if reason is None:
            raise EngineError("engine", f"the engine ended its answer with {meta.finish_reason.type!r}")
        usage = Usage(input_tokens=meta.prompt_tokens or 0, cached_tokens=meta.cached_tokens, output_tokens=self._told)
        deltas.append(Finished(reason, usage.clamped()))

    def _new(self, ids: list[int], total: int) -> list[int]:
        if len(ids) >= total:
            return ids[self._told :]
        missing = total - self._told
        return ids[-missing:] if missing > 0 else []

    @staticmethod
    def _logprobs(meta: _Meta, count: int, top: int) -> tuple[dict[str, Any], ...]:
        """Of the last ``count`` tokens, in the form of `TextDelta.logprobs`."""
        own = meta.output_token_logprobs[-count:]
        others = meta.output_top_logprobs[-count:] or [None] * len(own)
        return tuple(
            {**_said(one), "top_logprobs": [_said(other) for other in (some or [])[:top]]}
            for one, some in zip(own, others, strict=False)
        )


def _said(one: _Logprob) -> dict[str, Any]:
    value, _, text = one
    # JSON has no minus infinity.
    value = -9999.0 if value is None else value
    return {"token": text or "", "bytes": list((text or "").encode()), "logprob": value}


def _replaced(past: _Meta | None, meta: _Meta) -> _Meta:
    """The newer word, with what it leaves out."""
    if past is not None and meta.prompt_tokens is None:
        meta.prompt_tokens, meta.cached_tokens = past.prompt_tokens, past.cached_tokens
    return meta


def _aborted(reason: _Reason) -> EngineError:
    if reason.status_code is None:
        return EngineError("unavailable", "the engine was made to abort its answer")
    return error_in_stream({"message": reason.message, "code": reason.status_code})
