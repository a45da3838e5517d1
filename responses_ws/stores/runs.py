"""Who runs a background response: rows with a lease and a fencing number. Plain ORM and SQL, no loop.

Everything that is written about such a response holds its row first, by the number of the writer's claim, and in the
same transaction. Only one process can be the newest to have claimed it.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from responses_ws.conf import app_settings
from responses_ws.models import BackgroundRun, Conversation, StoredResponse
from responses_ws.runtime import bus, sql
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.ids import new_id

from . import rows

HELD = timedelta(seconds=60)
"""How long a conversation stays held for a run that has just been claimed; then its process renews that."""
HELD_FOR_NOBODY = timedelta(minutes=10)
"""The same for one that waits, since nobody renews that."""

WAITING = "background_waiting"
"""What all processes are told when a run waits for one of them."""


class Claim(msgspec.Struct, frozen=True):
    """The right to run one background response, until somebody else claims it."""

    response_id: str
    fence: int = 1

    @property
    def _mine(self) -> dict[str, Any]:
        return {"response": self.response_id, "fence": self.fence}


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was waiting, or whose process has died, and that is ours now."""

    claim: Claim
    project_id: int
    request: str
    """Sealed."""
    conversation_id: str
    holder: str
    """By this name we hold its conversation, if nobody else has come in between."""
    deaths: int
    next_number: int
    is_repeatable: bool
    is_unwanted: bool
    """Its client has cancelled it."""


def lease() -> datetime:
    """Until when a claim of now is good."""
    return timezone.now() + timedelta(seconds=app_settings.limits.background_lease_seconds)


def insert(row: Mapping[str, Any]) -> None:
    """A new run, in the transaction that stores its response. Without an ``owner`` it waits for a process."""
    lease_until = lease() if row["owner"] else timezone.now()
    sql.insert(BackgroundRun, [{**row, "lease_until": lease_until}])
    if not row["owner"]:
        _keep_conversation(row.get("conversation_id", ""), row.get("holder", ""))
        bus.tell(WAITING)


def write(claim: Claim, **changes: Any) -> bool:
    """Hold the run until the caller's transaction ends, with these changes. False: it is not ours any more."""
    return bool(sql.update(BackgroundRun, {"lease_until": lease(), **changes}, claim._mine))


def advance(claim: Claim, number: int, count: int, **changes: Any) -> bool:
    """`write` for events of these numbers, where those before them are written. False: it is not ours, or not so."""
    where = {**claim._mine, "next_number": number}
    return bool(sql.update(BackgroundRun, {"lease_until": lease(), "next_number": number + count, **changes}, where))


def next_number(claim: Claim) -> int | None:
    """Of the event after those that are written; None: it is not ours any more."""
    return BackgroundRun.objects.filter(**claim._mine).values_list("next_number", flat=True).first()


def end(claim: Claim) -> bool:
    """The response ends in the caller's transaction. False: it is not ours to end, or it has been deleted."""
    # With a number that nobody else has: after this no claim is good.
    return bool(BackgroundRun.objects.filter(**claim._mine).delete()[0])


def renew(claims: Collection[Claim]) -> set[str]:
    """Ours are running. Gives the ids of those that are not ours any more."""
    lost = set()
    for claim in claims:
        if not write(claim):
            lost.add(claim.response_id)
    return lost


@transaction.atomic
def hand_back(claim: Claim) -> None:
    """Let another process run it from the start, and say so."""
    # With another number: a renewal that is on its way finds nothing to renew.
    if not write(claim, owner="", lease_until=timezone.now(), fence=claim.fence + 1):
        return
    # As it is now; whoever begins with it says otherwise again.
    sql.update(StoredResponse, {"status": "queued"}, {"id": claim.response_id, "status": "in_progress"})
    _keep_conversation(*BackgroundRun.objects.values_list("conversation_id", "holder").get(pk=claim.response_id))
    bus.tell(WAITING)


def _keep_conversation(conversation_id: str, holder: str) -> None:
    if holder:
        until = timezone.now() + HELD_FOR_NOBODY
        sql.update(Conversation, {"locked_until": until}, {"id": conversation_id, "holder": holder})


def claim_some(most: int, owner: str) -> list[Taken]:
    """Claim up to so many of the runs that are free, the oldest first."""
    free = BackgroundRun.objects.free(timezone.now()).values_list("pk", "fence")
    taken = (_claim(Claim(response_id, fence), owner) for response_id, fence in free[:most])
    return [one for one in taken if one is not None]


def claim_one(response_id: str, owner: str) -> Taken | None:
    """Claim this run, if it is free."""
    fence = BackgroundRun.objects.free(timezone.now()).filter(pk=response_id).values_list("fence", flat=True).first()
    return None if fence is None else _claim(Claim(response_id, fence), owner)


@transaction.atomic
def _claim(seen: Claim, owner: str) -> Taken | None:
    """One of those who try wins: the others find another number, or a lease that has begun."""
    faultpoint("claim.before")
    mine = Claim(seen.response_id, seen.fence + 1)
    free = BackgroundRun.objects.free(timezone.now()).order_by().filter(**seen._mine)
    if not free.update(fence=mine.fence, lease_until=lease()):
        return None
    run = BackgroundRun.objects.get(pk=mine.response_id)
    changes: dict[str, Any] = {"owner": owner}
    if run.owner:
        # It was not handed back: its process was not heard of for too long.
        changes["deaths"] = run.deaths + 1
    if run.holder:
        changes["holder"] = new_id("hold")
        # As the run itself: who held it until now holds it no more.
        held = Conversation.objects.filter(pk=run.conversation_id, holder=run.holder)
        held.update(holder=changes["holder"], locked_until=timezone.now() + HELD)
    write(mine, **changes)
    unwanted = rows.unwanted([run.pk])
    faultpoint("claim.written")
    return Taken(
        claim=mine,
        project_id=run.project_id,
        request=run.request,
        conversation_id=run.conversation_id,
        holder=changes.get("holder", ""),
        deaths=changes.get("deaths", run.deaths),
        next_number=run.next_number,
        is_repeatable=run.is_repeatable,
        is_unwanted=run.pk in unwanted,
    )
