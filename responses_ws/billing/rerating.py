"""Rating again what was billed: after a wrong price was withdrawn, a missing one added, or a policy changed.

What would cost something else gets a reversal and a new entry, in one transaction with all that hangs on entries; what
costs the same is left alone, so the second time nothing happens. Entries that are on an invoice stay on it: both new
ones land on the next, as corrections.
"""

from collections.abc import Iterator

import msgspec
from django.db import router, transaction
from django.db.models import QuerySet
from django.utils import timezone

from responses_ws.models import Journal, RatedLine, UsageRecord
from responses_ws.runtime.sql import lock

from . import ledger
from .entries import Entry

BATCH = 500


class Rerated(msgspec.Struct, frozen=True):
    """One record that costs something else now, in nano units of ``currency``."""

    response_id: str
    currency: str
    before_nano: int
    after_nano: int
    memo_before: str
    memo_after: str


def rerate(records: QuerySet[UsageRecord], memo: str, *, apply: bool) -> Iterator[Rerated]:
    """Rate records again that have a standing entry, a batch at a time; without ``apply`` nothing is written.

    Yields what has changed, or would. A batch is written before its first is yielded, so nothing is half done whoever
    stops listening. Uses the ORM.

    Args:
        memo: why, on each reversal.
    """
    last = 0
    while True:
        pks = list(records.billed().filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:BATCH])
        if not pks:
            return
        last = pks[-1]
        yield from _rerate(pks, memo, apply=apply)


def _rerate(pks: list[int], memo: str, *, apply: bool) -> list[Rerated]:
    using = router.db_for_write(UsageRecord)
    with transaction.atomic(using=using):
        rows = UsageRecord.objects.using(using).billed().filter(pk__in=pks).order_by("pk")
        records = {record.pk: record for record in (lock(rows, using, skips=False) if apply else rows)}
        standing = {journal.usage_id: journal for journal in Journal.objects.standing().filter(usage__in=records)}
        rated = [record for pk, record in records.items() if pk in standing]
        _, numbers = ledger.entries_of(rated)
        now = timezone.now()
        lines = _lines_of(list(standing.values()))
        changed: list[tuple[Journal, Entry]] = []
        for entry in ledger.usage_entries(rated, numbers, now):
            assert entry.record is not None and entry.charge is not None, "usage entries have both"
            before = standing[entry.record.pk]
            # The price's number may be another one, where a price was withdrawn and made anew.
            after = sorted((line.component, line.quantity, line.amount_nano) for line in entry.charge.lines)
            if (before.memo, lines.get(before.pk, [])) != (entry.journal.memo, after):
                before.usage = entry.record
                changed.append((before, entry))
        if apply and changed:
            reversals = ledger.reversals_of([before for before, _ in changed], memo, now)
            # Each after its reversal: what that gives back of credit is there for it.
            pairs = zip(reversals, (entry for _, entry in changed), strict=True)
            ledger.enter([one for pair in pairs for one in pair])
    return [
        Rerated(
            response_id=entry.record.response_id if entry.record else "",
            currency=entry.currency,
            before_nano=sum(amount for _component, _quantity, amount in lines.get(before.pk, [])),
            after_nano=entry.charge.amount_nano if entry.charge else 0,
            memo_before=before.memo,
            memo_after=entry.journal.memo,
        )
        for before, entry in changed
    ]


def _lines_of(journals: list[Journal]) -> dict[int, list[tuple[str, int, int]]]:
    """By entry its working: (component, quantity, amount), in order."""
    lines: dict[int, list[tuple[str, int, int]]] = {}
    for line in RatedLine.objects.filter(journal__in=journals).order_by("component"):
        lines.setdefault(line.journal_id, []).append((line.component, line.quantity, line.amount_nano))
    return lines
