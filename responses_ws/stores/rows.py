"""Chains as rows: written by the group writer's thread, read by the pool's threads. Plain ORM and SQL, no loop."""

from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import msgspec
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from responses_ws.models import (
    BackgroundRun,
    Chain,
    Conversation,
    Flag,
    ResponseEvents,
    StoredItem,
    StoredResponse,
    UsageRecord,
)
from responses_ws.models.responses import StoredResponseQuerySet
from responses_ws.protocol.items import Item, told
from responses_ws.runtime import sql

from .base import Place, StoredChain

_encode = msgspec.json.Encoder().encode


def save(
    *,
    project_id: int,
    response: dict[str, Any],
    parent: Place | None,
    items: Sequence[Item],
    input_end: int,
    expires_at: datetime,
) -> Place:
    """Write a response behind its parent, inside the caller's transaction. Returns where it ends.

    ``items`` are those behind the parent's end; without a stored parent, the whole context. Whoever continues the
    newest response appends to its chain; whoever comes second finds the chain longer than its parent and forks.
    """
    if parent is None:
        chain_id = uuid4()
        place = Place(chain_id, chain_id, (), len(items))
        sql.insert(Chain, [{"id": chain_id, "project_id": project_id, "root": chain_id, "length": place.end}])
        start = 0
    else:
        start = parent.end
        end = start + len(items)
        if sql.update(Chain, {"length": end}, {"id": parent.chain_id, "length": start}):
            place = Place(parent.chain_id, parent.root, parent.path, end)
        else:
            chain_id = uuid4()
            place = Place(chain_id, parent.root, (*parent.path, (parent.chain_id, start)), end)
            path = [[str(chain), cut] for chain, cut in place.path]
            fork = {"id": chain_id, "project_id": project_id, "root": parent.root, "path": path, "length": end}
            sql.insert(Chain, [fork])
    _insert_items(place.chain_id, start, items)
    sql.insert(
        StoredResponse,
        [
            {
                "id": response["id"],
                "project_id": project_id,
                "chain_id": place.chain_id,
                "input_end": input_end,
                "end": place.end,
                "previous_response_id": response["previous_response_id"] or "",
                "model": response["model"],
                "status": response["status"],
                "body": _encode({**response, "output": []}).decode(),
                "expires_at": expires_at,
            }
        ],
    )
    return place


def _insert_items(chain_id: UUID, start: int, items: Sequence[Item]) -> None:
    rows = (
        {
            "chain_id": chain_id,
            "position": start + offset,
            "item_id": str(item["id"]),
            "body": _encode(item).decode(),
        }
        for offset, item in enumerate(items)
    )
    sql.insert(StoredItem, rows)


def begin(response_id: str) -> None:
    """A queued response is in progress now."""
    sql.update(StoredResponse, {"status": "in_progress"}, {"id": response_id, "status": "queued"})


def is_held(response_id: str) -> bool:
    """Whether the response is there, and then until the caller's transaction ends: a deletion waits for it.

    Otherwise what is written here could slip in behind the deletion, and stay.
    """
    wanted = StoredResponse.objects.filter(id=response_id, deleted_at=None).order_by().select_for_update()
    return bool(wanted.values_list("pk", flat=True))


def finish(response: dict[str, Any], place: Place, output: Sequence[Item]) -> Place | None:
    """Write the end of a response that was saved unfinished, up to ``place``. None where it has been deleted since.

    Nobody continues an unfinished response, so only a deletion can have changed the length of its chain.
    """
    if not is_held(response["id"]):
        return None
    end = place.end + len(output)
    if not sql.update(Chain, {"length": end}, {"id": place.chain_id, "length": place.end}):
        return None
    _insert_items(place.chain_id, place.end, output)
    body = _encode({**response, "output": []}).decode()
    sql.update(StoredResponse, {"end": end, "status": response["status"], "body": body}, {"id": response["id"]})
    return Place(place.chain_id, place.root, place.path, end)


def exists(place: Place) -> bool:
    """Whether the context that ends here is still there: a deletion takes its last item first of all."""
    for chain_id, start, stop in reversed(place.ranges):
        if stop > start:
            return sql.exists(StoredItem, {"chain_id": chain_id, "position": stop - 1})
    return True


class Deleted(msgspec.Struct):
    """What a deletion took."""

    response_ids: set[str]
    chains: dict[UUID, int]
    """How many items are left of each chain, from its own first one on."""
    root: UUID
    """The chain that all of these began with."""


def load(project_id: int, response_id: str) -> StoredChain | None:
    """The response and its context: two queries, whatever the length; one more for an unfinished one, and for every 500
    forks that lie between it and its beginning."""
    found = _find(StoredResponse.objects.of(project_id).select_related("chain"), response_id)
    if found is None:
        return None
    place = _place_of(found)
    bodies = _bodies_in(place)
    if len(bodies) != place.end:
        return None
    items = [msgspec.json.decode(body) for body in bodies]
    response = _response_of(found, items[found.input_end :])
    return StoredChain(response, items, found.input_end, place, found.expires_at.timestamp(), bodies)


_RANGES_AT_ONCE = 500
"""SQLite takes no expression that is deeper than 1,000."""


def _bodies_in(place: Place) -> list[str]:
    """The items of a context as they are stored, in order."""
    wanted = [
        Q(chain_id=chain_id, position__gte=start, position__lt=stop)
        for chain_id, start, stop in place.ranges
        if stop > start
    ]
    bodies: list[str] = []
    for first in range(0, len(wanted), _RANGES_AT_ONCE):
        # Only ranges: beside any other condition SQLite would read the whole table.
        ranges = Q(*wanted[first : first + _RANGES_AT_ONCE], _connector=Q.OR)
        bodies += StoredItem.objects.filter(ranges).order_by("position").values_list("body", flat=True)
    return bodies


def _find(responses: StoredResponseQuerySet, response_id: str) -> StoredResponse | None:
    """The response; an unfinished one whose usage record has been closed is a failed one."""
    query = responses.filter(id=response_id)
    found = query.first()
    if found is None or found.status not in StoredResponse.UNFINISHED:
        return found
    if UsageRecord.objects.ended().filter(response_id=response_id).exists():
        # Both end in one commit. So it has ended just now; or its process died, and the reaper closed its record.
        found = query.first()
        if found is not None and found.status in StoredResponse.UNFINISHED:
            found.status = "failed"
    return found


def _response_of(found: StoredResponse, output: list[Item]) -> dict[str, Any]:
    response: dict[str, Any] = {
        **msgspec.json.decode(found.body),
        "status": found.status,
        "output": list(map(told, output)),
    }
    if found.status == "failed" and response["error"] is None:
        response["error"] = {"code": "server_error", "message": "The server that worked on this response has gone."}
    return response


def place_of(project_id: int, response_id: str) -> Place | None:
    """Where a response ends. None where there is no such."""
    found = StoredResponse.objects.of(project_id).select_related("chain").filter(id=response_id).first()
    return None if found is None else _place_of(found)


def status_of(project_id: int, response_id: str) -> str | None:
    """The status of a response, without its context. None where there is no such."""
    found = _find(StoredResponse.objects.of(project_id).only("status"), response_id)
    return None if found is None else found.status


def request_cancel(project_id: int, response_id: str) -> None:
    """Note for the process that runs it that a response is no longer wanted."""
    StoredResponse.objects.of(project_id).filter(id=response_id).update(cancel_requested_at=timezone.now())


def unwanted(response_ids: Collection[str]) -> set[str]:
    """Those of these running responses that have been cancelled or deleted."""
    return set(StoredResponse.objects.unwanted(response_ids).values_list("id", flat=True))


def find_items(project_id: int, item_ids: set[str]) -> dict[str, Item]:
    """Items of this project's stored responses by their ids; of several with one id the newest."""
    alive = StoredResponse.objects.of(project_id).filter(chain_id=OuterRef("chain_id"), end__gt=OuterRef("position"))
    rows = StoredItem.objects.filter(Exists(alive), chain__project_id=project_id, item_id__in=item_ids).order_by("pk")
    return {item_id: msgspec.json.decode(body) for item_id, body in rows.values_list("item_id", "body")}


def delete(project_id: int, response_id: str) -> Deleted | None:
    """Tombstone a response and everything continued from it; their items are gone. None where there is no such."""
    found = StoredResponse.objects.of(project_id).select_related("chain").filter(id=response_id).first()
    if found is None:
        return None
    start = _start_of(found)
    # A response that adds no items, as a warm-up may, ends where its parent ends: there the order of making decides.
    doomed = Q(chain_id=found.chain_id, end__gt=found.end) | Q(
        chain_id=found.chain_id, end=found.end, created_at__gte=found.created_at
    )
    in_chain = set(StoredResponse.objects.filter(doomed).values_list("id", flat=True))
    chains = {found.chain_id: start - _past_of(found.chain)}
    for chain in Chain.objects.filter(root=found.chain.root).exclude(id=found.chain_id):
        branch = _branch_from(chain, found.chain_id)
        if branch is None or branch[1] < found.end:
            continue
        if branch[1] == found.end == start and not _continues(branch[0], in_chain):
            continue
        chains[chain.id] = 0
        doomed |= Q(chain_id=chain.id)
    responses = StoredResponse.objects.filter(doomed, project_id=project_id)
    ids = set(responses.values_list("id", flat=True))
    # First: whoever writes about one that runs holds this row, and then others.
    ended = BackgroundRun.objects.filter(pk__in=ids)
    # A process that runs one of them lets go itself.
    holders = ended.waiting().exclude(holder="").values_list("holder", flat=True)
    Conversation.objects.filter(holder__in=list(holders)).update(holder="", locked_until=None)
    ended.delete()
    responses.update(deleted_at=timezone.now(), body="{}")
    ResponseEvents.objects.filter(project_id=project_id, response_id__in=ids).delete()
    Flag.objects.filter(project_id=project_id).forget(ids)
    StoredItem.objects.filter(chain_id=found.chain_id, position__gte=start).delete()
    StoredItem.objects.filter(chain_id__in=[chain_id for chain_id in chains if chain_id != found.chain_id]).delete()
    # A length that no parent's end equals: whoever still holds the deleted past can only fork, and is refused there.
    Chain.objects.filter(id__in=chains).update(length=_NO_LENGTH)
    # Conversations keep their items; of being stored here they know nothing any more.
    Conversation.objects.filter(chain_id__in=chains).update(chain=None, chain_end=0)
    return Deleted(ids, chains, found.chain.root)


_NO_LENGTH = 2**31 - 1


def _past_of(chain: Chain) -> int:
    """Items of a chain's past, which are not its own."""
    return int(chain.path[-1][1]) if chain.path else 0


def _branch_from(chain: Chain, ancestor_id: UUID) -> tuple[UUID, int] | None:
    """The chain that left ``ancestor_id`` on the way to ``chain``, and where it left; None if none did."""
    way = [*chain.path, [str(chain.id), 0]]
    for (ancestor, cut), (branch, _) in pairwise(way):
        if UUID(ancestor) == ancestor_id:
            return UUID(branch), int(cut)
    return None


def _continues(chain_id: UUID, response_ids: set[str]) -> bool:
    """Whether a chain began as a continuation of one of these."""
    first = StoredResponse.objects.filter(chain_id=chain_id).order_by("created_at").first()
    return first is None or first.previous_response_id in response_ids


def _start_of(response: StoredResponse) -> int:
    """Where a response's own items begin: at the end of the response before it, or of its chain's past."""
    earlier_ones = Q(end__lt=response.end) | Q(end=response.end, created_at__lt=response.created_at)
    before = StoredResponse.objects.filter(earlier_ones, chain_id=response.chain_id).order_by("-end")
    earlier = before.values_list("end", flat=True).first()
    if earlier is not None:
        return int(earlier)
    return _past_of(response.chain)


def _place_of(found: StoredResponse) -> Place:
    path = tuple((UUID(chain_id), cut) for chain_id, cut in found.chain.path)
    return Place(found.chain_id, found.chain.root, path, found.end)
