"""Conversations as rows. Plain ORM and SQL, no loop: for the pool's threads, and the writer's where it says so."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import F, Max, Min
from django.utils import timezone

from responses_ws.models import Conversation, ConversationItem
from responses_ws.protocol.errors import ConversationLocked
from responses_ws.protocol.items import Item
from responses_ws.runtime import sql

from .base import Place

_encode = msgspec.json.Encoder().encode


class Appending(msgspec.Struct, frozen=True):
    """What a finished turn adds to the conversation that it holds."""

    conversation_id: str
    holder: str
    position: int
    """Where the first of the items goes: nobody else can have moved it while the conversation was held."""
    items: Sequence[Item]


def create(project_id: int, conversation_id: str, metadata: dict[str, str], items: Sequence[Item]) -> Conversation:
    """A new conversation with these items."""
    with transaction.atomic():
        found = Conversation.objects.create(
            id=conversation_id, project_id=project_id, metadata=metadata, length=len(items)
        )
        _insert(conversation_id, 0, items)
    return found


def find(project_id: int, conversation_id: str) -> Conversation | None:
    """This project's conversation, or None."""
    return Conversation.objects.of(project_id).select_related("chain").filter(id=conversation_id).first()


def set_metadata(project_id: int, conversation_id: str, metadata: dict[str, str]) -> Conversation | None:
    """Replace the metadata. Needs no lock: no turn reads them."""
    Conversation.objects.of(project_id).filter(id=conversation_id).update(metadata=metadata)
    return find(project_id, conversation_id)


def delete(project_id: int, conversation_id: str) -> bool:
    """Delete a conversation; its items stay, to be referred to. False where there is no such.

    Raises:
        ConversationLocked: a response is writing it.
    """
    return _edited(project_id, conversation_id, deleted_at=timezone.now())


def add(project_id: int, conversation_id: str, items: Sequence[Item]) -> bool:
    """Put items at its end. False where there is no such. Raises ConversationLocked."""
    with transaction.atomic():
        if not _edited(project_id, conversation_id, length=F("length") + len(items)):
            return False
        # Read after the update, which holds the row.
        length = Conversation.objects.values_list("length", flat=True).get(id=conversation_id)
        _insert(conversation_id, length - len(items), items)
    return True


def item(project_id: int, conversation_id: str, item_id: str) -> Item | None:
    """The item with this id; of several the newest."""
    body = _items_of(project_id, conversation_id).filter(item_id=item_id).values_list("body", flat=True).last()
    return None if body is None else msgspec.json.decode(body)


def delete_item(project_id: int, conversation_id: str, item_id: str) -> Conversation | None:
    """Take an item out. None where there is no such conversation or item. Raises ConversationLocked."""
    with transaction.atomic():
        # What is stored of the conversation as a chain still has the item.
        if not _edited(project_id, conversation_id, edits=F("edits") + 1, chain=None, chain_end=0):
            return None
        gone, _ = ConversationItem.objects.filter(conversation_id=conversation_id, item_id=item_id).delete()
        if not gone:
            transaction.set_rollback(True)
            return None
    return find(project_id, conversation_id)


def page(
    project_id: int, conversation_id: str, *, after: str | None, limit: int, is_ascending: bool
) -> tuple[list[Item], bool] | None:
    """Items behind the one with the id ``after``, and whether there are more. None where there is no such ``after``."""
    rows = _items_of(project_id, conversation_id)
    if after is not None:
        # Ids may repeat, where clients made them. The furthest counts, so that paging always goes on.
        edge = rows.filter(item_id=after).aggregate(first=Min("position"), last=Max("position"))
        if edge["first"] is None:
            return None
        rows = rows.filter(position__gt=edge["last"]) if is_ascending else rows.filter(position__lt=edge["first"])
    bodies = list(
        rows.order_by("position" if is_ascending else "-position").values_list("body", flat=True)[: limit + 1]
    )
    return [msgspec.json.decode(body) for body in bodies[:limit]], len(bodies) > limit


def items_from(conversation_id: str, position: int, end: int) -> list[Item]:
    """Items from ``position`` on and below ``end``, in order. For whoever has found the conversation to be theirs."""
    rows = ConversationItem.objects.filter(
        conversation_id=conversation_id, position__gte=position, position__lt=end
    ).order_by("position")
    return [msgspec.json.decode(body) for body in rows.values_list("body", flat=True)]


def find_items(project_id: int, item_ids: set[str]) -> dict[str, Item]:
    """Items of this project's conversations, deleted ones included, by their ids."""
    rows = ConversationItem.objects.filter(conversation__project_id=project_id, item_id__in=item_ids).order_by("pk")
    return {item_id: msgspec.json.decode(body) for item_id, body in rows.values_list("item_id", "body")}


def place_of(conversation: Conversation) -> Place | None:
    """Where the beginning of it is stored as a chain, if it is."""
    chain = conversation.chain
    if chain is None:
        return None
    path = tuple((UUID(chain_id), cut) for chain_id, cut in chain.path)
    return Place(chain.id, chain.root, path, conversation.chain_end)


def lock(project_id: int, conversation_id: str, *, holder: str, now: datetime, until: datetime) -> Conversation | None:
    """Take the conversation for one turn, in the writer's thread; ``holder`` says whether it was free."""
    free = Conversation.objects.of(project_id).free(now).filter(id=conversation_id)
    free.update(holder=holder, locked_until=until)
    return find(project_id, conversation_id)


def renew(conversation_id: str, holder: str, until: datetime) -> None:
    """The turn goes on; in the writer's thread."""
    sql.update(Conversation, {"locked_until": until}, {"id": conversation_id, "holder": holder})


def release(conversation_id: str, holder: str) -> None:
    """The turn is over; in the writer's thread. No harm where somebody else has taken over."""
    sql.update(Conversation, {"holder": "", "locked_until": None}, {"id": conversation_id, "holder": holder})


def append(appending: Appending) -> bool:
    """Add a turn's items and let go, in the writer's thread. False where the conversation is no longer held."""
    end = appending.position + len(appending.items)
    changes = {"length": end, "holder": "", "locked_until": None}
    if not sql.update(Conversation, changes, {"id": appending.conversation_id, "holder": appending.holder}):
        return False
    _insert(appending.conversation_id, appending.position, appending.items)
    return True


def remember_place(conversation_id: str, place: Place) -> None:
    """The conversation so far has been stored with a response, and ends here; in the writer's thread."""
    sql.update(Conversation, {"chain": place.chain_id, "chain_end": place.end}, {"id": conversation_id})


def _items_of(project_id: int, conversation_id: str) -> Any:
    return ConversationItem.objects.filter(
        conversation_id=conversation_id, conversation__project_id=project_id, conversation__deleted_at=None
    ).order_by("position")


def _edited(project_id: int, conversation_id: str, **changes: Any) -> bool:
    """Change a conversation that no response is writing. A holder whose time is over has lost it by this."""
    ours = Conversation.objects.of(project_id).filter(id=conversation_id)
    edited = ours.free(timezone.now()).update(holder="", locked_until=None, **changes)
    if not edited and ours.exists():
        raise ConversationLocked(conversation_id)
    return bool(edited)


def _insert(conversation_id: str, position: int, items: Sequence[Item]) -> None:
    sql.insert(
        ConversationItem,
        [
            {
                "conversation_id": conversation_id,
                "position": position + offset,
                "item_id": str(item["id"]),
                "body": _encode(item).decode(),
            }
            for offset, item in enumerate(items)
        ],
    )
