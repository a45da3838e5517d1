"""The words of the conversations endpoints."""

from typing import Annotated, Any, TypeVar

import msgspec

from .errors import InvalidRequest
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
    new = _decoded(body or b"{}", NewConversation)
    _check_metadata(new.metadata)
    return new


def decode_metadata(body: bytes) -> NewMetadata:
    """Raises InvalidRequest."""
    new = _decoded(body, NewMetadata)
    _check_metadata(new.metadata)
    return new


def _check_metadata(metadata: dict[str, str] | None) -> None:
    """They become JSON that a database reads, and PostgreSQL's JSON knows no U+0000. Items are kept as text."""
    if any("\0" in text for pair in (metadata or {}).items() for text in pair):
        raise InvalidRequest("Metadata may not contain the character U+0000.", param="metadata")


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
