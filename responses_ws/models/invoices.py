"""What an organisation is asked to pay. Cents exist here only; everything before is counted in nano units."""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from .accounts import ApiKey, Organization, Project


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
    currency = models.CharField(max_length=3, default="USD")
    period_start = models.DateTimeField()
    period_end = models.DateTimeField(help_text="No longer part of it.")
    amount_nano = models.BigIntegerField(default=0, editable=False, help_text="The sum of its lines.")
    total_cents = models.BigIntegerField(default=0, editable=False)
    billed_to = models.TextField(blank=True, editable=False, help_text="As it was when the invoice was finalised.")
    memo = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    finalized_at = models.DateTimeField(null=True, editable=False)
    due_at = models.DateTimeField(null=True, editable=False)
    paid_at = models.DateTimeField(null=True, editable=False)
    voided_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ("-id",)
        permissions = [("settle_invoice", "Can finalise, void and mark invoices as paid")]
        constraints = [
            models.UniqueConstraint(fields=("organization", "kind", "number"), name="responses_ws_invoice_number"),
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
        return f"{self.organization}: {self.get_kind_display()} {self.number or 'in draft'}"


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
    responses = models.PositiveBigIntegerField(default=0)
    tokens = models.PositiveBigIntegerField(default=0)
    amount_nano = models.BigIntegerField()

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.section}: {self.amount_nano}"


class InvoiceSeries(models.Model):
    """The last number of a series. Whoever finalises holds this row: numbers have no gaps."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=12, choices=Invoice.Kind.choices)
    last_number = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=("organization", "kind"), name="responses_ws_series_once")]

    def __str__(self) -> str:
        return f"{self.organization} {self.kind} {self.last_number}"
