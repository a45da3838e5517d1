"""What an organisation is asked to pay. Cents exist here only; everything before is counted in nano units."""

from datetime import date, datetime, timedelta

from django.db import models
from django.db.models import Count, F, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from .accounts import ApiKey, Organization, Project
from .ledger import Account, Posting, sum_of


class InvoiceQuerySet(models.QuerySet["Invoice"]):
    def drafts(self) -> "InvoiceQuerySet":
        """Claims that are not made yet, the earliest period first."""
        return self.filter(kind=Invoice.Kind.INVOICE, status=Invoice.Status.DRAFT).order_by("period_start", "pk")

    def standing(self) -> "InvoiceQuerySet":
        """Invoices that count: drafts too, void ones not. Of a period there is one."""
        return self.filter(kind=Invoice.Kind.INVOICE).exclude(status=Invoice.Status.VOID)

    def numbered(self) -> "InvoiceQuerySet":
        return self.exclude(number=None)

    def overdue(self, now: datetime) -> "InvoiceQuerySet":
        """Finalised, due before ``now``, and something is still to be paid."""
        waiting = self.filter(kind=Invoice.Kind.INVOICE, status=Invoice.Status.FINALIZED, due_at__lt=now)
        return waiting.with_open().filter(open_cents__gt=0)

    def with_open(self) -> "InvoiceQuerySet":
        """Adds ``credited_cents``, 0 or less, and ``open_cents``: the total, less what was credited."""
        notes = Invoice.objects.filter(kind=Invoice.Kind.CREDIT_NOTE).numbered()
        credited = sum_of(notes, "corrects", "total_cents")
        return self.annotate(credited_cents=credited, open_cents=F("total_cents") + F("credited_cents"))

    def with_claims(self) -> "InvoiceQuerySet":
        """Adds ``claimed_nano``, what the entries on it say is owed, and ``lines_nano``, the sum of its lines."""
        claimed = Posting.objects.filter(
            account__kind=Account.Kind.RECEIVABLE, journal__usage__isnull=False, account__currency=OuterRef("currency")
        )
        return self.annotate(
            claimed_nano=sum_of(claimed, "journal__invoice", "amount_nano"),
            lines_nano=sum_of(InvoiceLine.objects.all(), "invoice", "amount_nano"),
        )


class Invoice(models.Model):
    """The claim for a period: a draft until it is finalised, then immutable but for what becomes of it.

    A credit note is an invoice that gives back: of ``corrects``, with a series of numbers of its own.
    """

    class Kind(models.TextChoices):
        INVOICE = "invoice", "invoice"
        CREDIT_NOTE = "credit_note", "credit note"

    class Status(models.TextChoices):
        DRAFT = "draft", "draft"
        FINALIZED = "finalized", "finalised"
        PAID = "paid", "paid"
        VOID = "void", "void"

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="invoices")
    kind = models.CharField(max_length=12, choices=Kind.choices, default=Kind.INVOICE)
    corrects = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="credit_notes")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.DRAFT)
    number = models.PositiveIntegerField(null=True, editable=False, help_text="Without gaps, by organisation and kind.")
    reference = models.CharField("number", max_length=80, blank=True, editable=False, help_text="As it is printed.")
    currency = models.CharField(max_length=3, default="USD")
    period_start = models.DateTimeField()
    period_end = models.DateTimeField(help_text="No longer part of it.")
    amount_nano = models.BigIntegerField(default=0, editable=False, help_text="What is owed, before rounding.")
    total_cents = models.BigIntegerField(default=0, editable=False)
    billed_to = models.TextField(blank=True, editable=False, help_text="As it was when the invoice was finalised.")
    issuer = models.TextField(blank=True, editable=False, help_text="Who asks for it; as it was then, too.")
    memo = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    computed_at = models.DateTimeField(null=True, editable=False, help_text="Its lines are what they were then.")
    finalized_at = models.DateTimeField(null=True, editable=False)
    due_at = models.DateTimeField(null=True, editable=False)
    paid_at = models.DateTimeField(null=True, editable=False)
    voided_at = models.DateTimeField(null=True, editable=False)

    objects = InvoiceQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        permissions = [("settle_invoice", "Can finalise, void and mark invoices as paid")]
        constraints = [
            models.UniqueConstraint(fields=("organization", "kind", "number"), name="responses_ws_invoice_number"),
            models.UniqueConstraint(
                fields=("reference",), condition=~Q(reference=""), name="responses_ws_invoice_reference"
            ),
            models.UniqueConstraint(
                fields=("organization", "currency", "period_start"),
                condition=Q(kind="invoice") & ~Q(status="void"),
                name="responses_ws_invoice_period_once",
            ),
            models.CheckConstraint(
                condition=Q(period_end__gt=F("period_start")), name="responses_ws_invoice_period_order"
            ),
            models.CheckConstraint(
                condition=Q(status="draft", number=None) | (~Q(status="draft") & Q(number__isnull=False)),
                name="responses_ws_invoice_numbered",
            ),
        ]

    def __str__(self) -> str:
        return self.reference or f"{self.organization}: draft of {self.period_start:%B %Y}"

    @property
    def last_day(self) -> date:
        """Of its period."""
        return (self.period_end - timedelta(microseconds=1)).date()

    @property
    def claims(self) -> bool:
        """Whether entries are on it."""
        return self.kind == self.Kind.INVOICE and self.status in (self.Status.FINALIZED, self.Status.PAID)


class InvoiceLine(models.Model):
    """One line: what a key of a project used of a model, or what brings the sum to cents.

    Names are copies: an invoice says what it said on the day it was sent.
    """

    class Section(models.TextChoices):
        USAGE = "usage", "usage"
        LATE = "late", "late usage of earlier periods"
        CORRECTION = "correction", "corrections"
        CREDIT = "credit", "credit used"
        ROUNDING = "rounding", "rounding"

    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="lines")
    section = models.CharField(max_length=12, choices=Section.choices)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, null=True, related_name="+")
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, null=True, related_name="+")
    project_name = models.CharField(max_length=200, blank=True)
    key_name = models.CharField(max_length=200, blank=True)
    model = models.CharField(max_length=200, blank=True)
    description = models.CharField(max_length=200, blank=True)
    responses = models.BigIntegerField(default=0, help_text="Below 0 where more was taken back than used.")
    tokens = models.BigIntegerField(default=0)
    amount_nano = models.BigIntegerField()

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.section}: {self.amount_nano}"


class InvoiceSeriesQuerySet(models.QuerySet["InvoiceSeries"]):
    def with_wrong_count(self) -> "InvoiceSeriesQuerySet":
        """Series whose last number is not the count of their invoices (``counted``), as numbers are there once."""
        mine = Invoice.objects.numbered().filter(organization=OuterRef("organization"), kind=OuterRef("kind"))
        counts = mine.order_by().values("organization").annotate(total=Count("pk")).values("total")
        return self.annotate(counted=Coalesce(Subquery(counts), 0)).exclude(last_number=F("counted"))


class InvoiceSeries(models.Model):
    """The last number of a series. Whoever finalises holds this row: numbers have no gaps."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=12, choices=Invoice.Kind.choices)
    last_number = models.PositiveIntegerField(default=0)

    objects = InvoiceSeriesQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=("organization", "kind"), name="responses_ws_series_once")]

    def __str__(self) -> str:
        return f"{self.organization} {self.kind} {self.last_number}"
