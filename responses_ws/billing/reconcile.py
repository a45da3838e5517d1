"""Does the ledger say what the usage records say? Every sum is asked of the database; only what is wrong is loaded."""

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec
from django.db.models import Value
from django.utils import timezone

from responses_ws.models import (
    Account,
    CreditGrant,
    Delivery,
    Invoice,
    InvoiceSeries,
    Journal,
    LatencyRollup,
    Organization,
    Posting,
    Reconciliation,
    UsageRecord,
    UsageRollup,
)
from responses_ws.models.ledger import sum_of

from . import invoices
from .money import nano_per_cent

PATIENCE = timedelta(minutes=5)
"""How long a record may wait for its entry: the sweep comes every 5 seconds, after an outage within a minute."""


TOLD = 20
"""How many differences are kept in words: who finds more runs the command."""


class Difference(msgspec.Struct, frozen=True):
    """One disagreement: which promise is broken, by what, and the numbers."""

    kind: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}: {self.detail}"


def reconcile(now: datetime | None = None) -> list[Difference]:
    """Every difference between usage, ledger, balances, credit and invoices; an empty list when the books are right."""
    now = now or timezone.now()
    of_records = (_unbillable, _without_journal, _billed_twice)
    of_ledger = (_unbalanced, _wrong_balances, _wrong_lines, _wrong_reversals)
    of_credit = (_wrong_rests, _wrong_credit)
    of_invoices = (_wrong_invoices, _missing_numbers, _undelivered)
    looks = (*of_records, *of_ledger, *of_credit, *of_invoices, _wrong_rollups)
    return [*_late(now), *_uninvoiced(now), *(difference for look in looks for difference in look())]


def note(started_at: datetime, differences: list[Difference]) -> Reconciliation:
    """Keep what came of it, for the dashboard."""
    told = "\n".join(str(difference) for difference in differences[:TOLD])
    noted = Reconciliation.objects.create(started_at=started_at, differences=len(differences), told=told)
    Reconciliation.objects.outdated().delete()
    return noted


def _late(now: datetime) -> Iterator[Difference]:
    late = UsageRecord.objects.unbilled().filter(ended_at__lt=now - PATIENCE)
    oldest = late.first()
    if oldest is not None:
        yield Difference(
            "unbilled", f"{late.count()} records", f"the oldest ended at {oldest.ended_at:%Y-%m-%d %H:%M:%S}"
        )


def _unbillable() -> Iterator[Difference]:
    for record in UsageRecord.objects.unbillable().iterator():
        yield Difference("unbillable", record.response_id, record.billing_error)


def _undelivered() -> Iterator[Difference]:
    for row in Delivery.objects.given_up().by_sink():
        yield Difference("undelivered", row["sink"], f"{row['given_up']} entries were given up")


def _without_journal() -> Iterator[Difference]:
    for record in UsageRecord.objects.billed().without_journal().order_by("id").iterator():
        yield Difference("no journal", record.response_id, "marked as billed, not in the ledger")


def _billed_twice() -> Iterator[Difference]:
    for record in UsageRecord.objects.billed_twice().order_by("id").iterator():
        yield Difference("billed twice", record.response_id, f"{record.entries} entries stand")


def _unbalanced() -> Iterator[Difference]:
    for journal in Journal.objects.with_sums().exclude(posted_nano=0).order_by("id").iterator():
        yield Difference("unbalanced", journal.idempotency_key, f"postings sum to {journal.posted_nano}, not to 0")


def _wrong_balances() -> Iterator[Difference]:
    for account in Account.objects.with_wrong_balance().select_related("organization").iterator():
        yield Difference("balance", str(account), f"{account.balance_nano}, postings sum to {account.posted_nano}")


def _wrong_lines() -> Iterator[Difference]:
    for journal in Journal.objects.with_wrong_lines().select_related("usage").order_by("id").iterator():
        if journal.lines_nano != journal.debit_nano:
            yield Difference(
                "lines", journal.idempotency_key, f"lines sum to {journal.lines_nano}, debit is {journal.debit_nano}"
            )
        tokens = journal.usage.input_tokens + journal.usage.output_tokens
        if journal.lines_tokens != tokens:
            yield Difference(
                "tokens", journal.idempotency_key, f"{journal.lines_tokens} rated, {tokens} in the usage record"
            )


def _wrong_reversals() -> Iterator[Difference]:
    for journal in Journal.objects.that_reverse_wrongly().order_by("id").iterator():
        detail = f"{journal.given_nano} for an entry of {journal.taken_nano}"
        yield Difference("reversal", journal.idempotency_key, detail)


def _wrong_rests() -> Iterator[Difference]:
    for grant in CreditGrant.objects.with_wrong_rest().select_related("organization").order_by("id").iterator():
        detail = f"{grant.remaining_nano} is left, {grant.used_nano} of {grant.amount_nano} was used"
        yield Difference("credit", str(grant), detail)


def _wrong_credit() -> Iterator[Difference]:
    left = CreditGrant.objects.left()
    for account in Account.objects.prepaid().select_related("organization").iterator():
        rest = left.pop((account.organization_id, account.currency), 0)
        if account.balance_nano != -rest:
            yield Difference("prepaid", str(account), f"{account.balance_nano}, grants have {rest} left")
    for (organization, currency), rest in left.items():
        if rest:
            yield Difference("prepaid", f"organisation {organization} {currency}", f"no account, {rest} left of grants")


def _wrong_rollups() -> Iterator[Difference]:
    """Roll-ups say what was charged, and for how much usage. All in one query, since billing goes on meanwhile."""
    entries = Journal.objects.standing().annotate(one=Value(1))
    earned = Posting.objects.filter(account__kind=Account.Kind.REVENUE, journal__usage__isnull=False)
    sums = {
        "charges": -sum_of(earned, "account__organization", "amount_nano"),
        "responses": sum_of(entries, "organization", "one"),
        "input": sum_of(entries, "organization", "usage__input_tokens"),
        "output": sum_of(entries, "organization", "usage__output_tokens"),
    }
    columns = {
        "charges": (UsageRollup, "amount_nano", "charges"),
        "responses": (UsageRollup, "responses", "responses"),
        "input": (UsageRollup, "input_tokens", "input"),
        "output": (UsageRollup, "output_tokens", "output"),
        "times": (LatencyRollup, "responses", "responses"),
    }
    widths = ("hours", "days")
    added = {
        f"{name}_of_{width}": sum_of(getattr(rollup.objects, width)(), "organization_id", column)
        for name, (rollup, column, _sum) in columns.items()
        for width in widths
    }
    for owner in Organization.objects.annotate(**sums, **added).order_by("pk").iterator():
        for (name, (_rollup, _column, entered)), width in itertools.product(columns.items(), widths):
            found, expected = getattr(owner, f"{name}_of_{width}"), getattr(owner, entered)
            if found != expected:
                yield Difference("roll-ups", owner.name, f"{name}: {found} in the {width}, {expected} in the ledger")


def _uninvoiced(now: datetime) -> Iterator[Difference]:
    """What was entered before a month whose invoices must be finalised by now, and is on none."""
    for organization, count in invoices.forgotten(now):
        yield Difference("uninvoiced", str(organization), f"{count} entries of months that are over are on no invoice")


def _wrong_invoices() -> Iterator[Difference]:
    for one in Invoice.objects.with_claims().select_related("organization").order_by("id").iterator():
        total = one.total_cents * nano_per_cent(one.currency)
        claimed = one.amount_nano if one.claims else 0
        if (one.claimed_nano, one.lines_nano) != (claimed, total):
            detail = f"{total} of {one.amount_nano}, its entries say {one.claimed_nano}, its lines {one.lines_nano}"
            yield Difference("invoice", str(one), detail)


def _missing_numbers() -> Iterator[Difference]:
    for series in InvoiceSeries.objects.with_wrong_count().select_related("organization").iterator():
        detail = f"the last number is {series.last_number}, there are {series.counted}"
        yield Difference("numbers", f"{series.organization} {series.kind}", detail)
