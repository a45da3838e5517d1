"""The shapes of the objects we answer with: the Response, errors, lists."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from .shapes import shape

JsonObject = dict[str, Any]

UnixSeconds = Annotated[int, Meta(ge=0)]
TokenCount = Annotated[int, Meta(ge=0)]


class InputTokensDetails(Struct, kw_only=True):
    """Parts of ``input_tokens``, not beside them."""

    cached_tokens: TokenCount
    """Read from the engine's prefix cache."""
    cache_write_tokens: TokenCount
    """Written to a paid cache."""


class OutputTokensDetails(Struct, kw_only=True):
    """Parts of ``output_tokens``, not beside them."""

    reasoning_tokens: TokenCount


class ResponseUsage(Struct, kw_only=True):
    """What a response consumed, in tokens."""

    input_tokens: TokenCount
    """The whole context, not only what this request sent."""
    input_tokens_details: InputTokensDetails
    output_tokens: TokenCount
    output_tokens_details: OutputTokensDetails
    total_tokens: TokenCount


class ResponseError(Struct, kw_only=True):
    """Why a response failed after it had begun."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(Struct, kw_only=True):
    """Why a response ended early."""

    reason: str
    """``max_output_tokens``, ``content_filter``, ``steered`` or ``append_timeout``."""


class EchoedReasoning(Struct, kw_only=True):
    """The request's ``reasoning``, both keys always there."""

    effort: str | None
    summary: str | None


class EchoedText(Struct, kw_only=True):
    """The request's ``text``, defaults filled in."""

    format: Annotated[JsonObject, shape("TextFormat")]
    verbosity: Literal["low", "medium", "high"]


class ConversationId(Struct, kw_only=True):
    """The conversation that a response was made on."""

    id: str


class StoredPrompt(Struct, kw_only=True):
    """A prompt template, and values for its variables: all of them, and no others."""

    id: str
    version: str | None = None
    """A published one; the template's default where it is left out."""
    variables: dict[str, str | Annotated[JsonObject, shape("InputPart")]] | None = None


class UsedPrompt(Struct, kw_only=True):
    """The stored prompt that a response was made with."""

    id: str
    version: str
    """The one used, where the request named none too."""
    variables: dict[str, str | Annotated[JsonObject, shape("InputPart")]] | None | UnsetType = UNSET


class ModerationResult(Struct, kw_only=True, tag_field="type", tag="moderation_result"):
    """What a moderation model says of one side."""

    model: str
    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text", "image"]]]


class ModerationError(Struct, kw_only=True, tag_field="type", tag="error"):
    """Why one side was not looked at."""

    code: str
    """``moderation_unavailable``, or ``no_output``."""
    message: str


class Moderation(Struct, kw_only=True):
    """What the moderation model that a request named says of both sides."""

    input: ModerationResult | ModerationError
    output: ModerationResult | ModerationError


class Response(Struct, kw_only=True):
    """One answer of a model: what was asked for, and what came of it. All keys but the last three are always there."""

    id: str
    object: Literal["response"]
    created_at: UnixSeconds
    completed_at: UnixSeconds | None
    """Only of a completed one."""
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | list[Annotated[JsonObject, shape("InputItem")]] | None
    """With a stored prompt that has messages: all of what stands before the context."""
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    """The name that the client used."""
    output: list[Annotated[JsonObject, shape("OutputItem", "AppendedItem")]]
    """Grows by whole items: empty in the first events."""
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    presence_penalty: float
    frequency_penalty: float
    reasoning: EchoedReasoning
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: EchoedText
    tool_choice: Literal["auto", "none", "required"] | Annotated[JsonObject, shape("ToolChoice")]
    tools: list[Annotated[JsonObject, shape("EchoedTool")]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    """Null until the response has ended."""
    user: str | None
    metadata: dict[str, str]
    conversation: ConversationId | UnsetType = UNSET
    """There only if it was made on one."""
    prompt: UsedPrompt | UnsetType = UNSET
    """There only if the request named one."""
    moderation: Moderation | None | UnsetType = UNSET
    """There only if the request asked for it; null until the response has ended."""


class CompactedResponse(Struct, kw_only=True):
    """A context made short: the whole input of a conversation that goes on from there."""

    id: str
    object: Literal["response.compaction"]
    created_at: UnixSeconds
    output: list[Annotated[JsonObject, shape("CompactedItem")]]
    """The messages of the user, then one compaction item."""
    usage: ResponseUsage
    """Of the model's summary; zero where none was needed."""


class CompressionHeader(Struct, kw_only=True, rename={"content_encoding": "Content-Encoding"}):
    """The header of a request with a body."""

    content_encoding: Literal["zstd", "gzip", "deflate", "identity"] | None = None
    """How the body is compressed."""


class CreateHeaders(Struct, kw_only=True, rename={"idempotency_key": "Idempotency-Key"}):
    """The headers of a request that creates a response."""

    idempotency_key: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """The same request sent twice under one key has one response, for 24 hours."""


class DeletedResponse(Struct, kw_only=True):
    """That a response, and what was continued from it, is gone."""

    id: str
    object: Literal["response"]
    deleted: bool


class RetrieveQuery(Struct, kw_only=True):
    """How to be told of a response."""

    stream: bool = False
    """As server-sent events, from the first one on, and then live."""
    starting_after: Annotated[int, Meta(ge=0)] | None = None
    """With ``stream``: the ``sequence_number`` of the last event that was seen."""


class ListQuery(Struct, kw_only=True):
    """The query of a list."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    """Objects in one answer."""
    order: Literal["asc", "desc"] = "desc"
    """By time: ``desc`` is newest first."""
    after: str | None = None
    """The id of the last object of the page before."""


class ItemList(Struct, kw_only=True):
    """Items, a page of them."""

    object: Literal["list"]
    data: list[Annotated[JsonObject, shape("InputItem")]]
    """Each with an ``id``; messages in full form."""
    first_id: str | None
    last_id: str | None
    """The ``after`` of the next page."""
    has_more: bool


class ConversationListQuery(ListQuery, kw_only=True):
    """The query of a conversation's items."""

    include: list[str] | None = None
    """``reasoning.encrypted_content`` is served; other words are ignored."""


class IncludeQuery(Struct, kw_only=True):
    """What more to tell of an item."""

    include: list[str] | None = None
    """``reasoning.encrypted_content`` is served; other words are ignored."""


class Conversation(Struct, kw_only=True):
    """Items that a client keeps here, under one id."""

    id: str
    object: Literal["conversation"]
    created_at: UnixSeconds
    metadata: dict[str, str]


class DeletedConversation(Struct, kw_only=True):
    """That a conversation is gone. Its items can still be referred to."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


class InputTokens(Struct, kw_only=True):
    """How many tokens the input of such a request has."""

    object: Literal["response.input_tokens"]
    input_tokens: TokenCount


class Model(Struct, kw_only=True):
    """A model that this key may use."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    """The engine that serves it."""


class ModelList(Struct, kw_only=True):
    """All models that this key may use."""

    object: Literal["list"]
    data: list[Model]


class ErrorObject(Struct, kw_only=True):
    """What went wrong. All four keys are always there."""

    message: str
    """For people. Names the offending value."""
    type: str
    """``invalid_request_error``, ``rate_limit_error``, ``service_unavailable_error``, ``server_error``."""
    param: str | None
    """The field of the request, as ``input[3].role``."""
    code: str | None
    """For programs; see the protocol reference."""


class ErrorBody(Struct, kw_only=True):
    """An error over HTTP."""

    error: ErrorObject


class SocketErrorObject(ErrorObject, kw_only=True):
    """What went wrong, on a socket: ``code`` is always a string."""

    code: str
    """For programs; see the protocol reference."""
    headers: dict[str, str] | UnsetType = UNSET


class Error(Struct, kw_only=True, tag_field="type", tag="error"):
    """A request was refused before it became a response. The socket stays open."""

    sequence_number: int
    status: int
    """As an HTTP status would be."""
    error: SocketErrorObject
    headers: dict[str, str] | UnsetType = UNSET
    """When to come back, if the engine said so: ``retry-after`` and the like."""
    stream_id: str | UnsetType = UNSET
    """The lane's name; absent on the default lane."""


class AcceptedSteer(Struct, kw_only=True):
    """A steer that was taken."""

    id: str
    previous_response_id: str


class ReturnedSteer(Struct, kw_only=True):
    """A steer that comes back."""

    previous_response_id: str
    input: str | list[JsonObject]
    """As it was sent, right or wrong; each item with a ``type``."""
    id: str | UnsetType = UNSET
    """There if it had been accepted."""


class SteerError(Struct, kw_only=True):
    """Why a steer came back."""

    type: Literal["invalid_request_error"]
    code: str
    """``response_not_found``, ``response_already_completed``, ``response_not_active``, ``invalid_input``,
    ``too_many_pending_steers`` or ``successor_creation_failed``."""
    message: str
