"""Telling other billing systems of the ledger: at least once each, whatever dies meanwhile.

What is to be told is written with the entry, in its transaction. A worker *claims* some of it for a while, in a short
transaction of its own, tells it, and notes what came of that. Killed anywhere, it leaves rows that are due again when
the claim is over; receivers know by its id what they have had already.
"""

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.db import router, transaction
from django.db.models import F
from django.utils import timezone

from responses_ws.models import Delivery, Organization
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.http import FetchFailed, Refused
from responses_ws.runtime.sql import lock

from .entries import RECEIVABLE, Entry
from .sinks.base import Message, Rejected, Sink, Unavailable
from .sinks.registry import sinks

logger = logging.getLogger(__name__)

BATCH = 100
LANES_AT_ONCE = 8
BATCH_SECONDS = 30.0
"""No message of a batch is begun later; one takes ten seconds at most."""
CLAIM = timedelta(minutes=2)
"""How long nobody else takes what was claimed: three times as long as a batch can take."""
FIRST_PAUSE = timedelta(seconds=30)
"""Before the second try; twice as long before each further one."""
LONGEST_PAUSE = timedelta(hours=2)
TRIES = 16
"""With these pauses that is 18 hours at most: within the 24 in which every receiver knows what it has had."""
UNAVAILABLE = (Unavailable, FetchFailed, Refused)

Outcomes = dict[int, Exception | None]
"""By delivery: None where it has arrived. What was not begun is absent."""


def add(entries: Sequence[Entry]) -> None:
    """Write down which sinks are to be told of which entries, in the transaction that writes these.

    A correction goes where the response went: nobody is told of a part of a response whose rest they never heard of.
    """
    if not sinks.all():
        return
    about_usage = [entry for entry in entries if entry.record is not None]
    owners = Organization.objects.in_bulk({entry.journal.organization_id for entry in about_usage})
    told = Delivery.objects.told({entry.journal.usage_id for entry in about_usage if _is_correction(entry)})
    Delivery.objects.bulk_create(
        Delivery(sink=sink.name, journal=entry.journal, body=facts(entry))
        for entry in about_usage
        for sink in sinks.all()
        if (
            (sink.name, entry.journal.usage_id) in told
            if _is_correction(entry)
            else sink.wants(owners[entry.journal.organization_id])
        )
    )


def facts(entry: Entry) -> dict[str, Any]:
    """What sinks are told of an entry about usage: numbers and names, no content.

    ``amount_nano`` is what was used, in 10⁻⁹ of ``currency``; ``owed_nano`` the part of it that no credit pays for.
    Counts and amounts are changes: those of a reversal are below 0.
    """
    record, journal = entry.record, entry.journal
    assert record is not None, "only entries about usage are told"
    counts = {
        "responses": 1,
        "input_tokens": record.input_tokens,
        "cached_tokens": record.cached_tokens,
        "cache_write_tokens": record.cache_write_tokens,
        "output_tokens": record.output_tokens,
        "reasoning_tokens": record.reasoning_tokens,
        "tool_calls": record.tool_calls,
    }
    return {
        "response_id": record.response_id,
        "kind": str(journal.kind),
        "rating_version": journal.rating_version,
        "organization_id": record.organization_id,
        "project_id": record.project_id,
        "api_key_id": record.api_key_id,
        "model": record.model,
        "service_tier": record.service_tier,
        "transport": record.transport,
        "status": record.status,
        "reason": record.reason,
        "estimated": record.estimated,
        "memo": journal.memo,
        "started_at": record.started_at.isoformat(),
        "posted_at": journal.posted_at.isoformat(),
        "currency": entry.currency,
        "amount_nano": entry.amount_nano,
        "owed_nano": entry.amounts.get(RECEIVABLE, 0),
        **{name: entry.sign * count for name, count in counts.items()},
    }


def deliver(*, seconds: float = 60.0) -> int:
    """Tell all sinks what is due, for about a minute: each for its share of it. Returns how many have arrived."""
    every = sinks.all()
    return sum(_deliver_to(sink, seconds / len(every)) for sink in every)


def _deliver_to(sink: Sink, seconds: float) -> int:
    ends_at = time.monotonic() + seconds
    arrived = 0
    while time.monotonic() < ends_at:
        faultpoint("deliver.before")
        claimed = _claim(sink, timezone.now())
        if not claimed:
            break
        faultpoint("deliver.claimed")
        outcomes = async_to_sync(_tell)(sink, claimed, min(ends_at, time.monotonic() + BATCH_SECONDS))
        _note(claimed, outcomes, timezone.now())
        faultpoint("deliver.noted")
        arrived += sum(outcome is None for outcome in outcomes.values())
        if len(outcomes) < len(claimed) or any(isinstance(outcome, UNAVAILABLE) for outcome in outcomes.values()):
            # It is down, or slow. The next task asks again.
            break
    return arrived


def _claim(sink: Sink, now: datetime) -> list[Delivery]:
    """Some of what is due, which nobody else takes before the claim is over."""
    using = router.db_for_write(Delivery)
    rows = Delivery.objects.using(using)
    if sink.remembers is not None:
        late = rows.due(sink.name, now).filter(first_tried_at__lt=now - sink.remembers)
        late.update(due_at=None, error="it may have arrived so long ago that the receiver would not know it again")
    with transaction.atomic(using=using):
        pks = list(lock(rows.due(sink.name, now).values_list("pk", flat=True), using)[:BATCH])
        # As they were: what is not begun is put back.
        claimed = list(rows.filter(pk__in=pks).select_related("journal__organization").order_by("pk"))
        rows.filter(pk__in=pks).update(tries=F("tries") + 1, due_at=now + CLAIM)
        rows.filter(pk__in=pks, first_tried_at=None).update(first_tried_at=now)
    return claimed


async def _tell(sink: Sink, claimed: Sequence[Delivery], ends_at: float) -> Outcomes:
    """Tell the lanes of a batch, some at once, until one cannot be told or time is up (by the monotonic clock)."""
    outcomes: Outcomes = {}
    lanes: dict[str, list[tuple[Delivery, Message]]] = defaultdict(list)
    for delivery in claimed:
        message = _message(delivery)
        lanes[sink.lane(message)].append((delivery, message))
    places = asyncio.Semaphore(LANES_AT_ONCE)
    is_down = False

    async def one_by_one(lane: list[tuple[Delivery, Message]]) -> None:
        nonlocal is_down
        async with places:
            for delivery, message in lane:
                if is_down or time.monotonic() > ends_at:
                    return
                try:
                    await tell(message)
                except UNAVAILABLE as exc:
                    outcomes[delivery.pk], is_down = exc, True
                except Exception as exc:
                    # Its own matter, as far as anybody can tell: the others are told.
                    outcomes[delivery.pk] = exc
                else:
                    outcomes[delivery.pk] = None
                    faultpoint("deliver.told")

    try:
        async with sink.open() as tell, asyncio.TaskGroup() as group:
            for lane in lanes.values():
                group.create_task(one_by_one(lane))
    except UNAVAILABLE as exc:
        # It has not been opened: one of them stands for all.
        outcomes[claimed[0].pk] = exc
    return outcomes


def _message(delivery: Delivery) -> Message:
    journal = delivery.journal
    customer = journal.organization.stripe_customer
    return Message(id=journal.idempotency_key, body=delivery.body, stripe_customer=customer)


def _note(claimed: Sequence[Delivery], outcomes: Outcomes, now: datetime) -> None:
    """Write down what came of it; what somebody else has sent meanwhile is sent."""
    unsent = Delivery.objects.unsent()
    unsent.filter(pk__in=[pk for pk, outcome in outcomes.items() if outcome is None]).update(sent_at=now, error="")
    for delivery in claimed:
        if delivery.pk not in outcomes:
            unsent.filter(pk=delivery.pk).update(
                due_at=delivery.due_at, tries=delivery.tries, first_tried_at=delivery.first_tried_at
            )
            continue
        outcome = outcomes[delivery.pk]
        if outcome is None:
            continue
        tries = delivery.tries + 1
        is_over = isinstance(outcome, Rejected) or tries >= TRIES
        is_said = isinstance(outcome, (Rejected, *UNAVAILABLE))
        error = str(outcome) if is_said else f"{type(outcome).__name__}: {outcome}"
        unsent.filter(pk=delivery.pk).update(due_at=None if is_over else now + _pause(tries), error=error[:200])
        if is_over or not isinstance(outcome, UNAVAILABLE):
            logger.error("Delivery %d to %s: %s", delivery.pk, delivery.sink, type(outcome).__name__)


def _pause(tries: int) -> timedelta:
    """Behind so many tries. Half of it by chance, so that what has failed together does not come together again."""
    return min(FIRST_PAUSE * 2 ** (tries - 1), LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311


def _is_correction(entry: Entry) -> bool:
    return entry.sign < 0 or entry.journal.rating_version > 1
