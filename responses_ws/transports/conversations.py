"""The conversations endpoints."""

from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse

from responses_ws.conf import app_settings
from responses_ws.models import Conversation
from responses_ws.protocol.conversations import conversation_object, decode_items, decode_metadata, decode_new
from responses_ws.protocol.errors import ConversationNotFound, NotFound
from responses_ws.protocol.ids import is_well_formed
from responses_ws.protocol.items import Item, check_media_sizes, input_items, listed
from responses_ws.protocol.request import nothing_is_kept
from responses_ws.runtime import dbpool
from responses_ws.runtime.ids import new_id
from responses_ws.serving.admission import Principal
from responses_ws.serving.conversations import find_conversation
from responses_ws.serving.references import resolved
from responses_ws.serving.safety import screened
from responses_ws.serving.sealed import opened_input
from responses_ws.stores import conversations

from .base import ApiView, principal_of
from .bodies import read_body
from .exceptions import json_response
from .pages import list_object, no_such_item, page_asked

MAX_ITEMS = 20
"""Items in one call. Source: OpenAI's conversations."""


class ConversationsView(ApiView):
    """``POST /v1/conversations``: ``{items?, metadata?}``."""

    async def post(self, request: HttpRequest) -> HttpResponse:
        principal = await _who_keeps(request)
        asked = decode_new(await read_body(request))
        conversation_id = new_id("conv")
        items = await _items(principal, asked.items or [], conversation_id)
        made = await dbpool.run(
            conversations.create, principal.project_id, conversation_id, asked.metadata or {}, items
        )
        return json_response(_shown(made))


class ConversationView(ApiView):
    """``GET``, ``POST`` (new metadata) and ``DELETE /v1/conversations/{id}``. Its items outlive it."""

    async def get(self, request: HttpRequest, conversation_id: str) -> HttpResponse:
        project_id = (await principal_of(request)).project_id
        return json_response(_shown(await find_conversation(project_id, conversation_id)))

    async def post(self, request: HttpRequest, conversation_id: str) -> HttpResponse:
        project_id = (await _who_keeps(request)).project_id
        metadata = decode_metadata(await read_body(request)).metadata or {}
        found = await _run(conversations.set_metadata, project_id, conversation_id, metadata)
        return json_response(_shown(found))

    async def delete(self, request: HttpRequest, conversation_id: str) -> HttpResponse:
        project_id = (await principal_of(request)).project_id
        await _run(conversations.delete, project_id, conversation_id)
        return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


class ConversationItemsView(ApiView):
    """``GET`` and ``POST /v1/conversations/{id}/items``."""

    async def get(self, request: HttpRequest, conversation_id: str) -> HttpResponse:
        project_id = (await principal_of(request)).project_id
        asked = page_asked(request.GET)
        await find_conversation(project_id, conversation_id)
        page = await dbpool.run(conversations.page, project_id, conversation_id, **msgspec.structs.asdict(asked))
        if page is None:
            raise no_such_item(asked.after or "")
        items, has_more = page
        return json_response(list_object([_told(item, request) for item in items], has_more=has_more))

    async def post(self, request: HttpRequest, conversation_id: str) -> HttpResponse:
        principal = await _who_keeps(request)
        items = await _items(principal, decode_items(await read_body(request)).items, conversation_id)
        await _run(conversations.add, principal.project_id, conversation_id, items)
        return json_response(list_object([_told(item, request) for item in items], has_more=False))


class ConversationItemView(ApiView):
    """``GET`` and ``DELETE /v1/conversations/{id}/items/{item_id}``."""

    async def get(self, request: HttpRequest, conversation_id: str, item_id: str) -> HttpResponse:
        project_id = (await principal_of(request)).project_id
        await find_conversation(project_id, conversation_id)
        found = await dbpool.run(conversations.item, project_id, conversation_id, item_id)
        if found is None:
            raise _item_not_found(item_id)
        return json_response(_told(found, request))

    async def delete(self, request: HttpRequest, conversation_id: str, item_id: str) -> HttpResponse:
        project_id = (await principal_of(request)).project_id
        await find_conversation(project_id, conversation_id)
        left = await dbpool.run(conversations.delete_item, project_id, conversation_id, item_id)
        if left is None:
            raise _item_not_found(item_id)
        return json_response(_shown(left))


async def _who_keeps(request: HttpRequest) -> Principal:
    """Who is asking for something to be kept. Raises InvalidRequest for those that have asked for the contrary."""
    principal = await principal_of(request)
    if principal.zero_retention:
        raise nothing_is_kept("conversation")
    return principal


async def _items(principal: Principal, given: list[Item], conversation_id: str) -> list[Item]:
    project_id = principal.project_id
    items = input_items(given, new_id, max_items=MAX_ITEMS, within="items")
    limits = app_settings.limits
    check_media_sizes(
        items, max_image_bytes=limits.max_image_bytes, max_file_bytes=limits.max_file_bytes, within="items"
    )
    # What does not open is refused here: the conversation could not be used with it.
    opened_input(items, project_id=project_id, model=None, within="items")
    items = await screened(principal, items, added_to=conversation_id[:128])
    return await resolved(items, project_id=project_id)


async def _run(change: Any, project_id: int, conversation_id: str, *arguments: Any) -> Any:
    """What a change gave. Raises ConversationNotFound: for ids that cannot be ours without asking."""
    done = None
    if is_well_formed(conversation_id):
        done = await dbpool.run(change, project_id, conversation_id, *arguments)
    if not done:
        raise ConversationNotFound(conversation_id[:128])
    return done


def _shown(conversation: Conversation) -> dict[str, Any]:
    created_at = int(conversation.created_at.timestamp())
    return conversation_object(conversation.pk, created_at=created_at, metadata=conversation.metadata)


def _told(item: Item, request: HttpRequest) -> Item:
    """An item in full form. What is sealed of reasoning is told to whoever asks for it."""
    included = {*request.GET.getlist("include"), *request.GET.getlist("include[]")}
    if item.get("type") == "reasoning" and "reasoning.encrypted_content" not in included:
        item = {name: value for name, value in item.items() if name != "encrypted_content"}
    return listed(item)


def _item_not_found(item_id: str) -> NotFound:
    error = NotFound(f"Item with id '{item_id[:128]}' not found.")
    error.code = None
    return error
