"""Prices and the double-entry ledger. Money is an integer of nano-USD (10⁻⁹ USD), everywhere."""

from datetime import datetime

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from .accounts import Organization
from .usage import UsageRecord


class Component(models.TextChoices):
    """What a price is for. The parts of a response's tokens that never overlap."""

    INPUT = "input", "input (uncached)"
    CACHED_INPUT = "cached_input", "cached input"
    CACHE_WRITE = "cache_write", "cache write"
    OUTPUT = "output", "output"
    REASONING = "reasoning", "reasoning"


class PriceQuerySet(models.QuerySet["Price"]):
    def valid_at(self, moment: datetime) -> "PriceQuerySet":
        """Prices whose interval holds ``moment``; the start belongs to the interval, the end does not."""
        return self.filter(valid_from__lte=moment).filter(Q(valid_to=None) | Q(valid_to__gt=moment))


class Price(models.Model):
    """What a million tokens of one component of one model cost, from one moment to another.

    A price is not edited once it was used: end it and start another. A turn keeps the price of its start.
    """

    model = models.CharField(max_length=200)
    component = models.CharField(max_length=20, choices=Component.choices)
    nano_per_million = models.PositiveBigIntegerField(help_text="nano-USD for 1,000,000 tokens.")
    valid_from = models.DateTimeField(default=timezone.now)
    valid_to = models.DateTimeField(null=True, blank=True, help_text="Empty: until further notice.")

    objects = PriceQuerySet.as_manager()

    class Meta:
        ordering = ("model", "component", "-valid_from")
        constraints = [
            models.UniqueConstraint(fields=("model", "component", "valid_from"), name="responses_ws_price_start"),
            models.UniqueConstraint(
                fields=("model", "component"), condition=Q(valid_to=None), name="responses_ws_price_one_open"
            ),
            models.CheckConstraint(
                condition=Q(valid_to=None) | Q(valid_to__gt=F("valid_from")), name="responses_ws_price_interval"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.component} from {self.valid_from:%Y-%m-%d}"


class Account(models.Model):
    """One side of the books of an organisation. ``balance_nano`` is the sum of its postings."""

    class Kind(models.TextChoices):
        RECEIVABLE = "receivable", "receivable (what they owe)"
        REVENUE = "revenue", "revenue"

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="accounts")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    currency = models.CharField(max_length=3, default="USD")
    balance_nano = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("organization", "kind")
        constraints = [
            models.UniqueConstraint(fields=("organization", "kind", "currency"), name="responses_ws_account_once")
        ]

    def __str__(self) -> str:
        return f"{self.organization} {self.kind} {self.currency}"


class Journal(models.Model):
    """One entry of the ledger: its postings sum to zero. Added, never changed."""

    class Kind(models.TextChoices):
        USAGE = "usage", "usage"
        REVERSAL = "reversal", "reversal"

    idempotency_key = models.CharField(max_length=200, unique=True, editable=False)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    usage = models.ForeignKey(UsageRecord, on_delete=models.PROTECT, null=True, related_name="journals")
    reverses = models.OneToOneField("self", on_delete=models.PROTECT, null=True, blank=True, related_name="reversed_by")
    memo = models.CharField(max_length=200, blank=True, help_text="Why the amount is what it is.")
    occurred_at = models.DateTimeField(db_index=True)
    posted_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "journal"

    def __str__(self) -> str:
        return self.idempotency_key


class RatedLine(models.Model):
    """Tokens of one component times a price: the working behind a journal entry."""

    journal = models.ForeignKey(Journal, on_delete=models.PROTECT, related_name="lines")
    component = models.CharField(max_length=20, choices=Component.choices)
    quantity = models.PositiveBigIntegerField(help_text="Tokens.")
    price = models.ForeignKey(Price, on_delete=models.PROTECT, null=True, related_name="+")
    amount_nano = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("journal", "component"), name="responses_ws_line_once_per_component")
        ]

    def __str__(self) -> str:
        return f"{self.component} × {self.quantity}"


class Posting(models.Model):
    """An amount on an account. Positive is debit, negative is credit."""

    journal = models.ForeignKey(Journal, on_delete=models.PROTECT, related_name="postings")
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="postings")
    amount_nano = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=("journal", "account"), name="responses_ws_posting_once")]

    def __str__(self) -> str:
        return f"{self.account}: {self.amount_nano}"
