"""Chat-completions chunks in, deltas out. No IO."""

from typing import Any

import msgspec

from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
)
from responses_ws.protocol.usage import Usage

from .base import EngineError
from .chat_errors import error_in_stream
from .sse import AnswerReader


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    # Some servers give the arguments as an object.
    arguments: str | dict[str, Any] | None = None


class _ToolCall(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct, gc=False):
    """A ``delta``, or the ``message`` of an answer in one piece."""

    content: str | list[Any] | None = None
    # llama.cpp, SGLang and DeepSeek say the first, vLLM the second.
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _TopLogprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None

    def told(self) -> dict[str, Any]:
        given = list(self.token.encode("utf-8", "replace")) if self.bytes is None else self.bytes
        return {"token": self.token, "bytes": given, "logprob": self.logprob}


class _Logprob(_TopLogprob, gc=False):
    top_logprobs: list[_TopLogprob] | None = None

    def told(self) -> dict[str, Any]:
        return {**_TopLogprob.told(self), "top_logprobs": [top.told() for top in self.top_logprobs or ()]}


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Logprob] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    logprobs: _Logprobs | None = None
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    # LiteLLM says the first, OpenAI's newer models the second.
    cache_creation_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Progress(msgspec.Struct, gc=False):
    """llama.cpp's report while it reads the prompt."""

    total: int = 0
    cache: int = 0


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    prompt_progress: _Progress | None = None


_decode = msgspec.json.Decoder(_Chunk, strict=False).decode

_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class _Call:
    """A tool call whose end has not been told."""

    __slots__ = ("index", "call_id", "name", "pieces")

    def __init__(self, index: int, call_id: str | None) -> None:
        self.index = index
        self.call_id = call_id
        self.name = ""
        self.pieces: list[str] = []


class ChatStream(AnswerReader[Delta]):
    """The state of one answer.

    Takes what servers really send: a call's id and name in its first piece only, or in each; whole calls in one
    piece; calls without index, or all with index 0 and ids of their own; usage once, twice, in every chunk, or
    never; ``stop`` at the end of calls.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_key: dict[int, _Call] = {}
        self._last_call: _Call | None = None
        self._reason: str | None = None
        self._usage: _Usage | None = None
        self._spoken = False
        self._started = False
        self.is_done = False
        """``[DONE]`` has been seen."""

    def feed(self, data: bytes, deltas: list[Delta]) -> None:
        """Adds to ``deltas`` what one event's data says.

        Raises:
            EngineError: it reports an error, or is not a chunk.
        """
        if data == b"[DONE]":
            self.is_done = True
            return
        if not data:
            return
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            if data.strip() == b"[DONE]":
                self.is_done = True
                return
            raise EngineError("protocol", f"the engine sent a chunk that cannot be read: {exc}") from exc
        if chunk.error:
            raise error_in_stream(chunk.error)
        if chunk.usage is not None:
            self._usage = chunk.usage
            if not chunk.choices or not self._started:
                self._start(chunk.usage.prompt_tokens or 0, _cached(chunk.usage), deltas)
        if chunk.prompt_progress is not None:
            self._start(chunk.prompt_progress.total, chunk.prompt_progress.cache, deltas)
        for choice in chunk.choices or ():
            if choice.index:
                continue
            message = choice.delta or choice.message
            if message is not None:
                self._message(message, choice.logprobs, deltas)
            if choice.finish_reason:
                self._reason = choice.finish_reason

    def finish(self, deltas: list[Delta]) -> None:
        """Adds the ends of open calls and the Finished. The stream has ended, or said ``[DONE]``.

        Raises:
            EngineError: it has ended without saying so.
        """
        if self._reason is None and not (self.is_done and self._spoken):
            raise EngineError("protocol", "the engine's stream ended before its answer did")
        if self._reason == "error":
            raise EngineError("engine", "the engine ended its answer with an error")
        reason = _REASONS.get(self._reason or "stop", "stop")
        was_cut = reason in ("length", "content_filter")
        for call in self._calls:
            if not call.name:
                raise EngineError("protocol", "the engine made a tool call without a name")
            # A call that was cut is not whole: nobody may run half a command.
            if not was_cut or _is_json("".join(call.pieces)):
                deltas.append(CallEnd(call.index))
        if not was_cut:
            reason = "tool_calls" if self._calls else "stop"
        deltas.append(Finished(reason, self._counted()))

    def _start(self, prompt_tokens: int, cached_tokens: int, deltas: list[Delta]) -> None:
        """Started, if nothing else has been told before."""
        if not self._started and not self._spoken and prompt_tokens > 0:
            self._started = True
            deltas.append(Started(prompt_tokens, min(max(cached_tokens, 0), prompt_tokens)))

    def _message(self, message: _Message, logprobs: _Logprobs | None, deltas: list[Delta]) -> None:
        reasoning = message.reasoning_content or message.reasoning
        if reasoning:
            deltas.append(ReasoningDelta(reasoning))
            self._spoken = True
        content = message.content
        if content:
            text = content if isinstance(content, str) else _text_of_parts(content)
            if text:
                if logprobs is None or reasoning:
                    deltas.append(TextDelta(text))
                else:
                    deltas.append(TextDelta(text, logprobs=tuple(one.told() for one in logprobs.content or ())))
                self._spoken = True
        if message.refusal:
            deltas.append(RefusalDelta(message.refusal))
            self._spoken = True
        if message.tool_calls:
            for piece in message.tool_calls:
                self._call_piece(piece, deltas)
        elif message.function_call is not None:
            self._call_piece(_ToolCall(0, None, message.function_call), deltas)

    def _call_piece(self, piece: _ToolCall, deltas: list[Delta]) -> None:
        function = piece.function or _Function()
        call = self._call_of(piece, function)
        self._last_call = call
        self._spoken = True
        arguments = function.arguments
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if call.name:
            if arguments:
                call.pieces.append(arguments)
                deltas.append(CallArguments(call.index, arguments))
            return
        if arguments:
            call.pieces.append(arguments)
        if function.name:
            call.name = function.name
            deltas.append(CallStart(call.index, call.name, call.call_id))
            held = "".join(call.pieces)
            if held:
                deltas.append(CallArguments(call.index, held))

    def _call_of(self, piece: _ToolCall, function: _Function) -> _Call:
        """The call that a piece belongs to, perhaps a new one."""
        if piece.index is None:
            known = next((call for call in self._calls if piece.id and call.call_id == piece.id), None)
            if known is None and not piece.id and not function.name:
                known = self._last_call
            return known or self._new_call(piece)
        known = self._by_key.get(piece.index)
        is_another = known is not None and known.name and function.name and piece.id and piece.id != known.call_id
        if known is None or is_another:
            known = self._by_key[piece.index] = self._new_call(piece)
        elif piece.id and known.call_id is None and not known.name:
            known.call_id = piece.id
        return known

    def _new_call(self, piece: _ToolCall) -> _Call:
        call = _Call(len(self._calls), piece.id or None)
        self._calls.append(call)
        return call

    def _counted(self) -> Usage | None:
        said = self._usage
        if said is None or (said.prompt_tokens is None and said.completion_tokens is None):
            return None
        details = said.completion_tokens_details
        return Usage(
            input_tokens=said.prompt_tokens or 0,
            output_tokens=said.completion_tokens or 0,
            cached_tokens=_cached(said),
            cache_write_tokens=_written(said),
            reasoning_tokens=(details.reasoning_tokens or 0) if details else 0,
        ).clamped()


def _cached(usage: _Usage) -> int:
    details = usage.prompt_tokens_details
    return (details.cached_tokens or 0) if details else 0


def _written(usage: _Usage) -> int:
    details = usage.prompt_tokens_details
    return (details.cache_creation_tokens or details.cache_write_tokens or 0) if details else 0


def _text_of_parts(parts: list[Any]) -> str:
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
