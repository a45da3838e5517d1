"""The ledger: ended usage records become journal entries, each exactly once.

A record is billed in the transaction that writes its journal, and the journal's idempotency key is unique: a task
that runs twice, in parallel, or is killed anywhere leaves nothing half done and nothing done twice.
"""

import logging
import time
from collections import defaultdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import router, transaction
from django.db.models import F
from django.utils import timezone

from responses_ws.conf import app_settings
from responses_ws.models import Journal, Posting, UsageRecord
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.sql import UNAVAILABLE, lock

from . import alerts, credits, deliveries, entries, outcomes, pricing, rollups
from .entries import Entry
from .pricebook import PriceBook, read_pages
from .sinks.registry import sinks

logger = logging.getLogger(__name__)

MEMO_LENGTH = Journal._meta.get_field("memo").max_length


def bill_all(*, limit: int = 500, seconds: float = 60) -> int:
    """Bill until nothing is left, or for about a minute (half of the task's hard time limit). Returns how many."""
    total = 0
    ends_at = time.monotonic() + seconds
    while True:
        billed = bill_batch(limit)
        total += billed
        if billed < limit or time.monotonic() > ends_at:
            return total


def bill_batch(limit: int = 500) -> int:
    """Bill up to ``limit`` ended records in one transaction. Returns how many.

    Rows that another worker is billing are skipped where the database can do that; SQLite has one writer at a time.
    Where one of them cannot be billed, each is tried by itself: it holds back no other, and after a few tries it is
    left for a person to look at.

    Raises ValueError: a sink is set up wrongly. Then nothing is billed that it would never hear of, and no record is
    to blame.
    """
    sinks.all()
    try:
        billed = _bill(limit)
    except UNAVAILABLE:
        raise
    except Exception as exc:
        logger.error("A batch cannot be billed, trying its records one by one: %s", type(exc).__name__)
        billed = _bill_one_by_one(limit)
    faultpoint("bill.committed")
    return billed


def _bill(limit: int, **only: int) -> int:
    """Bill what is unbilled, or the one named by ``only``, in a transaction."""
    using = router.db_for_write(UsageRecord)
    with transaction.atomic(using=using):
        records = list(lock(UsageRecord.objects.using(using).unbilled().filter(**only), using)[:limit])
        if not records:
            return 0
        faultpoint("bill.selected")
        now = timezone.now()
        standing, numbers = entries_of(records)
        enter(usage_entries([record for record in records if record.pk not in standing], numbers, now))
        UsageRecord.objects.filter(pk__in=[record.pk for record in records]).update(billed_at=now, billing_error="")
        faultpoint("bill.marked")
        # Not a part of the bill: what goes wrong here is logged, and noticed again by a sweep.
        owners = {record.organization_id for record in records}
        transaction.on_commit(partial(alerts.notice, owners), using=using, robust=True)
    return len(records)


def _bill_one_by_one(limit: int) -> int:
    billed = 0
    for pk in UsageRecord.objects.unbilled().values_list("pk", flat=True)[:limit]:
        try:
            billed += _bill(1, pk=pk)
        except UNAVAILABLE:
            raise
        except Exception as exc:
            logger.error("Usage record %d cannot be billed", pk, exc_info=exc)
            UsageRecord.objects.filter(pk=pk, billed_at=None).update(
                billing_tries=F("billing_tries") + 1, billing_error=f"{type(exc).__name__}: {exc}"[:200]
            )
    return billed


def entries_of(records: list[UsageRecord]) -> tuple[set[int], dict[int, int]]:
    """The records with a standing entry; and by record the number of its next one.

    A record put back by hand, or restored: its entry stands, it is only marked again. One whose entry was reversed is
    rated anew.
    """
    standing, numbers = set(), {record.pk: 1 for record in records}
    known = Journal.objects.usage().filter(usage__in=numbers)
    for pk, reversal in known.values_list("usage_id", "reversed_by"):
        numbers[pk] += 1
        if reversal is None:
            standing.add(pk)
    return standing, numbers


def correct(record: UsageRecord, fields: dict[str, Any]) -> None:
    """Give a record, locked by the caller, another end than it has: the one that its client was told.

    What was billed of it is reversed, and billed anew by the next sweep.
    """
    for journal in Journal.objects.standing().filter(usage=record):
        reverse(journal, "its client was told another end")
    UsageRecord.objects.filter(pk=record.pk).update(**fields, billed_at=None)


def reverse(journal: Journal, memo: str, now: datetime | None = None) -> Journal:
    """Undo an entry of usage by adding its opposite. A second reversal of the same entry is an IntegrityError.

    Raises ValueError: it is about something else. Invoices are voided or credited, and grants expire.
    """
    if journal.usage_id is None:
        raise ValueError(f"{journal} is not about usage")
    with transaction.atomic(using=router.db_for_write(Journal)):
        reversals = reversals_of([journal], memo, now or timezone.now())
        enter(reversals)
    return reversals[0].journal


def enter(new: list[Entry]) -> None:
    """Write entries whose journals are not yet written. Everything that happens to money happens here.

    In a transaction of the caller, who holds the usage records. Reversals come through the same steps: each of them
    undoes what it did for the entry that is reversed.
    """
    Journal.objects.bulk_create(entry.journal for entry in new)
    entries.write_lines(new)
    faultpoint("bill.journalled")
    credits.draw(new)
    faultpoint("bill.drawn")
    entries.write_postings(new)
    faultpoint("bill.balanced")
    rollups.add(new)
    deliveries.add(new)


def reap(now: datetime | None = None) -> int:
    """Close records whose process is gone as ``abandoned``, with the last checkpoint's tokens. Returns how many.

    Each conditional statement is the fencing token: a process that renewed its lease, or closed its record, in the
    meantime no longer matches. Whoever closes second changes nothing. Nothing is open for ever: a record that is too
    old is closed, whoever renews it.
    """
    now = now or timezone.now()
    faultpoint("reap.before")
    closed = 0
    too_old = now - timedelta(seconds=app_settings.limits.record_seconds)
    for records, reason in (
        (UsageRecord.objects.lapsed(now), "lease_expired"),
        (UsageRecord.objects.in_progress().filter(started_at__lt=too_old), "too_old"),
    ):
        closed += records.update(status=UsageRecord.Status.ABANDONED, reason=reason, ended_at=now)
    faultpoint("reap.after")
    return closed


def usage_entries(records: list[UsageRecord], numbers: dict[int, int], now: datetime) -> list[Entry]:
    """What records that are locked by the caller cost.

    The last part of a journal's idempotency key is its number among those of its record.
    """
    policy = outcomes.current_policy()
    book = read_pages({record.model for record in records}, {record.organization_id for record in records})
    made = []
    for record in records:
        currency = book.currency_of(record.organization_id)
        charge = _charge_for(record, book, currency, policy)
        journal = Journal(
            idempotency_key=f"usage:{record.response_id}:{numbers[record.pk]}",
            kind=Journal.Kind.USAGE,
            organization_id=record.organization_id,
            usage=record,
            rating_version=numbers[record.pk],
            memo=_memo_of(charge, record),
            # A turn belongs to the day of its start, as its price does.
            occurred_at=record.started_at,
            posted_at=now,
        )
        made.append(entries.of_usage(journal, record, charge, currency))
    return made


def reversals_of(journals: list[Journal], memo: str, now: datetime) -> list[Entry]:
    """The opposite of each of some entries."""
    postings: dict[int, list[Posting]] = defaultdict(list)
    for posting in Posting.objects.filter(journal__in=journals).select_related("account").order_by("pk"):
        postings[posting.journal_id].append(posting)
    made = []
    for journal in journals:
        own = postings[journal.pk]
        reversal = Journal(
            idempotency_key=f"reversal:{journal.idempotency_key}",
            kind=Journal.Kind.REVERSAL,
            organization_id=journal.organization_id,
            usage=journal.usage,
            rating_version=journal.rating_version,
            reverses=journal,
            memo=memo[:MEMO_LENGTH],
            occurred_at=now,
            posted_at=now,
        )
        amounts = {posting.account.kind: -posting.amount_nano for posting in own}
        currency = own[0].account.currency if own else ""
        made.append(Entry(journal=reversal, currency=currency, amounts=amounts, record=journal.usage))
    return made


def _charge_for(record: UsageRecord, book: PriceBook, currency: str, policy: outcomes.Policy) -> pricing.Charge:
    usage = record.usage
    waiver = outcomes.waiver_for(record.status, is_warmup=record.is_warmup, policy=policy)
    if waiver:
        return pricing.waived(usage, waiver, tool_calls=record.tool_calls)
    return book.charge(currency, record.model, record.service_tier, record.started_at, usage, record.tool_calls)


def _memo_of(charge: pricing.Charge, record: UsageRecord) -> str:
    notes = [note for note in (charge.memo, "estimated" if record.estimated else "") if note]
    return "; ".join(notes)[:MEMO_LENGTH]
