"""What a client says on a socket: one JSON object per text frame."""

import re
from typing import Annotated, Any

import msgspec

from .errors import ApiError, InvalidRequest
from .request import JsonObject, Request, bad_json
from .shapes import shape

# In the documents only: a fault of these is told by `check_stream_id` and by the steer itself.
_LANE_NAME = msgspec.Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_.-]{1,256}$"})
_NOT_EMPTY = msgspec.Meta(extra_json_schema={"minItems": 1})


class ResponseCreate(Request, kw_only=True, tag_field="type", tag="response.create"):
    """Start a response. All body fields stand at the top level, with two of the socket's own.

    Source: OpenAI ``ResponsesClientEvent``. ``stream`` and ``stream_options`` are tolerated and mean nothing.
    """

    stream_id: Annotated[str, _LANE_NAME] | None = None
    """Names the lane. It says nothing about lineage: that is ``previous_response_id``."""


class ResponseSteer(msgspec.Struct, kw_only=True, tag_field="type", tag="response.steer"):
    """Put user input into a running response."""

    previous_response_id: str
    """The response that runs, on this socket."""
    input: str | Annotated[list[Annotated[JsonObject, shape("UserMessage")]], _NOT_EMPTY]


class ResponseAppend(msgspec.Struct, kw_only=True, tag_field="type", tag="response.append"):
    """The outputs that a waiting response asked for: our one-long-response extension, on sockets that opted in."""

    response_id: str
    """The response that waits, on this socket."""
    input: list[Annotated[JsonObject, shape("AppendedItem")]]
    """All required outputs, in any order, and user messages if wanted."""
    stream_id: str | None = None


class ResponseProcessed(msgspec.Struct, kw_only=True, tag_field="type", tag="response.processed"):
    """Codex's note that it has read a response. Expects no answer."""


class InvalidCreate(msgspec.Struct):
    """A ``response.create`` that cannot be decoded. It still takes its place in its lane.

    Were its error sent at once, a client that counts ends would take it for the end of the turn before it.
    """

    stream_id: str | None
    previous_response_id: str | None
    error: ApiError


ClientEvent = ResponseCreate | ResponseSteer | ResponseAppend | ResponseProcessed | InvalidCreate


class _Envelope(msgspec.Struct):
    """The few fields needed to say who is to be told what is wrong."""

    type: Any = None
    stream_id: Any = None
    previous_response_id: Any = None


_Decoded = ResponseCreate | ResponseSteer | ResponseAppend | ResponseProcessed
_decode = msgspec.json.Decoder(_Decoded).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")


def decode_frame(frame: str | bytes) -> ClientEvent:
    """The client event in a text frame.

    Raises:
        InvalidRequest: no JSON object, an unknown ``type``, or an invalid ``stream_id``: nothing that could be
            given a place in a lane.
    """
    try:
        event: _Decoded = _decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
        return _undecodable(frame, exc)
    if isinstance(event, ResponseCreate):
        check_stream_id(event.stream_id)
    return event


def check_stream_id(stream_id: Any) -> None:
    """Refuse a lane name that is not 1–256 of ``[A-Za-z0-9_.-]``; None is the default lane.

    Source: OpenAI's WebSocket guide. The offending value is not echoed.
    """
    if stream_id is not None and (not isinstance(stream_id, str) or not _STREAM_ID.match(stream_id)):
        raise InvalidRequest(
            "Invalid 'stream_id': expected 1 to 256 characters from [A-Za-z0-9_.-].",
            code="invalid_stream_id",
            param="stream_id",
        )


def _undecodable(frame: str | bytes, exc: Exception) -> InvalidCreate:
    try:
        envelope = _decode_envelope(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise InvalidRequest("The message is not a valid JSON object.", code="invalid_json") from exc
    if envelope.type is None:
        raise InvalidRequest("The message has no 'type'.", code="invalid_event", param="type") from exc
    if envelope.type in ("response.steer", "response.append", "response.processed"):
        raise bad_json(exc) from exc
    if envelope.type != "response.create":
        shown = str(envelope.type)[:100]
        raise InvalidRequest(f"Unknown event type: {shown!r}.", code="invalid_event", param="type") from exc
    check_stream_id(envelope.stream_id)
    previous = envelope.previous_response_id
    return InvalidCreate(envelope.stream_id, previous if isinstance(previous, str) else None, bad_json(exc))
