"""The HTTP routes as data: what goes in and what comes out of every method of every URL.

A new route is one entry here; a test compares these entries to ``urls.py``.
"""

from typing import Literal

import msgspec

from responses_ws.protocol.compaction import CompactRequest
from responses_ws.protocol.conversations import NewConversation, NewItems, NewMetadata
from responses_ws.protocol.errors import (
    ApiError,
    Conflict,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
)
from responses_ws.protocol.object_shapes import (
    CompactedResponse,
    Conversation,
    ConversationListQuery,
    CreateHeaders,
    DeletedConversation,
    DeletedResponse,
    IncludeQuery,
    InputTokens,
    ItemList,
    ListQuery,
    Model,
    ModelList,
    Response,
    RetrieveQuery,
)
from responses_ws.protocol.request import Request
from responses_ws.protocol.usage_shapes import CostsPage, CostsQuery, RecordsQuery, UsagePage, UsageQuery


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one URL."""

    url: str
    """Its name in ``urls.py``."""
    method: Literal["get", "post", "delete"]
    path: str
    """Below the API's own prefix, ids in braces."""
    tag: str
    """The heading under which it is shown."""
    summary: str
    answer: type[msgspec.Struct] | None = None
    """The body of a 200; None: no object of ours."""
    media_type: str = "application/json"
    streams: bool = False
    """With ``stream``, the answer is server-sent events."""
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    headers: type[msgspec.Struct] | None = None
    """Those of its own. Whatever has a body may be compressed."""
    errors: tuple[type[ApiError], ...] = ()
    """Beside those that any route may give: 401 and 500; and 413 and 415 where there is a body."""
    needs_key: bool = True
    key: Literal["key", "admin_key"] = "key"
    """Which kind of key it needs."""


OPERATIONS = (
    Operation(
        url="responses",
        method="post",
        path="/responses",
        tag="Responses",
        summary="Create a response: as one JSON body or, with `stream`, as server-sent events.",
        headers=CreateHeaders,
        body=Request,
        answer=Response,
        streams=True,
        errors=(
            InvalidRequest,
            NotFound,
            Conflict,
            RateLimited,
            Overloaded,
        ),
    ),
    Operation(
        url="compact",
        method="post",
        path="/responses/compact",
        tag="Responses",
        summary="Compact a context: everything but the messages of the user, in one sealed item.",
        body=CompactRequest,
        answer=CompactedResponse,
        errors=(InvalidRequest, NotFound, RateLimited, Overloaded),
    ),
    Operation(
        url="response",
        method="get",
        path="/responses/{response_id}",
        tag="Responses",
        summary="A stored response, as it is; or, of a background response made with `stream`, its events again.",
        query=RetrieveQuery,
        answer=Response,
        streams=True,
        errors=(InvalidRequest, NotFound),
    ),
    Operation(
        url="response",
        method="delete",
        path="/responses/{response_id}",
        tag="Responses",
        summary="Delete a response and everything that was continued from it.",
        answer=DeletedResponse,
        errors=(NotFound,),
    ),
    Operation(
        url="cancel",
        method="post",
        path="/responses/{response_id}/cancel",
        tag="Responses",
        summary="Cancel a background response that has not ended.",
        answer=Response,
        errors=(InvalidRequest, NotFound),
    ),
    Operation(
        url="input_items",
        method="get",
        path="/responses/{response_id}/input_items",
        tag="Responses",
        summary="The context that a response was made from.",
        query=ListQuery,
        answer=ItemList,
        errors=(InvalidRequest, NotFound),
    ),
    Operation(
        url="input_tokens",
        method="post",
        path="/responses/input_tokens",
        tag="Responses",
        summary="How many tokens the input of such a request has. Neither model nor input is needed.",
        body=Request,
        answer=InputTokens,
        errors=(InvalidRequest, NotFound),
    ),
    Operation(
        url="conversations",
        method="post",
        path="/conversations",
        tag="Conversations",
        summary="Begin a conversation, with up to 20 items.",
        body=NewConversation,
        answer=Conversation,
        errors=(InvalidRequest,),
    ),
    Operation(
        url="conversation",
        method="get",
        path="/conversations/{conversation_id}",
        tag="Conversations",
        summary="A conversation, without its items.",
        answer=Conversation,
        errors=(NotFound,),
    ),
    Operation(
        url="conversation",
        method="post",
        path="/conversations/{conversation_id}",
        tag="Conversations",
        summary="Give it other metadata.",
        body=NewMetadata,
        answer=Conversation,
        errors=(InvalidRequest, NotFound),
    ),
    Operation(
        url="conversation",
        method="delete",
        path="/conversations/{conversation_id}",
        tag="Conversations",
        summary="Delete a conversation. Its items can still be referred to.",
        answer=DeletedConversation,
        errors=(InvalidRequest, NotFound),
    ),
    Operation(
        url="conversation_items",
        method="get",
        path="/conversations/{conversation_id}/items",
        tag="Conversations",
        summary="Its items.",
        query=ConversationListQuery,
        answer=ItemList,
        errors=(InvalidRequest, NotFound),
    ),
    Operation(
        url="conversation_items",
        method="post",
        path="/conversations/{conversation_id}/items",
        tag="Conversations",
        summary="Add up to 20 items.",
        query=IncludeQuery,
        body=NewItems,
        answer=ItemList,
        errors=(InvalidRequest, NotFound),
    ),
    Operation(
        url="conversation_item",
        method="get",
        path="/conversations/{conversation_id}/items/{item_id}",
        tag="Conversations",
        summary="One of its items.",
        query=IncludeQuery,
        errors=(NotFound,),
    ),
    Operation(
        url="conversation_item",
        method="delete",
        path="/conversations/{conversation_id}/items/{item_id}",
        tag="Conversations",
        summary="Delete an item; the answer is the conversation.",
        answer=Conversation,
        errors=(InvalidRequest, NotFound),
    ),
    Operation(
        url="models",
        method="get",
        path="/models",
        tag="Models",
        summary="All models that this key may use.",
        answer=ModelList,
    ),
    Operation(
        url="model",
        method="get",
        path="/models/{model}",
        tag="Models",
        summary="One model.",
        answer=Model,
        errors=(NotFound,),
    ),
    Operation(
        url="usage",
        method="get",
        path="/organization/usage/completions",
        tag="Organization",
        summary="What the organization has used, by the minute, hour or day.",
        query=UsageQuery,
        answer=UsagePage,
        errors=(InvalidRequest, PermissionDenied),
        key="admin_key",
    ),
    Operation(
        url="usage_records",
        method="get",
        path="/organization/usage/records.csv",
        tag="Organization",
        summary="What the organization has used and was charged, a line a response.",
        query=RecordsQuery,
        media_type="text/csv",
        errors=(InvalidRequest, PermissionDenied),
        key="admin_key",
    ),
    Operation(
        url="costs",
        method="get",
        path="/organization/costs",
        tag="Organization",
        summary="What the organization was charged, by the day.",
        query=CostsQuery,
        answer=CostsPage,
        errors=(InvalidRequest, PermissionDenied),
        key="admin_key",
    ),
    Operation(
        url="openapi",
        method="get",
        path="/openapi.json",
        tag="Documents",
        summary="This API over HTTP, as an OpenAPI document.",
        needs_key=False,
    ),
    Operation(
        url="asyncapi",
        method="get",
        path="/asyncapi.json",
        tag="Documents",
        summary="This API over WebSocket, as an AsyncAPI document.",
        needs_key=False,
    ),
    Operation(
        url="docs",
        method="get",
        path="/docs",
        tag="Documents",
        summary="Both documents as a page for people.",
        media_type="text/html",
        needs_key=False,
    ),
)
