"""What we say: the same JSON objects on a socket and in an SSE stream.

Every event is a struct whose first key on the wire is ``type``. ``encode`` gives the frame.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .items import Item
from .shapes import shape

JsonObject = dict[str, Any]

EncodedResponse = Annotated[Raw, shape("Response")]
OutputItem = Annotated[Item, shape("OutputItem")]
OutputPart = Annotated[JsonObject, shape("OutputPart")]
SummaryPart = Annotated[JsonObject, shape("SummaryText")]
TokenLogprobs = Sequence[Annotated[JsonObject, shape("TokenLogprob")]]


class ServerEvent(msgspec.Struct, kw_only=True, gc=False, tag_field="type"):
    """What all events have. Its subclasses without subclasses are the events."""

    sequence_number: int
    """Counts from 0 within one response."""
    stream_id: str | UnsetType = UNSET
    """The lane's name; absent on the default lane."""


class Lifecycle(ServerEvent, gc=True):
    """Of the response as a whole."""

    response: EncodedResponse


class ResponseCreated(Lifecycle, tag="response.created"):
    """The first event: the engine has accepted the call, or is taking its time."""


class ResponseQueued(Lifecycle, tag="response.queued"):
    """The second event of a background response: it is accepted, and has not begun."""


class ResponseInProgress(Lifecycle, tag="response.in_progress"):
    """The response has begun. Again whenever the engine has been silent for a while."""


class ResponseCompleted(Lifecycle, tag="response.completed"):
    """The last event: all that was asked for is there."""


class ResponseIncomplete(Lifecycle, tag="response.incomplete"):
    """The last event: it ended early. ``response.incomplete_details`` says why."""


class ResponseFailed(Lifecycle, tag="response.failed"):
    """The last event: it broke after it had begun. ``response.error`` says why."""


class OutputItemAdded(ServerEvent, tag="response.output_item.added", gc=True):
    """An item begins, still empty."""

    output_index: int
    """Its place in the response's ``output``."""
    item: OutputItem


class OutputItemDone(ServerEvent, tag="response.output_item.done", gc=True):
    """An item is whole. In the response's ``output`` it stands exactly so."""

    output_index: int
    """Its place in the response's ``output``."""
    item: OutputItem


class WithinItem(ServerEvent):
    """Of one item."""

    item_id: str
    output_index: int
    """The item's place in the response's ``output``."""


class WithinPart(WithinItem):
    """Of one part of an item."""

    content_index: int
    """The part's place in the item's ``content``."""


class ContentPartAdded(WithinPart, tag="response.content_part.added", gc=True):
    """A part of an item begins, still empty."""

    part: OutputPart


class ContentPartDone(WithinPart, tag="response.content_part.done", gc=True):
    """A part is whole. In the item it stands exactly so."""

    part: OutputPart


class OutputTextDelta(WithinPart, tag="response.output_text.delta"):
    """A piece of text."""

    delta: str
    logprobs: TokenLogprobs = ()


class OutputTextDone(WithinPart, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: TokenLogprobs = ()


class OutputTextAnnotationAdded(WithinPart, tag="response.output_text.annotation.added", gc=True):
    """A note on the text, as of a page that it names and a search of this response has found."""

    annotation_index: int
    """Its place in the part's ``annotations``."""
    annotation: JsonObject
    """Of type ``url_citation``; those of an upstream are as it says them."""


class RefusalDelta(WithinPart, tag="response.refusal.delta"):
    """A piece of the text with which the model declines."""

    delta: str


class RefusalDone(WithinPart, tag="response.refusal.done"):
    """The whole text with which the model declined."""

    refusal: str


class ReasoningTextDelta(WithinPart, tag="response.reasoning_text.delta"):
    """A piece of raw reasoning."""

    delta: str


class ReasoningTextDone(WithinPart, tag="response.reasoning_text.done"):
    """The whole raw reasoning."""

    text: str


class WithinSummary(WithinItem):
    """Of one part of a reasoning item's summary."""

    summary_index: int
    """The part's place in the item's ``summary``."""


class ReasoningSummaryPartAdded(WithinSummary, tag="response.reasoning_summary_part.added", gc=True):
    """A part of a summary begins, still empty."""

    part: SummaryPart


class ReasoningSummaryPartDone(WithinSummary, tag="response.reasoning_summary_part.done", gc=True):
    """A part of a summary is whole."""

    part: SummaryPart
    status: str | UnsetType = UNSET
    """There, and ``incomplete``, only if the reasoning was cut off."""


class ReasoningSummaryTextDelta(WithinSummary, tag="response.reasoning_summary_text.delta"):
    """A piece of a summary."""

    delta: str


class ReasoningSummaryTextDone(WithinSummary, tag="response.reasoning_summary_text.done"):
    """The whole text of a summary's part."""

    text: str


class ResponseCompactionCompacting(WithinItem, tag="response.compaction.compacting"):
    """The model is asked for a summary; of that the client sees nothing."""


class FunctionCallArgumentsDelta(WithinItem, tag="response.function_call_arguments.delta"):
    """A piece of a call's arguments."""

    delta: str


class FunctionCallArgumentsDone(WithinItem, tag="response.function_call_arguments.done"):
    """The whole arguments of a call, JSON as the model wrote it."""

    arguments: str


class CustomToolCallInputDelta(WithinItem, tag="response.custom_tool_call_input.delta"):
    """A piece of a custom tool's input."""

    delta: str


class CustomToolCallInputDone(WithinItem, tag="response.custom_tool_call_input.done"):
    """The whole input of a custom tool."""

    input: str


class McpCallArgumentsDelta(WithinItem, tag="response.mcp_call_arguments.delta"):
    """A piece of the arguments of a call that is run here."""

    delta: str


class McpCallArgumentsDone(WithinItem, tag="response.mcp_call_arguments.done"):
    """The whole arguments of a call that is run here, JSON as the model wrote it."""

    arguments: str


class McpCallInProgress(WithinItem, tag="response.mcp_call.in_progress"):
    """The model calls a tool of an MCP server."""


class McpCallCompleted(WithinItem, tag="response.mcp_call.completed"):
    """The server has answered."""


class McpCallFailed(WithinItem, tag="response.mcp_call.failed"):
    """The server has answered with an error, or not at all; the model is told so."""


class McpListToolsInProgress(WithinItem, tag="response.mcp_list_tools.in_progress"):
    """An MCP server is asked for its tools."""


class McpListToolsCompleted(WithinItem, tag="response.mcp_list_tools.completed"):
    """The server has told its tools."""


class McpListToolsFailed(WithinItem, tag="response.mcp_list_tools.failed"):
    """The server has not told its tools; the response goes on without them."""


class WebSearchCallInProgress(WithinItem, tag="response.web_search_call.in_progress"):
    """The model wants something looked up."""


class WebSearchCallSearching(WithinItem, tag="response.web_search_call.searching"):
    """The search runs."""


class WebSearchCallCompleted(WithinItem, tag="response.web_search_call.completed"):
    """The search has ended."""


class FileSearchCallInProgress(WithinItem, tag="response.file_search_call.in_progress"):
    """The model wants something looked up in files."""


class FileSearchCallSearching(WithinItem, tag="response.file_search_call.searching"):
    """The search runs."""


class FileSearchCallCompleted(WithinItem, tag="response.file_search_call.completed"):
    """The search has ended."""


class SteerAccepted(ServerEvent, tag="response.steer.accepted", gc=True):
    """A steer was taken. Numbered within the response that it steers."""

    steer: Annotated[JsonObject, shape("AcceptedSteer")]


class SteerPending(ServerEvent, tag="response.steer.pending", gc=True):
    """The response has ended with calls open: the steer goes before the next explicit create that continues it."""

    steer: Annotated[JsonObject, shape("AcceptedSteer")]
    reason: str
    """``waiting_for_required_input``."""
    required_input: list[Annotated[JsonObject, shape("RequiredInput")]]


class ResponseDone(ServerEvent, tag="response.done", gc=True):
    """Our one-long-response extension: a sampling step has ended with calls, and the response waits for outputs."""

    response_id: str
    reason: str
    """``waiting_for_append``."""
    required: list[Annotated[JsonObject, shape("RequiredInput")]]


class SteerFailed(ServerEvent, tag="response.steer.failed", gc=True):
    """A steer was not taken, or came to nothing. The input comes back, so that the client can send it again."""

    steer: Annotated[JsonObject, shape("ReturnedSteer")]
    error: Annotated[JsonObject, shape("SteerError")]


_PROGRESS: dict[str, type[WithinItem]] = {
    str(event.__struct_config__.tag): event
    for event in (
        *(McpCallInProgress, McpCallCompleted, McpCallFailed),
        *(McpListToolsInProgress, McpListToolsCompleted, McpListToolsFailed),
        *(WebSearchCallInProgress, WebSearchCallSearching, WebSearchCallCompleted),
        *(FileSearchCallInProgress, FileSearchCallSearching, FileSearchCallCompleted),
    )
}


def progress_event(item_type: str, word: str) -> type[WithinItem] | None:
    """The event that says ``word`` (``in_progress``, ``searching``, …) of a hosted tool's item; None: there is none."""
    return _PROGRESS.get(f"response.{item_type}.{word}")


_encode = msgspec.json.Encoder().encode


def encode(event: ServerEvent) -> str:
    """The frame of an event."""
    return _encode(event).decode()


def encode_response(response: JsonObject) -> Raw:
    """A Response as the lifecycle events carry it, encoded once for several of them."""
    return Raw(_encode(response))


def terminal_event(response: JsonObject) -> type[ResponseCompleted] | type[ResponseFailed] | type[ResponseIncomplete]:
    """The event that ends this response, by its status.

    A cancelled one is told as ``response.incomplete``: the official union has no event for it, clients stop at this
    one, and the Response in it says ``cancelled``.
    """
    if response["status"] == "completed":
        return ResponseCompleted
    return ResponseFailed if response["status"] == "failed" else ResponseIncomplete


TERMINAL = frozenset({"response.completed", "response.failed", "response.incomplete"})
"""Types of the events that end a response."""


def event_type(frame: str) -> str:
    """The ``type`` of an encoded event, without decoding it: it always comes first."""
    return frame[9 : frame.index('"', 9)]


def sse(frame: str) -> bytes:
    """An SSE event whose payload is exactly the frame. ``\\n`` only, whole event in one chunk, no ``id``.

    Source: the framing that the strictest known client parser accepts.
    """
    return f"event: {event_type(frame)}\ndata: {frame}\n\n".encode()


SSE_DONE = b"data: [DONE]\n\n"
SSE_KEEP_ALIVE = b": still there\n\n"
"""A comment: clients skip it, proxies see that the connection lives."""
