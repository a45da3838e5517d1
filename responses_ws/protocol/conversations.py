"""The words of the conversations endpoints."""

from typing import Annotated, Any, TypeVar

import msgspec

from .request import JsonObject, Metadata, bad_json
from .shapes import shape

T = TypeVar("T")


class NewConversation(msgspec.Struct, kw_only=True):
    """Body of ``POST /v1/conversations``."""

    items: list[Annotated[JsonObject, shape("InputItem")]] | None = None
    metadata: Metadata | None = None


class NewMetadata(msgspec.Struct, kw_only=True):
    """Body of ``POST /v1/conversations/{id}``. Null is as good as none."""

    metadata: Metadata | None


class NewItems(msgspec.Struct, kw_only=True):
    """Body of ``POST /v1/conversations/{id}/items``."""

    items: list[Annotated[JsonObject, shape("InputItem")]]


def decode_new(body: bytes) -> NewConversation:
    """Raises InvalidRequest. An empty body is as good as ``{}``."""
    return _decoded(body or b"{}", NewConversation)


def decode_metadata(body: bytes) -> NewMetadata:
    """Raises InvalidRequest."""
    return _decoded(body, NewMetadata)


def decode_items(body: bytes) -> NewItems:
    """Raises InvalidRequest."""
    return _decoded(body, NewItems)


def conversation_object(conversation_id: str, *, created_at: int, metadata: dict[str, str]) -> dict[str, Any]:
    """A Conversation as clients see it."""
    return {"id": conversation_id, "object": "conversation", "created_at": created_at, "metadata": metadata}


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise bad_json(exc) from exc
