"""The ledger: ended usage records become journal entries, each exactly once.

A record is billed in the transaction that writes its journal, and the journal's idempotency key is unique: a task
that runs twice, in parallel, or is killed anywhere leaves nothing half done and nothing done twice.
"""

import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, router, transaction
from django.db.models import F
from django.utils import timezone

from responses_ws.conf import app_settings
from responses_ws.models import Account, Journal, Posting, Price, RatedLine, UsageRecord
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.sql import UNAVAILABLE

from . import pricing

logger = logging.getLogger(__name__)

RECEIVABLE, REVENUE = str(Account.Kind.RECEIVABLE), str(Account.Kind.REVENUE)
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
    """
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
        records = list(_lock(UsageRecord.objects.using(using).unbilled().filter(**only), using)[:limit])
        if not records:
            return 0
        faultpoint("bill.selected")
        now = timezone.now()
        standing, numbers = _entries_of(records)
        _post([record for record in records if record.pk not in standing], numbers, now)
        UsageRecord.objects.filter(pk__in=[record.pk for record in records]).update(billed_at=now, billing_error="")
        faultpoint("bill.marked")
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


def _entries_of(records: list[UsageRecord]) -> tuple[set[int], dict[int, int]]:
    """The records with a standing entry; and by record the number of its next one.

    A record put back by hand, or restored: its entry stands, it is only marked again. One whose entry was reversed is
    rated anew.
    """
    standing, numbers = set(), {record.pk: 1 for record in records}
    entries = Journal.objects.usage().filter(usage__in=numbers)
    for pk, reversal in entries.values_list("usage_id", "reversed_by"):
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


def reverse(journal: Journal, memo: str) -> Journal:
    """Undo an entry by adding its opposite. A second reversal of the same entry is an IntegrityError."""
    now = timezone.now()
    with transaction.atomic(using=router.db_for_write(Journal)):
        reversal = Journal.objects.create(
            idempotency_key=f"reversal:{journal.idempotency_key}",
            kind=Journal.Kind.REVERSAL,
            organization_id=journal.organization_id,
            usage_id=journal.usage_id,
            reverses=journal,
            memo=memo[:MEMO_LENGTH],
            occurred_at=now,
            posted_at=now,
        )
        postings = [
            Posting(journal=reversal, account_id=posting.account_id, amount_nano=-posting.amount_nano)
            for posting in journal.postings.all()
        ]
        _write_postings(postings)
    return reversal


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


def _lock(records, using: str):
    features = connections[using].features
    if not features.has_select_for_update:
        return records
    return records.select_for_update(skip_locked=features.has_select_for_update_skip_locked)


def _post(records: list[UsageRecord], numbers: dict[int, int], now: datetime) -> None:
    """Write journals, lines and postings of records that are locked by the caller.

    The last part of a journal's idempotency key is its number among those of its record.
    """
    policy = pricing.Policy(
        bill_cancelled=app_settings.BILL_CANCELLED,
        bill_warmup=app_settings.BILL_WARMUP,
        bill_abandoned=app_settings.BILL_ABANDONED,
    )
    prices = _prices_of(records)
    accounts = _accounts_of({record.organization_id for record in records})
    lines, postings = [], []
    charges = [_charge_for(record, prices, policy) for record in records]
    journals = Journal.objects.bulk_create(
        Journal(
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
        for record, charge in zip(records, charges, strict=True)
    )
    for journal, record, charge in zip(journals, records, charges, strict=True):
        lines += [
            RatedLine(
                journal=journal,
                component=line.component,
                quantity=line.quantity,
                price_id=line.price_id,
                amount_nano=line.amount_nano,
            )
            for line in charge.lines
        ]
        owner, amount = record.organization_id, charge.amount_nano
        postings += [
            Posting(journal=journal, account_id=accounts[owner, RECEIVABLE], amount_nano=amount),
            Posting(journal=journal, account_id=accounts[owner, REVENUE], amount_nano=-amount),
        ]
    RatedLine.objects.bulk_create(lines)
    faultpoint("bill.journalled")
    _write_postings(postings)
    faultpoint("bill.balanced")


def _write_postings(postings: list[Posting]) -> None:
    """Add postings and move the balances of their accounts: one update per account, the hot rows last."""
    assert sum(posting.amount_nano for posting in postings) == 0, "debits and credits of a batch differ"
    Posting.objects.bulk_create(postings)
    moved: dict[int, int] = defaultdict(int)
    for posting in postings:
        moved[posting.account_id] += posting.amount_nano
    # In the order of their ids: two workers that share accounts wait for each other, and never in a circle.
    for account_id, amount in sorted(moved.items()):
        if amount:
            Account.objects.filter(pk=account_id).update(balance_nano=F("balance_nano") + amount)


def _charge_for(record: UsageRecord, prices: dict[str, list[Price]], policy: pricing.Policy) -> pricing.Charge:
    usage = record.usage
    waiver = pricing.waiver_for(record.status, is_warmup=record.is_warmup, policy=policy)
    if waiver:
        return pricing.waived(usage, waiver)
    rates = {
        price.component: pricing.Rate(price.pk, price.nano_per_million)
        for price in prices.get(record.model, ())
        if price.is_valid_at(record.started_at)
    }
    return pricing.charge_for(usage, rates, model=record.model)


def _memo_of(charge: pricing.Charge, record: UsageRecord) -> str:
    notes = [note for note in (charge.memo, "estimated" if record.estimated else "") if note]
    return "; ".join(notes)[:MEMO_LENGTH]


def _prices_of(records: Iterable[UsageRecord]) -> dict[str, list[Price]]:
    """Prices by model, the newest start last: where two overlap, the later one wins."""
    prices: dict[str, list[Price]] = defaultdict(list)
    models = {record.model for record in records}
    for price in Price.objects.filter(model__in=models).order_by("valid_from", "pk"):
        prices[price.model].append(price)
    return prices


def _accounts_of(organizations: set[int]) -> dict[tuple[int, str], int]:
    """Account ids by (organization, kind), created where missing."""
    accounts = _account_ids(organizations)
    wanted = sorted(itertools.product(organizations, (RECEIVABLE, REVENUE)))
    missing = [Account(organization_id=org, kind=kind) for org, kind in wanted if (org, kind) not in accounts]
    if missing:
        # Another worker may create the same; the constraint lets one of us win and both go on.
        Account.objects.bulk_create(missing, ignore_conflicts=True)
        accounts = _account_ids(organizations)
    return accounts


def _account_ids(organizations: set[int]) -> dict[tuple[int, str], int]:
    found = Account.objects.filter(organization__in=organizations, currency="USD")
    return {(organization, kind): pk for organization, kind, pk in found.values_list("organization", "kind", "pk")}
