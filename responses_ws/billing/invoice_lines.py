"""The lines of an invoice: entries of the ledger, added up by the database by project, key and model."""

from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Case, Exists, F, FilteredRelation, OuterRef, Q, Sum, Value, When
from django.db.models.functions import Coalesce

from responses_ws.models import Account, Component, GrantUse, Invoice, InvoiceLine, Journal, Organization, RatedLine
from responses_ws.models.ledger import JournalQuerySet, sum_of

from .entries import RECEIVABLE, REVENUE
from .money import cents_of, nano_per_cent

Section = InvoiceLine.Section
SECTIONS = (Section.USAGE, Section.LATE, Section.CORRECTION, Section.CREDIT, Section.ROUNDING)
"""In the order of an invoice."""
EFFECTIVE = Coalesce("reverses__occurred_at", "occurred_at")
"""When what an entry is about was used: what takes an entry back belongs to the entry's time."""


class Totals(msgspec.Struct, frozen=True):
    """What lines add up to: nano units that are owed, and the cents that are asked for."""

    amount_nano: int
    total_cents: int
    rounding_nano: int


def unclaimed(organization: Organization, before: datetime, since: datetime | None = None) -> JournalQuerySet:
    """Rated entries on no invoice, for what was used in [since, before)."""
    rows = Journal.objects.rated().filter(organization=organization, invoice=None)
    rows = rows.alias(effective_at=EFFECTIVE).filter(effective_at__lt=before)
    return rows if since is None else rows.filter(effective_at__gte=since)


def claim(invoice: Invoice) -> int:
    """Put what is unclaimed before the end of its period on the invoice. Returns how many entries."""
    mine = Journal.objects.rated().filter(organization=invoice.organization_id, invoice=None)
    # Two plain statements: one that joins would look every entry up twice.
    used = mine.filter(kind=Journal.Kind.USAGE, occurred_at__lt=invoice.period_end)
    taken_back = Journal.objects.filter(pk=OuterRef("reverses"), occurred_at__lt=invoice.period_end)
    returned = mine.filter(Exists(taken_back), kind=Journal.Kind.REVERSAL)
    return sum(rows.order_by().update(invoice=invoice) for rows in (used, returned))


def write_lines(invoice: Invoice, entries: JournalQuerySet) -> Totals:
    """Write the invoice's lines anew from ``entries``, and say what they add up to."""
    groups = list(_groups(invoice, entries))
    lines = [_line(invoice, group) for group in groups if group["responses"] or group["tokens"] or group["gross"]]
    lines.sort(key=lambda line: (SECTIONS.index(line.section), line.project_name, line.key_name, line.model))
    lines += _credit_lines(invoice, entries)
    amount = sum(group["owed"] for group in groups)
    assert amount == sum(line.amount_nano for line in lines), "lines and ledger say something else"
    cents = cents_of(amount, invoice.currency)
    rounding = cents * nano_per_cent(invoice.currency) - amount
    if rounding:
        lines.append(
            InvoiceLine(invoice=invoice, section=Section.ROUNDING, description="Rounding", amount_nano=rounding)
        )
    InvoiceLine.objects.filter(invoice=invoice).delete()
    InvoiceLine.objects.bulk_create(lines)
    return Totals(amount, cents, rounding)


def _groups(invoice: Invoice, entries: JournalQuerySet) -> Any:
    """Rows of ``section``, project, key, model and their sums; one pass over the entries and their postings."""
    found = Account.objects.filter(organization=invoice.organization_id, currency=invoice.currency)
    accounts = dict(found.values_list("kind", "pk"))
    elsewhere = Journal.objects.exclude(invoice=None).exclude(invoice=invoice)
    is_correction = Q(
        Q(kind=Journal.Kind.REVERSAL) & Exists(elsewhere.filter(pk=OuterRef("reverses")))
        # Ratings behind one that was sent, and reversals of these.
        | Q(rating_version__gt=1) & Exists(elsewhere.usage().filter(usage=OuterRef("usage")))
    )
    section = Case(
        When(is_correction, then=Value(str(Section.CORRECTION))),
        When(effective_at__lt=invoice.period_start, then=Value(str(Section.LATE))),
        default=Value(str(Section.USAGE)),
    )
    sign = Case(When(kind=Journal.Kind.REVERSAL, then=-1), default=1)
    return (
        entries.order_by()
        .alias(
            effective_at=EFFECTIVE,
            earned=FilteredRelation("postings", condition=Q(postings__account=accounts.get(REVENUE, 0))),
            owing=FilteredRelation("postings", condition=Q(postings__account=accounts.get(RECEIVABLE, 0))),
        )
        .values(
            section=section,
            project=F("usage__project"),
            project_name=F("usage__project__name"),
            key=F("usage__api_key"),
            key_name=F("usage__api_key__name"),
            model=F("usage__model"),
        )
        .annotate(
            responses=Sum(sign),
            tokens=Sum(sign * _tokens()),
            gross=-Coalesce(Sum("earned__amount_nano"), 0),
            owed=Coalesce(Sum("owing__amount_nano"), 0),
        )
    )


def _tokens() -> Case:
    """Those of an entry. Once it was taken back its record may say others: its own working knows."""
    of_record = F("usage__input_tokens") + F("usage__output_tokens")
    lines = RatedLine.objects.exclude(component=Component.TOOL_CALL)
    return Case(
        When(kind=Journal.Kind.REVERSAL, then=sum_of(lines, "journal", "quantity", of="reverses")),
        When(reversed_by__isnull=False, then=sum_of(lines, "journal", "quantity")),
        default=of_record,
    )


def _line(invoice: Invoice, group: dict[str, Any]) -> InvoiceLine:
    return InvoiceLine(
        invoice=invoice,
        section=group["section"],
        project_id=group["project"],
        project_name=group["project_name"],
        api_key_id=group["key"],
        key_name=group["key_name"] or "",
        model=group["model"],
        responses=group["responses"],
        tokens=group["tokens"],
        amount_nano=group["gross"],
    )


def _credit_lines(invoice: Invoice, entries: JournalQuerySet) -> list[InvoiceLine]:
    """What was taken of each grant, in the order of their ids."""
    uses = GrantUse.objects.order_by("grant").filter(journal__in=entries.order_by().values("pk"))
    sums = uses.values("grant", "grant__kind", "grant__note", "grant__created_at").annotate(used=Sum("amount_nano"))
    return [
        InvoiceLine(
            invoice=invoice,
            section=Section.CREDIT,
            description=_named(row["grant__kind"], row["grant__created_at"], row["grant__note"]),
            amount_nano=-row["used"],
        )
        for row in sums
        if row["used"]
    ]


def _named(kind: str, created_at: datetime, note: str) -> str:
    said = f"{'Prepaid' if kind == 'paid' else 'Promotional'} credit of {created_at:%Y-%m-%d}"
    return f"{said}: {note}"[:200] if note else said
