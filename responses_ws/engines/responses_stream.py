"""Events of the Responses API in, deltas out. No IO."""

from collections.abc import Callable, Mapping
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
    TextDelta,
)
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.tools import flat_name

from .base import EngineError
from .chat_errors import error_in_stream, refusal
from .sse import AnswerReader

_CALLS = frozenset({"function_call", "custom_tool_call"})
_LIFECYCLE = frozenset({"response.created", "response.queued", "response.in_progress"})
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
_REASONS: dict[str | None, FinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}
# Errors that a second try, with everything, may mend.
_FORGOTTEN = frozenset({"previous_response_not_found", "websocket_connection_limit_reached"})


class Forgotten(EngineError):
    """The upstream does not know (any more) what it was to go on from; or nobody has heard the question."""


_NOTHING = msgspec.Raw(b"{}")


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    output_index: int | None = None
    item_id: str | None = None
    summary_index: int | None = None
    delta: Any = None
    logprobs: Any = None
    # Read where they count: those of unknown kinds may look like anything.
    item: msgspec.Raw = _NOTHING
    response: msgspec.Raw = _NOTHING
    # Of an ``error``; over HTTP these stand in the event itself, on a WebSocket in an object beside the status.
    error: Any = None
    status: Any = None
    headers: Any = None
    code: Any = None
    message: Any = None
    param: Any = None


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    logprobs: list[dict[str, Any]] | None = None


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    status: str | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    call_id: str | None = None
    namespace: str | None = None
    name: str = ""
    # Some servers give the arguments as an object.
    arguments: str | dict[str, Any] | None = None
    input: str | None = None

    def said(self) -> str:
        """What a call calls with."""
        given = self.arguments if self.type == "function_call" else self.input
        return given if isinstance(given, str) else msgspec.json.encode(given).decode() if given else ""


class _Kind(msgspec.Struct, gc=False):
    type: str = ""


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None

    def counted(self) -> Usage | None:
        if self.input_tokens is None and self.output_tokens is None:
            return None
        read, made = self.input_tokens_details or _InputDetails(), self.output_tokens_details or _OutputDetails()
        return Usage(
            input_tokens=self.input_tokens or 0,
            output_tokens=self.output_tokens or 0,
            cached_tokens=read.cached_tokens or 0,
            cache_write_tokens=read.cache_write_tokens or 0,
            reasoning_tokens=made.reasoning_tokens or 0,
        ).clamped()


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    status: str | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None
    output: list[msgspec.Raw] | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class _Open:
    """An output item that has begun."""

    __slots__ = ("kind", "index", "has_spoken", "has_ended", "voice", "summary_index")

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.has_spoken = False
        """Something of it has been told in deltas."""
        self.has_ended = False
        self.voice = ""
        """Of reasoning: ``text`` or ``summary``, whichever came first. The other says the same again."""
        self.summary_index: int | None = None


class ResponsesReader(AnswerReader[Delta]):
    """The state of one answer.

    Takes what servers really send: items without their beginning, or in one piece; the whole answer in its last
    event only, or as JSON; ``[DONE]``; kinds of events and items that we have never heard of. ``name`` makes of the
    upstream's id of the response what a continuation is to bring back.

    Source: the event types of the OpenAI Responses API, and the Open Responses specification.
    """

    max_event_bytes = 16 * 1024 * 1024  # the last event holds the whole response

    def __init__(self, name: Callable[[str], Any]) -> None:
        self.has_heard = False
        """The upstream has begun to answer."""
        self.response_id: str | None = None
        self._name = name
        self._items: dict[int | str | None, _Open] = {}
        self._calls = 0
        self._has_text = False
        self._finished: Finished | None = None

    def feed(self, data: bytes | str, deltas: list[Delta]) -> None:
        if not data or data in (b"[DONE]", "[DONE]"):
            self.is_done = bool(data) or self.is_done
            return
        event = _read(_decode_event, data)
        kind = event.type
        if kind == "error":
            raise self._error(event.error or event, event.status, event.headers)
        if not kind and event.error:
            raise self._error(event.error, event.status, event.headers)
        self.has_heard = self.has_heard or not kind or kind.startswith("response.")
        if kind in _LIFECYCLE:
            self.response_id = self.response_id or _read(_decode_response, event.response).id
        elif kind == "response.output_item.added":
            self._begin(event, deltas)
        elif kind == "response.output_item.done":
            self._end(event, deltas)
        elif kind in _TERMINAL:
            response = _read(_decode_response, event.response)
            self._finish(response, response.status or kind.removeprefix("response."), deltas)
        elif isinstance(event.delta, str):
            self._say(event, event.delta, deltas)
        elif not kind:
            # Asked for a stream, some servers answer in one piece all the same.
            response = _read(_decode_response, data)
            self._finish(response, response.status or "completed", deltas)

    def finish(self, deltas: list[Delta]) -> None:
        if self._finished is None:
            raise EngineError("protocol", "the upstream's stream ended before its answer did")
        deltas.append(self._finished)

    def refusal(self, status: int, body: bytes, headers: Mapping[str, str]) -> EngineError:
        error = refusal(status, body, headers)
        try:
            said = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return error
        return _forgotten(error, said.get("error") or said) if isinstance(said, dict) else error

    def _error(self, error: Any, status: Any, headers: Any) -> EngineError:
        if isinstance(error, _Event):
            error = {"code": error.code, "message": error.message, "param": error.param}
        told = error_in_stream(
            error,
            status=status if isinstance(status, int) else None,
            headers=_strings(headers) or _strings(error.get("headers") if isinstance(error, dict) else None),
        )
        return told if self.has_heard else _forgotten(told, error)

    def _begin(self, event: _Event, deltas: list[Delta]) -> None:
        kind = _read(_decode_kind, event.item).type
        item = self._items[_key(event)] = _Open(kind, self._calls)
        if kind in _CALLS:
            self._start_call(item, _read(_decode_item, event.item), deltas)

    def _start_call(self, item: _Open, said: _Item, deltas: list[Delta]) -> None:
        if not said.name:
            raise EngineError("protocol", "the upstream made a tool call without a name")
        self._calls += 1
        deltas.append(CallStart(item.index, flat_name(said.namespace, said.name), said.call_id))
        if item.kind == "custom_tool_call":
            # Custom tools are translated back from functions with one string, whichever way they were offered.
            deltas.append(CallArguments(item.index, '{"input":"', 0))

    def _say(self, event: _Event, text: str, deltas: list[Delta]) -> None:
        item = self._items.get(_key(event))
        kind = event.type
        if kind == "response.output_text.delta":
            item = item or self._unannounced(event, "message")
            self._text(item, text, _logprobs(event.logprobs), deltas)
        elif kind == "response.function_call_arguments.delta" or kind == "response.custom_tool_call_input.delta":
            # Of a call that has not been announced all comes with its end.
            if item is not None and item.kind in _CALLS:
                self._arguments(item, text, deltas)
        elif kind == "response.refusal.delta":
            item = item or self._unannounced(event, "message")
            item.has_spoken = True
            deltas.append(RefusalDelta(text))
        elif kind in ("response.reasoning_text.delta", "response.reasoning.delta"):
            self._reason(item or self._unannounced(event, "reasoning"), text, "text", None, deltas)
        elif kind == "response.reasoning_summary_text.delta":
            item = item or self._unannounced(event, "reasoning")
            self._reason(item, text, "summary", event.summary_index, deltas)

    def _unannounced(self, event: _Event, kind: str) -> _Open:
        item = self._items[_key(event)] = _Open(kind, self._calls)
        return item

    def _text(self, item: _Open, text: str, logprobs: tuple[dict[str, Any], ...], deltas: list[Delta]) -> None:
        if not text:
            return
        if not item.has_spoken and self._has_text:
            # Two messages of the upstream are one of ours.
            deltas.append(TextDelta("\n\n", 0))
        item.has_spoken = self._has_text = True
        deltas.append(TextDelta(text, logprobs=logprobs))

    def _reason(self, item: _Open, text: str, voice: str, index: int | None, deltas: list[Delta]) -> None:
        if not text or item.voice not in ("", voice):
            return
        if item.has_spoken and index != item.summary_index:
            deltas.append(ReasoningDelta("\n\n", 0))
        item.voice, item.summary_index, item.has_spoken = voice, index, True
        deltas.append(ReasoningDelta(text))

    def _arguments(self, item: _Open, text: str, deltas: list[Delta]) -> None:
        if text:
            item.has_spoken = True
            said = text if item.kind == "function_call" else msgspec.json.encode(text).decode()[1:-1]
            deltas.append(CallArguments(item.index, said))

    def _end(self, event: _Event, deltas: list[Delta]) -> None:
        self._whole(self._items.get(_key(event)), event.item, deltas, key=_key(event))

    def _whole(self, item: _Open | None, raw: msgspec.Raw, deltas: list[Delta], *, key: int | str | None) -> None:
        """An item as it is at its end: what has not been told of it yet is told now."""
        kind = _read(_decode_kind, raw).type
        if kind not in _CALLS and kind not in ("message", "reasoning"):
            return
        said = _read(_decode_item, raw)
        if item is None:
            item = self._items[key] = _Open(kind, self._calls)
            if kind in _CALLS:
                self._start_call(item, said, deltas)
        if kind in _CALLS:
            if not item.has_spoken:
                self._arguments(item, said.said(), deltas)
            if said.status != "incomplete":
                self._end_call(item, deltas)
        elif not item.has_spoken:
            for part in said.content or ():
                if kind == "reasoning":
                    self._reason(item, part.text or "", "text", None, deltas)
                elif part.refusal:
                    item.has_spoken = True
                    deltas.append(RefusalDelta(part.refusal))
                else:
                    self._text(item, part.text or "", _logprobs(part.logprobs), deltas)
            for index, part in enumerate(said.summary or ()):
                self._reason(item, part.text or "", "summary", index, deltas)

    def _end_call(self, item: _Open, deltas: list[Delta]) -> None:
        if not item.has_ended:
            item.has_ended = True
            if item.kind == "custom_tool_call":
                deltas.append(CallArguments(item.index, '"}', 0))
            deltas.append(CallEnd(item.index))

    def _finish(self, response: _Response, status: str, deltas: list[Delta]) -> None:
        self.response_id = response.id or self.response_id
        if status == "failed" or response.error:
            raise self._error(response.error or {}, None, None)
        if status not in ("completed", "incomplete"):
            raise EngineError("engine", f"the upstream's response has ended as {status[:40]!r}")
        if not self._items:
            for index, raw in enumerate(response.output or ()):
                self._whole(None, raw, deltas, key=index)
        usage = response.usage.counted() if response.usage is not None else None
        calls = [item for item in self._items.values() if item.kind in _CALLS]
        if status == "incomplete":
            reason = _REASONS.get(response.incomplete_details.reason if response.incomplete_details else None)
            if reason is None:
                raise EngineError("engine", "the upstream has cut off its response, and does not say why")
            # Of calls that were cut off it is anybody's guess how an upstream remembers them.
            is_whole = all(item.has_ended for item in calls)
            self._finished = Finished(reason, usage, self._named() if is_whole else None)
        else:
            for item in calls:
                self._end_call(item, deltas)
            self._finished = Finished("tool_calls" if calls else "stop", usage, self._named())
        self.is_done = True

    def _named(self) -> Any:
        return None if self.response_id is None else self._name(self.response_id)


def _key(event: _Event) -> int | str | None:
    return event.item_id if event.output_index is None else event.output_index


def _read(decode: Callable[[Any], Any], data: Any) -> Any:
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise EngineError("protocol", f"the upstream sent what cannot be read: {exc}") from exc


def _logprobs(given: Any) -> tuple[dict[str, Any], ...]:
    """In the form of `TextDelta.logprobs`; Responses have no ``bytes`` in their deltas."""
    if not isinstance(given, list):
        return ()
    return tuple(
        {**_logprob(one), "top_logprobs": [_logprob(top) for top in one.get("top_logprobs") or ()]}
        for one in given
        if isinstance(one, dict)
    )


def _logprob(one: dict[str, Any]) -> dict[str, Any]:
    token = str(one.get("token") or "")
    given = one.get("bytes")
    told = list(token.encode("utf-8", "replace")) if given is None else given
    return {"token": token, "bytes": told, "logprob": one.get("logprob") or 0.0}


def _strings(headers: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}


def _forgotten(error: EngineError, said: Any) -> EngineError:
    """The same as Forgotten, if that is what it says."""
    if not isinstance(said, dict):
        return error
    if said.get("code") not in _FORGOTTEN and said.get("param") != "previous_response_id":
        return error
    return Forgotten(error.kind, error.message, status=error.status, headers=error.headers)
