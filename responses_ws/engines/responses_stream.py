"""Events of the Responses API in, deltas out. No IO."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from responses_ws.protocol.compaction import COMPACTION
from responses_ws.protocol.sampling import (
    Annotation,
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    FinishReason,
    OutputItem,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from responses_ws.rendering.tools import flat_name

from .base import EngineError
from .chat_errors import error_in_stream, refusal
from .responses_shapes import Event, Item, Response, decode_event, decode_item, decode_kind, decode_response
from .sse import AnswerReader

_CALLS = frozenset({"function_call", "custom_tool_call"})
_LIFECYCLE = frozenset({"response.created", "response.queued", "response.in_progress"})
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
_REASONS: dict[str | None, FinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}
# Errors that a second try, with everything, may mend.
_FORGOTTEN = frozenset({"previous_response_not_found", "websocket_connection_limit_reached"})


class Forgotten(EngineError):
    """The upstream does not know (any more) what it was to go on from; or nobody has heard the question."""


class _Open:
    """An output item that has begun."""

    __slots__ = ("kind", "index", "has_spoken", "has_ended", "voice", "summary_index", "offset", "has_notes")

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.has_spoken = False
        """Something of it has been told in deltas."""
        self.has_ended = False
        self.has_notes = False
        """Annotations have been told one by one."""
        self.voice = ""
        """Of reasoning: ``text`` or ``summary``, whichever came first. The other says the same again."""
        self.offset = 0
        """Of a message: how much text of the one that it becomes stands before it."""
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
        self._text_length = 0
        """Of the message that is being made of theirs."""
        self._finished: Finished | None = None

    def feed(self, data: bytes | str, deltas: list[Delta]) -> None:
        if not data or data in (b"[DONE]", "[DONE]"):
            self.is_done = bool(data) or self.is_done
            return
        event = _read(decode_event, data)
        kind = event.type
        if kind == "error":
            raise self._error(event.error or event, event.status, event.headers)
        if not kind and event.error:
            raise self._error(event.error, event.status, event.headers)
        self.has_heard = self.has_heard or not kind or kind.startswith("response.")
        if kind in _LIFECYCLE:
            self.response_id = self.response_id or _read(decode_response, event.response).id
        elif kind == "response.output_item.added":
            self._begin(event, deltas)
        elif kind == "response.output_item.done":
            self._end(event, deltas)
        elif kind in _TERMINAL:
            response = _read(decode_response, event.response)
            self._finish(response, response.status or kind.removeprefix("response."), deltas)
        elif kind == "response.output_text.annotation.added":
            self._annotate(self._items.get(_key(event)), event.annotation, deltas)
        elif isinstance(event.delta, str):
            self._say(event, event.delta, deltas)
        elif not kind:
            # Asked for a stream, some servers answer in one piece all the same.
            response = _read(decode_response, data)
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
        if isinstance(error, Event):
            error = {"code": error.code, "message": error.message, "param": error.param}
        told = error_in_stream(
            error,
            status=status if isinstance(status, int) else None,
            headers=_strings(headers) or _strings(error.get("headers") if isinstance(error, dict) else None),
        )
        return told if self.has_heard else _forgotten(told, error)

    def _begin(self, event: Event, deltas: list[Delta]) -> None:
        kind = _read(decode_kind, event.item).type
        item = self._items[_key(event)] = _Open(kind, self._calls)
        if kind in _CALLS:
            self._start_call(item, _read(decode_item, event.item), deltas)

    def _start_call(self, item: _Open, said: Item, deltas: list[Delta]) -> None:
        if not said.name:
            raise EngineError("protocol", "the upstream made a tool call without a name")
        self._calls += 1
        self._text_length = 0
        deltas.append(CallStart(item.index, flat_name(said.namespace, said.name), said.call_id))
        if item.kind == "custom_tool_call":
            # Custom tools are translated back from functions with one string, whichever way they were offered.
            deltas.append(CallArguments(item.index, '{"input":"', 0))

    def _say(self, event: Event, text: str, deltas: list[Delta]) -> None:
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
            self._refuse(item or self._unannounced(event, "message"), text, deltas)
        elif kind in ("response.reasoning_text.delta", "response.reasoning.delta"):
            self._reason(item or self._unannounced(event, "reasoning"), text, "text", None, deltas)
        elif kind == "response.reasoning_summary_text.delta":
            item = item or self._unannounced(event, "reasoning")
            self._reason(item, text, "summary", event.summary_index, deltas)

    def _unannounced(self, event: Event, kind: str) -> _Open:
        item = self._items[_key(event)] = _Open(kind, self._calls)
        return item

    def _text(self, item: _Open, text: str, logprobs: tuple[dict[str, Any], ...], deltas: list[Delta]) -> None:
        if not text:
            return
        if not item.has_spoken and self._text_length:
            # Two messages of the upstream are one of ours.
            deltas.append(TextDelta("\n\n", 0))
            item.offset = self._text_length + 2
            self._text_length += 2
        item.has_spoken = True
        self._text_length += len(text)
        deltas.append(TextDelta(text, logprobs=logprobs))

    def _refuse(self, item: _Open, text: str, deltas: list[Delta]) -> None:
        item.has_spoken = True
        # Text behind it is a part of its own.
        self._text_length = 0
        deltas.append(RefusalDelta(text))

    def _annotate(self, item: _Open | None, annotation: Any, deltas: list[Delta]) -> None:
        if item is None or not item.has_spoken or not isinstance(annotation, dict):
            return
        item.has_notes = True
        places = {key: annotation.get(key) for key in ("start_index", "end_index")}
        moved = {key: place + item.offset for key, place in places.items() if isinstance(place, int)}
        deltas.append(Annotation({**annotation, **moved}))

    def _reason(self, item: _Open, text: str, voice: str, index: int | None, deltas: list[Delta]) -> None:
        if not text or item.voice not in ("", voice):
            return
        if item.has_spoken and index != item.summary_index:
            deltas.append(ReasoningDelta("\n\n", 0))
        item.voice, item.summary_index, item.has_spoken = voice, index, True
        self._text_length = 0
        deltas.append(ReasoningDelta(text))

    def _arguments(self, item: _Open, text: str, deltas: list[Delta]) -> None:
        if text and not item.has_ended:
            item.has_spoken = True
            self._text_length = 0
            said = text if item.kind == "function_call" else msgspec.json.encode(text).decode()[1:-1]
            deltas.append(CallArguments(item.index, said))

    def _end(self, event: Event, deltas: list[Delta]) -> None:
        self._whole(self._items.get(_key(event)), event.item, deltas, key=_key(event))

    def _whole(self, item: _Open | None, raw: msgspec.Raw, deltas: list[Delta], *, key: int | str | None) -> None:
        """An item as it is at its end: what has not been told of it yet is told now."""
        kind = _read(decode_kind, raw).type
        if kind not in _CALLS and kind not in ("message", "reasoning"):
            self._other(_read(msgspec.json.decode, raw), deltas)
            self._items.setdefault(key, _Open(kind, self._calls))
            return
        said = _read(decode_item, raw)
        if item is None or item.kind != kind:
            item = self._items[key] = _Open(kind, self._calls)
            if kind in _CALLS:
                self._start_call(item, said, deltas)
        if kind in _CALLS:
            if not item.has_spoken:
                self._arguments(item, said.said(), deltas)
            if said.status != "incomplete":
                self._end_call(item, deltas)
        elif kind == "message":
            self._whole_message(item, said, deltas)
        elif not item.has_spoken:
            for part in said.content or ():
                self._reason(item, part.text or "", "text", None, deltas)
            for index, part in enumerate(said.summary or ()):
                self._reason(item, part.text or "", "summary", index, deltas)

    def _whole_message(self, item: _Open, said: Item, deltas: list[Delta]) -> None:
        is_new, is_noted = not item.has_spoken, item.has_notes
        for part in said.content or ():
            if is_new and part.refusal:
                self._refuse(item, part.refusal, deltas)
            elif is_new:
                self._text(item, part.text or "", _logprobs(part.logprobs), deltas)
            for annotation in () if is_noted else part.annotations or ():
                self._annotate(item, annotation, deltas)

    def _other(self, item: Any, deltas: list[Delta]) -> None:
        """What the upstream has run by itself, or asks its client to run."""
        # A compaction is sealed, and not by us.
        if isinstance(item, dict) and isinstance(item.get("type"), str) and item["type"] not in ("", COMPACTION):
            self._text_length = 0
            deltas.append(OutputItem(item))

    def _end_call(self, item: _Open, deltas: list[Delta]) -> None:
        if not item.has_ended:
            item.has_ended = True
            if item.kind == "custom_tool_call":
                deltas.append(CallArguments(item.index, '"}', 0))
            deltas.append(CallEnd(item.index))

    def _finish(self, response: Response, status: str, deltas: list[Delta]) -> None:
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


def _key(event: Event) -> int | str | None:
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
