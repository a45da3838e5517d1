"""Invoices: a draft after each month, a number when it is finalised, and what becomes of it.

Whoever changes an invoice holds its row, then that of its series, then entries and accounts. A rated entry is on the
invoice that claims it and on no other; what comes too late for its month is on the next one that is finalised.
"""

import logging
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import IntegrityError, connections, router, transaction
from django.db.models import F, Min, QuerySet
from django.utils import timezone

from responses_ws.conf import app_settings
from responses_ws.models import Account, Invoice, InvoiceLine, InvoiceSeries, Journal, Organization
from responses_ws.runtime.faults import faultpoint

from . import entries
from .entries import RECEIVABLE, REVENUE, Entry
from .invoice_lines import claim, unclaimed, write_lines
from .money import nano_per_cent

logger = logging.getLogger(__name__)

CASH, ROUNDING = str(Account.Kind.CASH), str(Account.Kind.ROUNDING)
A_DAY = timedelta(days=1)
Kind: Any = Invoice.Kind
Status: Any = Invoice.Status


class InvoiceError(ValueError):
    """What is asked of an invoice is not possible as it stands; the message says why."""


def month_of(moment: datetime) -> tuple[datetime, datetime]:
    """The calendar month of UTC that holds ``moment``: its start, and the next one's."""
    start = moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=31)).replace(day=1)


def make_drafts(now: datetime | None = None) -> int:
    """Draft what is not yet on an invoice of the months that are over. Returns how many new drafts there are."""
    now = now or timezone.now()
    return sum(_draft_months(organization, now) for organization in _invoiced())


def draft(organization: Organization, start: datetime, end: datetime) -> Invoice | None:
    """A draft for [start, end), with the lines that it would have now. None where the period has one already."""
    invoice = Invoice(organization=organization, currency=organization.currency, period_start=start, period_end=end)
    try:
        with transaction.atomic(using=router.db_for_write(Invoice)):
            invoice.save(force_insert=True)
            preview(invoice)
    except IntegrityError:
        return None
    return invoice


def preview(invoice: Invoice) -> None:
    """Compute a draft again. It claims nothing: what is on it can still be taken back."""
    with transaction.atomic(using=router.db_for_write(Invoice)):
        one = _hold(invoice, Status.DRAFT)
        earlier = _earlier_drafts(one).last()
        rows = unclaimed(one.organization, one.period_end, earlier and earlier.period_end)
        sums = write_lines(one, rows)
        _update(invoice, amount_nano=sums.amount_nano, total_cents=sums.total_cents, computed_at=timezone.now())


def finalize(invoice: Invoice, now: datetime | None = None) -> None:
    """Give a draft its number and its final lines. Nothing of it changes any more, but for what becomes of it.

    Raises `InvoiceError`: it is no draft, its period is not over, or an earlier draft would lose its entries to it.
    """
    now = now or timezone.now()
    with transaction.atomic(using=router.db_for_write(Invoice)):
        one = _hold(invoice, Status.DRAFT)
        if one.period_end > now:
            raise InvoiceError(f"the period ends at {one.period_end:%Y-%m-%d %H:%M} UTC")
        earlier = _earlier_drafts(one).first()
        if earlier is not None:
            raise InvoiceError(f"the draft of {earlier.period_start:%B %Y} comes first")
        number = _next_number(one)
        faultpoint("invoice.numbered")
        claim(one)
        faultpoint("invoice.claimed")
        sums = write_lines(one, Journal.objects.rated().filter(invoice=one))
        faultpoint("invoice.lined")
        amounts = {RECEIVABLE: sums.rounding_nano, ROUNDING: -sums.rounding_nano}
        _enter(one, Journal.Kind.INVOICE, f"invoice:{one.pk}", amounts, now, "rounding to cents")
        faultpoint("invoice.posted")
        _number(invoice, number, now, amount_nano=sums.amount_nano, total_cents=sums.total_cents)
        if not sums.total_cents:
            _update(invoice, status=Status.PAID, paid_at=now)
        faultpoint("invoice.written")
    faultpoint("invoice.committed")


def finalize_due(now: datetime | None = None) -> int:
    """Finalise the drafts whose grace is over, the earliest of each organisation first. Returns how many."""
    now = now or timezone.now()
    if not app_settings.INVOICE_FINALIZE:
        return 0
    done = 0
    before = now - timedelta(hours=app_settings.INVOICE_GRACE_HOURS)
    # A draft that was made again, or late, is looked at for as long as any other.
    for one in Invoice.objects.drafts().filter(period_end__lte=before, created_at__lte=before):
        try:
            finalize(one, now)
            done += 1
        except InvoiceError as exc:
            # Somebody was faster, or an earlier draft is still looked at.
            logger.info("Draft %d is left: %s", one.pk, exc)
    return done


def pay(invoice: Invoice, paid_at: datetime | None = None, memo: str = "") -> None:
    """It was paid: all that was not credited. Below 0 it was paid back.

    Raises `InvoiceError`: it waits for no payment; or it is a credit note, and what it gives back was never paid.
    """
    paid_at = paid_at or timezone.now()
    with transaction.atomic(using=router.db_for_write(Invoice)):
        one = _hold(invoice, Status.FINALIZED)
        if one.kind == Kind.CREDIT_NOTE and not _follows_payment(one):
            raise InvoiceError("its invoice asks for so much less: nothing was paid that could be paid back")
        amount = open_cents(one) * nano_per_cent(one.currency)
        _enter(one, Journal.Kind.PAYMENT, f"payment:{one.pk}", {CASH: amount, RECEIVABLE: -amount}, paid_at, memo)
        _update(invoice, status=Status.PAID, paid_at=paid_at)


def void(invoice: Invoice, memo: str = "") -> Invoice:
    """It was a mistake: its number stays used, its entries are on no invoice. Returns the draft in its place.

    Raises `InvoiceError`: it is not finalised, was paid, or something was credited for it; or it is a credit note.
    """
    now = timezone.now()
    with transaction.atomic(using=router.db_for_write(Invoice)):
        one = _hold(invoice, Status.FINALIZED, Status.PAID)
        if one.kind != Kind.INVOICE:
            raise InvoiceError("a credit note stays")
        if one.status == Status.PAID and one.total_cents:
            raise InvoiceError("it was paid: give it back with a credit note")
        if one.credit_notes.exists():
            raise InvoiceError("something was credited for it: credit the rest, too")
        rounding = Journal.objects.filter(idempotency_key=f"invoice:{one.pk}").first()
        if rounding is not None:
            amounts = {posting.account.kind: -posting.amount_nano for posting in rounding.postings.all()}
            _enter(one, Journal.Kind.REVERSAL, f"void:{one.pk}", amounts, now, memo, reverses=rounding)
        Journal.objects.rated().filter(invoice=one).order_by().update(invoice=None)
        faultpoint("invoice.released")
        _update(invoice, status=Status.VOID, voided_at=now, memo=memo[:300])
        again = draft(one.organization, one.period_start, one.period_end)
        assert again is not None, "a void invoice leaves its period free"
    return again


def credit(invoice: Invoice, cents: int | None = None, memo: str = "") -> Invoice:
    """A credit note for a part of an invoice, or for all that is left of it. Its amounts are below 0.

    Raises `InvoiceError`: there is nothing to give back, or less than that.
    """
    now = timezone.now()
    with transaction.atomic(using=router.db_for_write(Invoice)):
        one = _hold(invoice, Status.FINALIZED, Status.PAID)
        if one.kind != Kind.INVOICE:
            raise InvoiceError("it is a credit note itself")
        left = open_cents(one)
        given = left if cents is None else cents
        if not 0 < given <= left:
            raise InvoiceError("a credit note is of more than 0, and of no more than is left of the invoice")
        unit = nano_per_cent(one.currency)
        # All of it takes back what was rounded, too; a part is of whole cents.
        is_whole = given == one.total_cents
        rounding = one.total_cents * unit - one.amount_nano if is_whole else 0
        note = Invoice(
            organization_id=one.organization_id,
            kind=Kind.CREDIT_NOTE,
            corrects=one,
            currency=one.currency,
            period_start=one.period_start,
            period_end=one.period_end,
            memo=memo[:300],
        )
        note.save(force_insert=True)
        number = _next_number(note)
        InvoiceLine.objects.bulk_create(_credited(note, one, -given * unit, is_whole=is_whole))
        amounts = {REVENUE: given * unit - rounding, RECEIVABLE: -given * unit}
        if rounding:
            amounts[ROUNDING] = rounding
        _enter(note, Journal.Kind.CREDIT_NOTE, f"credit_note:{note.pk}", amounts, now, memo)
        _number(note, number, now, amount_nano=rounding - given * unit, total_cents=-given)
    return note


def forgotten(now: datetime) -> Iterator[tuple[Organization, int]]:
    """Organisations whose usage should be on an invoice by now, or on a draft, and how many entries that are.

    What was entered before the start of a month is on an invoice when the grace of the month before is over, whatever
    time it is about.
    """
    month, _ = month_of(now - timedelta(hours=app_settings.INVOICE_GRACE_HOURS) - A_DAY)
    drafted = Invoice.objects.drafts().values("organization")
    for organization in _invoiced().exclude(pk__in=drafted):
        count = unclaimed(organization, month).filter(posted_at__lt=month).that_cost().count()
        if count:
            yield organization, count


def open_cents(invoice: Invoice) -> int:
    """What is asked for and was not credited; with a payment, what was paid."""
    return invoice.total_cents + sum(invoice.credit_notes.numbered().values_list("total_cents", flat=True))


def _invoiced() -> QuerySet[Organization]:
    who = app_settings.INVOICES
    if who == "off":
        return Organization.objects.none()
    organizations = Organization.objects.order_by("pk")
    return organizations if who == "all" else organizations.filter(is_prepaid=False)


def _draft_months(organization: Organization, now: datetime) -> int:
    this_month, _ = month_of(now)
    oldest = Journal.objects.rated().filter(organization=organization, invoice=None, occurred_at__lt=this_month)
    since = oldest.aggregate(oldest=Min("occurred_at"))["oldest"]
    if since is None:
        return 0
    standing = Invoice.objects.standing().filter(organization=organization, currency=organization.currency)
    status_by_start = dict(standing.values_list("period_start", "status"))
    made, covered_until = 0, None
    start, end = month_of(since)
    while start < this_month:
        status = status_by_start.get(start)
        if status == Status.DRAFT:
            covered_until = end
        elif status is None and _has_amounts(organization, end, covered_until):
            made += draft(organization, start, end) is not None
            covered_until = end
        start, end = month_of(end)
    return made


def _has_amounts(organization: Organization, before: datetime, since: datetime | None) -> bool:
    """Whether something that cost money is unclaimed. What cost nothing waits for the next invoice."""
    return unclaimed(organization, before, since).that_cost().exists()


def _earlier_drafts(invoice: Invoice) -> QuerySet[Invoice]:
    mine = Invoice.objects.drafts().filter(organization=invoice.organization_id, currency=invoice.currency)
    return mine.filter(period_start__lt=invoice.period_start)


def _hold(invoice: Invoice, *statuses: Any) -> Invoice:
    """The invoice as it is now, held until the end of the transaction. Raises `InvoiceError`."""
    using = router.db_for_write(Invoice)
    rows = Invoice.objects.using(using).filter(pk=invoice.pk).select_related("organization")
    if connections[using].features.has_select_for_update:
        rows = rows.select_for_update(of=("self",))
    one = rows.get()
    if one.status not in statuses:
        raise InvoiceError(f"{one} is {one.get_status_display()}")
    return one


def _next_number(invoice: Invoice) -> int:
    """The next number of the series, which is held: who comes next waits, and none is left out if we fail."""
    series = InvoiceSeries.objects.filter(organization=invoice.organization_id, kind=invoice.kind)
    InvoiceSeries.objects.bulk_create(
        [InvoiceSeries(organization_id=invoice.organization_id, kind=invoice.kind)], ignore_conflicts=True
    )
    series.update(last_number=F("last_number") + 1)
    return series.values_list("last_number", flat=True).get()


def _number(invoice: Invoice, number: int, now: datetime, **amounts: int) -> None:
    """The last step of a draft."""
    is_claim = invoice.kind == Kind.INVOICE
    form = app_settings.INVOICE_NUMBER if is_claim else app_settings.CREDIT_NOTE_NUMBER
    organization = invoice.organization
    _update(
        invoice,
        status=Status.FINALIZED,
        number=number,
        reference=form.format(number=number, organization=organization.pk, year=invoice.period_start.year),
        billed_to=organization.billed_to or organization.name,
        issuer=app_settings.INVOICE_ISSUER,
        finalized_at=now,
        computed_at=now,
        due_at=now + timedelta(days=app_settings.INVOICE_NET_DAYS) if is_claim else None,
        **amounts,
    )


def _follows_payment(note: Invoice) -> bool:
    """Whether the invoice that a credit note corrects had been paid by then. Whoever does either holds that invoice."""
    keys = f"payment:{note.corrects_id}", f"credit_note:{note.pk}"
    pks = dict(Journal.objects.filter(idempotency_key__in=keys).values_list("kind", "pk"))
    return pks.get(Journal.Kind.PAYMENT, math.inf) < pks[Journal.Kind.CREDIT_NOTE]


def _update(invoice: Invoice, **fields: object) -> None:
    """Write fields, and put them on the caller's instance."""
    Invoice.objects.filter(pk=invoice.pk).update(**fields)
    for name, value in fields.items():
        setattr(invoice, name, value)


def _enter(
    invoice: Invoice,
    kind: Any,
    key: str,
    amounts: dict[str, int],
    occurred_at: datetime,
    memo: str,
    *,
    reverses: Journal | None = None,
) -> None:
    """Write an entry about an invoice; none where nothing moves."""
    if not any(amounts.values()):
        return
    journal = Journal(
        idempotency_key=key,
        kind=kind,
        organization_id=invoice.organization_id,
        invoice=invoice,
        reverses=reverses,
        memo=memo[:300],
        occurred_at=occurred_at,
        posted_at=timezone.now(),
    )
    journal.save(force_insert=True)
    entries.write_postings([Entry(journal=journal, currency=invoice.currency, amounts=amounts)])


def _credited(note: Invoice, invoice: Invoice, amount_nano: int, *, is_whole: bool) -> Iterator[InvoiceLine]:
    """The lines of a credit note: those of the invoice with the opposite sign, or one."""
    if not is_whole:
        what = f"Part of {invoice.reference}"
        yield InvoiceLine(
            invoice=note, section=InvoiceLine.Section.CORRECTION, description=what, amount_nano=amount_nano
        )
        return
    for line in invoice.lines.all():
        line.pk, line.invoice = None, note
        line.responses, line.tokens, line.amount_nano = -line.responses, -line.tokens, -line.amount_nano
        line._state.adding = True
        yield line
