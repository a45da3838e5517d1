"""Credit: amounts that an organisation has bought or been given, which usage takes before anything is owed.

What is left of all grants is the balance of the organisation's prepaid account, with the opposite sign. Whoever
changes a grant holds its row; rows are taken in the order of their ids, and before any account.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec
from django.db import IntegrityError, connections, router, transaction
from django.db.models import Count, F, Q
from django.utils import timezone

from responses_ws.models import Account, ControlMessage, CreditGrant, GrantUse, Journal, Organization, UsageRecord
from responses_ws.runtime.faults import faultpoint

from . import entries
from .entries import RECEIVABLE, REVENUE, Entry
from .money import MAX_NANO

PREPAID = str(Account.Kind.PREPAID)
CASH, PROMOTION = str(Account.Kind.CASH), str(Account.Kind.PROMOTION)
COMES_FROM = {CreditGrant.Kind.PAID: CASH, CreditGrant.Kind.PROMOTIONAL: PROMOTION}
"""The account that a grant is debited to."""
GOES_TO = {CreditGrant.Kind.PAID: REVENUE, CreditGrant.Kind.PROMOTIONAL: PROMOTION}
"""The account that is credited with what has expired: money that was paid is earned, a present is not made."""

PATIENCE = timedelta(minutes=5)
"""How long after its expiry a grant waits for the usage records of turns that started before it."""


class GrantConflict(ValueError):
    """The idempotency key belongs to a grant that is not this one."""


class _Use(msgspec.Struct):
    journal: Journal
    grant: CreditGrant
    amount_nano: int


def grant(
    organization: Organization,
    amount_nano: int,
    *,
    kind: str,
    priority: int = 50,
    expires_at: datetime | None = None,
    note: str = "",
    idempotency_key: str | None = None,
) -> CreditGrant:
    """Give credit in the organisation's currency. With a key that was used before: the grant that was made then.

    Raises ValueError: the amount, the kind or the expiry is no good; `GrantConflict` where the key is another grant's.
    """
    if not 0 < amount_nano <= MAX_NANO:
        raise ValueError("a grant is more than 0, and less than a thousand million")
    if kind not in CreditGrant.Kind.values:
        raise ValueError(f"credit is one of {', '.join(CreditGrant.Kind.values)}, not {kind}")
    if not 0 <= priority <= 32_767:
        raise ValueError("a priority is a number from 0 to 32767")
    now = timezone.now()
    wanted = CreditGrant(
        organization=organization,
        kind=kind,
        currency=organization.currency,
        amount_nano=amount_nano,
        remaining_nano=amount_nano,
        priority=priority,
        expires_at=expires_at,
        note=note,
        idempotency_key=idempotency_key or None,
        created_at=now,
    )
    known = _made_before(wanted)
    if known is not None:
        return known
    if expires_at is not None and expires_at <= now:
        raise ValueError("a grant cannot expire before it is made")
    try:
        with transaction.atomic(using=router.db_for_write(CreditGrant)):
            _make(wanted)
    except IntegrityError:
        # Somebody with the same key was a little faster.
        known = _made_before(wanted)
        if known is None:
            raise
        return known
    return wanted


def draw(new: Iterable[Entry]) -> None:
    """Let credit pay what usage would owe, as far as it reaches; and give back what reversals take back.

    In the transaction that writes the entries, between their journals and their postings. A turn takes of grants that
    had not expired when it started, the smallest priority first, then what expires first, then the oldest. What is
    given back goes to the grants that it came from, though they have expired: a turn that is rated again finds it
    there, and what is left then is written off like any rest.
    """
    new = list(new)
    wanting = [entry for entry in new if _may_draw(entry)]
    returning = [entry for entry in new if entry.journal.reverses_id and entry.amounts.get(PREPAID)]
    if not wanting and not returning:
        return
    given = _uses_of(returning)
    grants = _lock(wanting, given)
    uses: list[_Use] = []
    for entry in new:
        if entry.journal.reverses_id in given:
            uses += _give_back(entry, given[entry.journal.reverses_id], grants)
        elif _may_draw(entry):
            uses += _take(entry, grants.values())
    _write(uses)


def expire(now: datetime | None = None) -> int:
    """Write off what is left of grants that have expired. Returns how many.

    A grant waits as long as turns that started before it expired are not billed: they may still use it.
    """
    now = now or timezone.now()
    expired = CreditGrant.objects.expired(now - PATIENCE)
    return sum(_write_off(pk, now) for pk in list(expired.values_list("pk", flat=True)))


def _make(wanted: CreditGrant) -> None:
    wanted.save(force_insert=True)
    journal = Journal(
        idempotency_key=f"grant:{wanted.pk}",
        kind=Journal.Kind.GRANT,
        organization_id=wanted.organization_id,
        memo=wanted.note,
        occurred_at=wanted.created_at,
        posted_at=wanted.created_at,
    )
    amounts = {COMES_FROM[CreditGrant.Kind(wanted.kind)]: wanted.amount_nano, PREPAID: -wanted.amount_nano}
    _enter(Entry(journal=journal, currency=wanted.currency, amounts=amounts))
    # Who was refused for want of credit is let in again.
    ControlMessage.objects.tell("budgets_changed", organization_id=wanted.organization_id)


def _made_before(wanted: CreditGrant) -> CreditGrant | None:
    if wanted.idempotency_key is None:
        return None
    known = CreditGrant.objects.filter(idempotency_key=wanted.idempotency_key).first()
    if known is None:
        return None
    if _said_of(known) != _said_of(wanted):
        raise GrantConflict(f"the key {wanted.idempotency_key} was used for another grant, number {known.pk}")
    return known


def _said_of(one: CreditGrant) -> tuple[object, ...]:
    return (one.organization_id, one.kind, one.amount_nano, one.priority, one.expires_at)


def _may_draw(entry: Entry) -> bool:
    return entry.journal.kind == Journal.Kind.USAGE and entry.amounts.get(RECEIVABLE, 0) > 0


def _uses_of(returning: list[Entry]) -> dict[int, list[GrantUse]]:
    """By entry that is reversed, what it took."""
    reversed_ids = [entry.journal.reverses_id for entry in returning]
    uses: dict[int, list[GrantUse]] = defaultdict(list)
    if reversed_ids:
        for use in GrantUse.objects.filter(journal__in=reversed_ids).order_by("pk"):
            uses[use.journal_id].append(use)
    return dict(uses)


def _lock(wanting: list[Entry], given: dict[int, list[GrantUse]]) -> dict[int, CreditGrant]:
    """The grants that may be changed, held until the end of the transaction, in the order in which they are used up."""
    using = router.db_for_write(CreditGrant)
    organizations = {entry.journal.organization_id for entry in wanting}
    returned = {use.grant_id for uses in given.values() for use in uses}
    wanted = Q(organization__in=organizations, remaining_nano__gt=0) | Q(pk__in=returned)
    rows = CreditGrant.objects.using(using).filter(wanted).order_by("pk")
    if connections[using].features.has_select_for_update:
        rows = rows.select_for_update()
    return {one.pk: one for one in sorted(rows, key=_rank)}


def _rank(one: CreditGrant) -> tuple[int, bool, float, int]:
    ends = one.expires_at
    return one.priority, ends is None, 0.0 if ends is None else ends.timestamp(), one.pk


def _take(entry: Entry, grants: Iterable[CreditGrant]) -> Iterator[_Use]:
    assert entry.record is not None, "usage is of a record"
    for one in grants:
        wanted = entry.amounts[RECEIVABLE]
        if wanted <= 0:
            return
        is_its = one.organization_id == entry.journal.organization_id and one.currency == entry.currency
        if is_its and one.remaining_nano and one.is_valid_at(entry.record.started_at):
            amount = min(one.remaining_nano, wanted)
            entry.move(amount, RECEIVABLE, PREPAID)
            one.remaining_nano -= amount
            yield _Use(entry.journal, one, amount)


def _give_back(entry: Entry, uses: list[GrantUse], grants: dict[int, CreditGrant]) -> Iterator[_Use]:
    for use in uses:
        one = grants[use.grant_id]
        one.remaining_nano += use.amount_nano
        yield _Use(entry.journal, one, -use.amount_nano)


def _write(uses: list[_Use]) -> None:
    """Note the uses, and move what is left of their grants: one update for each, in the order of their ids."""
    GrantUse.objects.bulk_create(
        GrantUse(journal=use.journal, grant=use.grant, amount_nano=use.amount_nano) for use in uses
    )
    moved: dict[int, int] = defaultdict(int)
    for use in uses:
        moved[use.grant.pk] += use.amount_nano
    for pk, amount in sorted(moved.items()):
        CreditGrant.objects.filter(pk=pk).update(remaining_nano=F("remaining_nano") - amount)


def _write_off(pk: int, now: datetime) -> bool:
    using = router.db_for_write(CreditGrant)
    with transaction.atomic(using=using):
        rows = CreditGrant.objects.using(using).expired(now - PATIENCE).filter(pk=pk)
        if connections[using].features.has_select_for_update:
            rows = rows.select_for_update()
        one = rows.first()
        if one is None or _is_awaited(one):
            return False
        # Again where something was given back after the first time.
        times = one.uses.filter(journal__kind=Journal.Kind.EXPIRY).aggregate(count=Count("pk"))["count"]
        journal = Journal(
            idempotency_key=f"expiry:{one.pk}:{times + 1}",
            kind=Journal.Kind.EXPIRY,
            organization_id=one.organization_id,
            memo=one.note,
            occurred_at=one.expires_at,
            posted_at=now,
        )
        rest = one.remaining_nano
        amounts = {PREPAID: rest, GOES_TO[CreditGrant.Kind(one.kind)]: -rest}
        _enter(Entry(journal=journal, currency=one.currency, amounts=amounts), _Use(journal, one, rest))
        faultpoint("expiry.written")
    return True


def _is_awaited(one: CreditGrant) -> bool:
    """Whether a turn that could use the grant is not billed yet."""
    records = UsageRecord.objects.filter(organization_id=one.organization_id, started_at__lt=one.expires_at)
    return records.awaiting_bill().exists()


def _enter(entry: Entry, *uses: _Use) -> None:
    entry.journal.save(force_insert=True)
    _write(list(uses))
    entries.write_postings([entry])
