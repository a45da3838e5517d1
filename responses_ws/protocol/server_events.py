"""What we say: the same JSON objects on a socket and in an SSE stream.

Every event is a struct whose first key on the wire is ``type``. ``encode`` gives the frame.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .items import Item

JsonObject = dict[str, Any]


class ServerEvent(msgspec.Struct, kw_only=True, gc=False, tag_field="type"):
    """``sequence_number`` counts from 0 within one response. ``stream_id`` is absent on the default lane."""

    sequence_number: int
    stream_id: str | UnsetType = UNSET


class ResponseCreated(ServerEvent, tag="response.created", gc=True):
    response: Raw


class ResponseInProgress(ServerEvent, tag="response.in_progress", gc=True):
    response: Raw


class ResponseCompleted(ServerEvent, tag="response.completed", gc=True):
    response: Raw


class ResponseIncomplete(ServerEvent, tag="response.incomplete", gc=True):
    response: Raw


class ResponseFailed(ServerEvent, tag="response.failed", gc=True):
    response: Raw


class OutputItemAdded(ServerEvent, tag="response.output_item.added", gc=True):
    output_index: int
    item: Item


class OutputItemDone(ServerEvent, tag="response.output_item.done", gc=True):
    output_index: int
    item: Item


class ContentPartAdded(ServerEvent, tag="response.content_part.added", gc=True):
    item_id: str
    output_index: int
    content_index: int
    part: JsonObject


class ContentPartDone(ServerEvent, tag="response.content_part.done", gc=True):
    item_id: str
    output_index: int
    content_index: int
    part: JsonObject


class OutputTextDelta(ServerEvent, tag="response.output_text.delta"):
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: tuple[()] = ()


class OutputTextDone(ServerEvent, tag="response.output_text.done"):
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: tuple[()] = ()


class RefusalDelta(ServerEvent, tag="response.refusal.delta"):
    item_id: str
    output_index: int
    content_index: int
    delta: str


class RefusalDone(ServerEvent, tag="response.refusal.done"):
    item_id: str
    output_index: int
    content_index: int
    refusal: str


class ReasoningTextDelta(ServerEvent, tag="response.reasoning_text.delta"):
    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(ServerEvent, tag="response.reasoning_text.done"):
    item_id: str
    output_index: int
    content_index: int
    text: str


class ReasoningSummaryPartAdded(ServerEvent, tag="response.reasoning_summary_part.added", gc=True):
    item_id: str
    output_index: int
    summary_index: int
    part: JsonObject


class ReasoningSummaryPartDone(ServerEvent, tag="response.reasoning_summary_part.done", gc=True):
    """``status`` is there, and says incomplete, only if the reasoning was cut off."""

    item_id: str
    output_index: int
    summary_index: int
    part: JsonObject
    status: str | UnsetType = UNSET


class ReasoningSummaryTextDelta(ServerEvent, tag="response.reasoning_summary_text.delta"):
    item_id: str
    output_index: int
    summary_index: int
    delta: str


class ReasoningSummaryTextDone(ServerEvent, tag="response.reasoning_summary_text.done"):
    item_id: str
    output_index: int
    summary_index: int
    text: str


class FunctionCallArgumentsDelta(ServerEvent, tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDone(ServerEvent, tag="response.function_call_arguments.done"):
    item_id: str
    output_index: int
    arguments: str


class CustomToolCallInputDelta(ServerEvent, tag="response.custom_tool_call_input.delta"):
    item_id: str
    output_index: int
    delta: str


class CustomToolCallInputDone(ServerEvent, tag="response.custom_tool_call_input.done"):
    item_id: str
    output_index: int
    input: str


class SteerAccepted(ServerEvent, tag="response.steer.accepted", gc=True):
    """Numbered within the response that it steers."""

    steer: JsonObject


class SteerPending(ServerEvent, tag="response.steer.pending", gc=True):
    """The response has ended with calls open: the steer goes before the next explicit create that continues it."""

    steer: JsonObject
    reason: str
    required_input: list[JsonObject]


class ResponseDone(ServerEvent, tag="response.done", gc=True):
    """Our one-long-response extension: a sampling step has ended with calls, and the response waits for outputs.

    ``required``: ``{type: function_call_output, call_id, name}`` or ``{type: custom_tool_call_output, call_id}``.
    """

    response_id: str
    reason: str
    required: list[JsonObject]


class SteerFailed(ServerEvent, tag="response.steer.failed", gc=True):
    """The input comes back, so that the client can send it again."""

    steer: JsonObject
    error: JsonObject


_encode = msgspec.json.Encoder().encode


def encode(event: ServerEvent) -> str:
    """The frame of an event."""
    return _encode(event).decode()


def encode_response(response: JsonObject) -> Raw:
    """A Response as the lifecycle events carry it, encoded once for several of them."""
    return Raw(_encode(response))


def event_type(frame: str) -> str:
    """The ``type`` of an encoded event, without decoding it: it always comes first."""
    return frame[9 : frame.index('"', 9)]


def sse(frame: str) -> bytes:
    """An SSE event whose payload is exactly the frame. ``\\n`` only, whole event in one chunk, no ``id``.

    Source: the framing that the strictest known client parser accepts.
    """
    return f"event: {event_type(frame)}\ndata: {frame}\n\n".encode()


SSE_DONE = b"data: [DONE]\n\n"
