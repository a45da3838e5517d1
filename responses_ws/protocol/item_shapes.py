"""The shapes of items and their parts: as clients may send them, and as we send them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from .shapes import OneOf, shape

JsonObject = dict[str, Any]

ItemId = Annotated[str, Meta(max_length=128, pattern=r"^[^\0]*$")]
DataUrl = Annotated[str, Meta(pattern="^data:")]
ImageUrl = Annotated[str, Meta(pattern="^data:image/(png|jpeg|jpg|gif|webp);base64,.")]
InputParts = list[Annotated[JsonObject, shape("InputPart")]]


class InputText(Struct, kw_only=True, tag_field="type", tag="input_text"):
    """Text."""

    text: str


class InputImage(Struct, kw_only=True, tag_field="type", tag="input_image"):
    """An image, as a data URL: PNG, JPEG, GIF or WebP."""

    image_url: ImageUrl
    detail: str | None = None
    """``low``, ``high`` or ``auto``."""


class InputFile(Struct, kw_only=True, tag_field="type", tag="input_file"):
    """A file, with its content."""

    file_data: str | None = None
    file_url: DataUrl | None = None
    filename: str | None = None


class InputOutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    """What a model said earlier."""

    text: str
    annotations: list[JsonObject] | None = None


class InputRefusal(Struct, kw_only=True, tag_field="type", tag="refusal"):
    """What a model declined earlier."""

    refusal: str


class InputReasoningText(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """What a model thought earlier."""

    text: str


_KNOWN_PARTS = ["input_text", "input_image", "input_file", "output_text", "refusal", "reasoning_text"]


class OtherPart(Struct, kw_only=True):
    """A part of any other type: kept, and not shown to a chat engine."""

    type: Annotated[str, Meta(extra_json_schema={"not": {"enum": _KNOWN_PARTS}})]


InputPart = OneOf(
    "A part of a message or of an output, as clients send it.",
    *(InputText, InputImage, InputFile, InputOutputText, InputRefusal, InputReasoningText, OtherPart),
)


class InputMessage(Struct, kw_only=True):
    """Something that somebody said."""

    type: Literal["message"] | None = None
    """May be left out."""
    role: Literal["user", "assistant", "system", "developer"]
    content: str | InputParts
    id: ItemId | None = None
    status: str | None = None
    phase: str | None = None
    """Of an assistant's message: ``commentary`` or ``final_answer``."""


class InputFunctionCall(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call that a model made."""

    call_id: str
    """Pairs the call with its output. Not ``id``."""
    name: str
    arguments: str
    """JSON, as the model wrote it."""
    namespace: str | None = None
    id: ItemId | None = None
    status: str | None = None


class InputFunctionCallOutput(Struct, kw_only=True, tag_field="type", tag="function_call_output"):
    """What a call gave. Refused where its call is not in the context so far."""

    call_id: str
    output: str | InputParts
    id: ItemId | None = None
    status: str | None = None


class InputCustomToolCall(Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool that a model made."""

    call_id: str
    name: str
    input: str
    """Free text, as the model wrote it."""
    namespace: str | None = None
    id: ItemId | None = None
    status: str | None = None


class InputCustomToolCallOutput(Struct, kw_only=True, tag_field="type", tag="custom_tool_call_output"):
    """What a call of a custom tool gave."""

    call_id: str
    output: str | InputParts
    id: ItemId | None = None
    status: str | None = None


class ListedTool(Struct, kw_only=True):
    """A tool of an MCP server."""

    name: str
    input_schema: JsonObject
    """JSON Schema of the arguments."""
    description: str | UnsetType = UNSET
    annotations: JsonObject | UnsetType = UNSET
    """What the server says of it, as ``readOnlyHint``."""


class McpListTools(Struct, kw_only=True, tag_field="type", tag="mcp_list_tools"):
    """The tools that an MCP server offers. As long as it is in the context, the server is not asked again."""

    id: str
    server_label: str
    tools: list[ListedTool]
    error: str | UnsetType = UNSET
    """There where the server could not be asked."""


class McpApprovalRequest(Struct, kw_only=True, tag_field="type", tag="mcp_approval_request"):
    """A call that the model wants to make, and that somebody has to allow first."""

    id: str
    server_label: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class McpApprovalResponse(Struct, kw_only=True, tag_field="type", tag="mcp_approval_response"):
    """Allows a call, or not. Wanted before the model goes on, as the output of a call is."""

    approval_request_id: str
    approve: bool
    reason: str | None = None
    id: ItemId | None = None


HostedStatus = Literal["in_progress", "searching", "completed", "incomplete", "failed"]


class McpCall(Struct, kw_only=True, tag_field="type", tag="mcp_call"):
    """A call of an MCP server's tool, which was run here."""

    id: str
    server_label: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""
    approval_request_id: str | UnsetType = UNSET
    """There where the call had to be allowed."""
    output: str | UnsetType = UNSET
    error: JsonObject | UnsetType = UNSET
    """``{type: "mcp_tool_execution_error", content}``; or ``{type, code, message}`` with the type
    ``mcp_protocol_error`` or ``http_error``."""
    status: HostedStatus


class UrlSource(Struct, kw_only=True, tag_field="type", tag="url"):
    """A page that a search has found."""

    url: str


class SearchAction(Struct, kw_only=True, tag_field="type", tag="search"):
    """What was looked for."""

    query: str
    queries: list[str] | UnsetType = UNSET
    sources: list[UrlSource] | UnsetType = UNSET
    """There if ``include`` asks for ``web_search_call.action.sources``."""


class WebSearchCall(Struct, kw_only=True, tag_field="type", tag="web_search_call"):
    """A search in the web, which was run here."""

    id: str
    action: SearchAction
    status: HostedStatus


class FileSearchResult(Struct, kw_only=True):
    """A passage that a search in files has found."""

    file_id: str
    filename: str
    score: float
    """Between 0 and 1."""
    text: str
    attributes: JsonObject | UnsetType = UNSET


class FileSearchCall(Struct, kw_only=True, tag_field="type", tag="file_search_call"):
    """A search in files, which was run here."""

    id: str
    queries: list[str]
    results: list[FileSearchResult] | UnsetType = UNSET
    """There if ``include`` asks for ``file_search_call.results``."""
    status: HostedStatus


class InputReasoning(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What a model thought before. Its text, or what is sealed, goes back to the model that thought it."""

    summary: list[JsonObject] | None = None
    content: InputParts | None = None
    encrypted_content: str | None = None
    """As it came. Refused where it does not open."""
    id: ItemId | None = None
    status: str | None = None


class InputCompaction(Struct, kw_only=True, tag_field="type", tag="compaction"):
    """A context that was compacted before: it takes the place of what stands before it."""

    encrypted_content: str
    """As it came. Refused where it does not open."""
    id: ItemId | None = None


class CompactionTrigger(Struct, kw_only=True, tag_field="type", tag="compaction_trigger"):
    """Compact the context, and answer with nothing else. The last item of an input."""

    id: ItemId | None = None


class ItemReference(Struct, kw_only=True):
    """Stands for an item that the server has already."""

    type: Literal["item_reference"] | None = None
    """May be left out."""
    id: ItemId


class UpdatedText(Struct, kw_only=True):
    """``text``, for the rest of the chain."""

    format: Annotated[JsonObject, shape("TextFormat")] | None = None


class UpdatedReasoning(Struct, kw_only=True):
    """``reasoning``, for the rest of the chain."""

    effort: str | None = None


class ConfigurationUpdate(Struct, kw_only=True, tag_field="type", tag="configuration_update"):
    """Settings for this response and those after it in the chain, as far as they do not say so themselves."""

    reasoning: UpdatedReasoning | None = None
    text: UpdatedText | None = None
    id: ItemId | None = None


class AdditionalTools(Struct, kw_only=True, tag_field="type", tag="additional_tools"):
    """Tools for this response and those after it in the chain, beside those that they bring themselves."""

    tools: list[Annotated[JsonObject, shape("Tool")]]
    role: str | None = None
    id: ItemId | None = None


_KNOWN_ITEMS = [
    *("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"),
    *("compaction", "compaction_trigger"),
    *("item_reference", "configuration_update", "additional_tools"),
    *("mcp_approval_request", "mcp_approval_response"),
]


class OtherItem(Struct, kw_only=True):
    """An item of any other type, calls of hosted tools among them: kept and given back as it is."""

    type: Annotated[str, Meta(min_length=1, extra_json_schema={"not": {"enum": _KNOWN_ITEMS}})]
    id: ItemId | None = None


InputItem = OneOf(
    "A unit of context, as clients send it. Items survive whole, with fields that we do not know.",
    InputMessage,
    *(InputFunctionCall, InputFunctionCallOutput, InputCustomToolCall, InputCustomToolCallOutput),
    *(InputReasoning, InputCompaction, CompactionTrigger),
    *(McpApprovalRequest, McpApprovalResponse),
    *(ItemReference, ConfigurationUpdate, AdditionalTools, OtherItem),
)


class UserMessage(Struct, kw_only=True):
    """What a user said."""

    type: Literal["message"] | None = None
    """May be left out."""
    role: Literal["user"]
    content: str | InputParts
    id: ItemId | None = None


class TopLogprob(Struct, kw_only=True):
    """A token that could have stood there."""

    token: str
    logprob: float
    bytes: list[int] | UnsetType = UNSET
    """In parts only, not in the events of pieces."""


class TokenLogprob(TopLogprob, kw_only=True):
    """A token of the text, and how sure the model was of it."""

    top_logprobs: list[TopLogprob]


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    """Text that a model made."""

    text: str
    annotations: list[JsonObject]
    logprobs: list[Annotated[JsonObject, shape("TokenLogprob")]]


class Refusal(Struct, kw_only=True, tag_field="type", tag="refusal"):
    """Text with which a model declined. The response is ``completed`` all the same."""

    refusal: str


class ReasoningText(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """Raw reasoning of an open model."""

    text: str


class SummaryText(Struct, kw_only=True, tag_field="type", tag="summary_text"):
    """A summary of reasoning, or a part of one."""

    text: str


MessagePart = OneOf("A part of a model's message.", OutputText, Refusal)
OutputPart = OneOf("A part of an item that a model made.", OutputText, Refusal, ReasoningText)

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputMessage(Struct, kw_only=True, tag_field="type", tag="message"):
    """What a model said."""

    id: str
    role: Literal["assistant"]
    status: ItemStatus
    content: list[Annotated[JsonObject, shape("MessagePart")]]


class OutputReasoning(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What a model thought before it spoke."""

    id: str
    summary: list[SummaryText]
    """What was asked for by ``reasoning.summary``."""
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET
    """The reasoning, sealed: there if ``include`` asks for ``reasoning.encrypted_content``. Send it back as it is."""
    status: ItemStatus | UnsetType = UNSET
    """There only where it was cut off."""


class OutputFunctionCall(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call that the client should run, and answer by its ``call_id``."""

    id: str
    call_id: str
    """Pairs the call with its output. Not ``id``."""
    name: str
    arguments: str
    """JSON, as the model wrote it."""
    namespace: str | UnsetType = UNSET
    """Of the tool, where it was given in one."""
    status: ItemStatus


class OutputCustomToolCall(Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool: its input is free text."""

    id: str
    call_id: str
    """Pairs the call with its output. Not ``id``."""
    name: str
    input: str
    namespace: str | UnsetType = UNSET
    status: ItemStatus


class OutputCompaction(Struct, kw_only=True, tag_field="type", tag="compaction"):
    """A compacted context: send it back in place of all that came before it."""

    id: str
    encrypted_content: str
    """Sealed. Empty while it is being made."""


CompactedItem = OneOf("What is left of a context that was compacted.", UserMessage, OutputCompaction)

# Others: what a Responses server that answers for us has made by itself, as of a hosted tool that it has run.
OutputItem = OneOf(
    "A unit of context, as a model made it. Send it back as it is.",
    *(OutputMessage, OutputReasoning, OutputFunctionCall, OutputCustomToolCall, OutputCompaction),
    *(McpListTools, McpApprovalRequest, McpCall, WebSearchCall, FileSearchCall, OtherItem),
)

AppendedItem = OneOf(
    "What a client appended to a response that waited.",
    *(UserMessage, InputFunctionCallOutput, InputCustomToolCallOutput, McpApprovalResponse),
)


class FunctionCallOutputStub(Struct, kw_only=True, tag_field="type", tag="function_call_output"):
    """The output of this call is wanted."""

    call_id: str
    name: str


class CustomToolCallOutputStub(Struct, kw_only=True, tag_field="type", tag="custom_tool_call_output"):
    """The output of this call of a custom tool is wanted."""

    call_id: str


class McpApprovalResponseStub(Struct, kw_only=True, tag_field="type", tag="mcp_approval_response"):
    """The answer to this approval request is wanted."""

    approval_request_id: str


RequiredInput = OneOf(
    "What a response waits for.", FunctionCallOutputStub, CustomToolCallOutputStub, McpApprovalResponseStub
)
