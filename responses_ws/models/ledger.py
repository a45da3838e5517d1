"""The double-entry ledger. Money is an integer of nano units of its currency (10⁻⁹ USD, say), everywhere."""

from datetime import UTC, datetime
from typing import Any

from django.db import models
from django.db.models import Exists, F, OuterRef, Q, Subquery, Sum, Value
from django.db.models.functions import Coalesce, TruncDate
from django.utils import timezone

from .accounts import Organization
from .prices import Component, Price
from .usage import UsageRecord


def sum_of(rows: models.QuerySet[Any], key: str, field: str, *, of: str = "pk") -> Coalesce:
    """A sum over ``rows`` of the outer row, or of what it names by ``of``; 0 if there are none.

    Subqueries: two joins would multiply each other.
    """
    sums = rows.order_by().filter(**{key: OuterRef(of)}).values(key).annotate(total=Sum(field)).values("total")
    return Coalesce(Subquery(sums), 0, output_field=models.BigIntegerField())


class AccountQuerySet(models.QuerySet["Account"]):
    def owed_by_each(self) -> Coalesce:
        """For annotating organisations: what each owes, in nano-USD."""
        return sum_of(self.filter(kind=Account.Kind.RECEIVABLE), "organization", "balance_nano")

    def prepaid(self) -> "AccountQuerySet":
        """The accounts of credit: what is left of all grants, with the opposite sign."""
        return self.filter(kind=Account.Kind.PREPAID)

    def with_wrong_balance(self) -> "AccountQuerySet":
        """Accounts whose balance is not the sum of their postings (``posted_nano``)."""
        posted = sum_of(Posting.objects.all(), "account", "amount_nano")
        return self.annotate(posted_nano=posted).exclude(balance_nano=F("posted_nano"))


class Account(models.Model):
    """One side of the books of an organisation. ``balance_nano`` is the sum of its postings."""

    class Kind(models.TextChoices):
        RECEIVABLE = "receivable", "receivable (what they owe)"
        PREPAID = "prepaid", "prepaid (their credit)"
        REVENUE = "revenue", "revenue"
        PROMOTION = "promotion", "promotion (credit given away)"
        CASH = "cash", "cash (what they paid)"
        ROUNDING = "rounding", "rounding to cents"

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="accounts")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    currency = models.CharField(max_length=3, default="USD")
    balance_nano = models.BigIntegerField(default=0)

    objects = AccountQuerySet.as_manager()

    class Meta:
        ordering = ("organization", "kind")
        constraints = [
            models.UniqueConstraint(fields=("organization", "kind", "currency"), name="responses_ws_account_once")
        ]

    def __str__(self) -> str:
        return f"{self.organization} {self.kind} {self.currency}"


class JournalQuerySet(models.QuerySet["Journal"]):
    def usage(self) -> "JournalQuerySet":
        return self.filter(kind=Journal.Kind.USAGE)

    def rated(self) -> "JournalQuerySet":
        """What invoices claim: usage, and what takes usage back."""
        return self.filter(Q(kind=Journal.Kind.USAGE) | Q(kind=Journal.Kind.REVERSAL, usage__isnull=False))

    def that_cost(self) -> "JournalQuerySet":
        """Entries that say that something was earned, or was not; most of them are not of 0."""
        earned = Posting.objects.filter(journal=OuterRef("pk"), account__kind=Account.Kind.REVENUE)
        return self.filter(Exists(earned.exclude(amount_nano=0)))

    def standing(self) -> "JournalQuerySet":
        """Usage entries that nobody reversed."""
        return self.usage().filter(reversed_by=None)

    def memo_of_each(self) -> Subquery:
        """For annotating usage records: why each costs what it costs; None without a standing entry."""
        return Subquery(self.standing().order_by("-pk").filter(usage=OuterRef("pk")).values("memo")[:1])

    def with_wrong_lines(self) -> "JournalQuerySet":
        """Standing usage entries whose working is not their amount, or not the tokens of their usage record."""
        tokens = F("usage__input_tokens") + F("usage__output_tokens")
        return self.standing().with_sums().exclude(lines_nano=F("debit_nano"), lines_tokens=tokens)

    def that_reverse_wrongly(self) -> "JournalQuerySet":
        """Reversals of usage that do not take back what it cost: ``given_nano`` for ``taken_nano``."""
        rows = self.filter(kind=Journal.Kind.REVERSAL, usage__isnull=False)
        charges = Posting.objects.charges().order_by().values("journal").annotate(total=Sum("amount_nano"))
        sums = {
            name: Coalesce(Subquery(charges.filter(journal=OuterRef(key)).values("total")), Value(0))
            for name, key in (("given_nano", "pk"), ("taken_nano", "reverses"))
        }
        return rows.annotate(**sums).exclude(given_nano=-F("taken_nano"))

    def with_sums(self) -> "JournalQuerySet":
        """Adds what an entry adds up to.

        ``posted_nano`` is 0 for a right one, ``debit_nano`` what the usage cost, ``lines_nano`` and ``lines_tokens``
        the sums of the working.
        """
        return self.annotate(
            posted_nano=sum_of(Posting.objects.all(), "journal", "amount_nano"),
            debit_nano=sum_of(Posting.objects.charges(), "journal", "amount_nano"),
            lines_nano=sum_of(RatedLine.objects.all(), "journal", "amount_nano"),
            lines_tokens=sum_of(RatedLine.objects.exclude(component=Component.TOOL_CALL), "journal", "quantity"),
        )


class Journal(models.Model):
    """One entry of the ledger: its postings sum to zero. Added, never changed."""

    class Kind(models.TextChoices):
        USAGE = "usage", "usage"
        REVERSAL = "reversal", "reversal"
        GRANT = "grant", "credit granted"
        EXPIRY = "expiry", "credit expired"
        INVOICE = "invoice", "invoice finalised"
        PAYMENT = "payment", "payment"
        CREDIT_NOTE = "credit_note", "credit note"

    idempotency_key = models.CharField(max_length=200, unique=True, editable=False)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="journals")
    usage = models.ForeignKey(UsageRecord, on_delete=models.PROTECT, null=True, related_name="journals")
    reverses = models.OneToOneField("self", on_delete=models.PROTECT, null=True, blank=True, related_name="reversed_by")
    rating_version = models.PositiveIntegerField(default=1, help_text="Counts how often its usage was rated.")
    memo = models.CharField(max_length=300, blank=True, help_text="Why the amount is what it is.")
    occurred_at = models.DateTimeField(db_index=True)
    posted_at = models.DateTimeField(default=timezone.now)
    invoice = models.ForeignKey(
        "Invoice",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="journals",
        help_text="On which it was claimed. The only field that is ever written again.",
    )

    objects = JournalQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "journal"
        indexes = [
            models.Index(
                fields=("organization", "occurred_at"),
                name="responses_ws_uninvoiced",
                condition=Q(invoice=None, kind__in=("usage", "reversal")),
            )
        ]

    def __str__(self) -> str:
        return self.idempotency_key


class RatedLine(models.Model):
    """Tokens of one component times a price: the working behind a journal entry."""

    journal = models.ForeignKey(Journal, on_delete=models.PROTECT, related_name="lines")
    component = models.CharField(max_length=20, choices=Component.choices)
    quantity = models.PositiveBigIntegerField(help_text="Tokens; or calls.")
    price = models.ForeignKey(Price, on_delete=models.PROTECT, null=True, related_name="lines")
    amount_nano = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("journal", "component"), name="responses_ws_line_once_per_component")
        ]

    def __str__(self) -> str:
        return f"{self.component} × {self.quantity}"


class PostingQuerySet(models.QuerySet["Posting"]):
    def charges(self) -> "PostingQuerySet":
        """What usage cost customers, whether they owe it or had credit; reversals count with their sign."""
        paying = (Account.Kind.RECEIVABLE, Account.Kind.PREPAID)
        return self.filter(account__kind__in=paying, journal__usage__isnull=False)

    def cost_of_each(self) -> Coalesce:
        """For annotating usage records: what each was charged, in nano-USD."""
        return sum_of(self.charges(), "journal__usage", "amount_nano")

    def between(self, start: datetime, end: datetime | None = None) -> "PostingQuerySet":
        """Of entries that occurred in [start, end)."""
        rows = self.filter(journal__occurred_at__gte=start)
        return rows if end is None else rows.filter(journal__occurred_at__lt=end)

    def total(self) -> int:
        """The sum in nano-USD."""
        return self.aggregate(total=Sum("amount_nano"))["total"] or 0

    def by_day(self) -> "models.QuerySet[Any]":
        """Rows of ``day`` (of UTC) and ``amount_nano``, in order; days without postings are absent."""
        days = self.order_by().annotate(day=TruncDate("journal__occurred_at", tzinfo=UTC)).values("day")
        return days.annotate(amount_nano=Sum("amount_nano")).order_by("day")

    def by_model(self) -> "models.QuerySet[Any]":
        """Rows of ``model`` and ``amount_nano``, the dearest first."""
        return self._by(model=F("journal__usage__model"))

    def by_key(self) -> "models.QuerySet[Any]":
        """Rows of ``key_id``, ``key_name``, ``project_name`` and ``amount_nano``, the dearest first."""
        return self._by(
            key_id=F("journal__usage__api_key"),
            key_name=F("journal__usage__api_key__name"),
            project_name=F("journal__usage__project__name"),
        )

    def _by(self, **keys: F) -> "models.QuerySet[Any]":
        groups = self.order_by().filter(journal__usage__isnull=False).values(**keys)
        return groups.annotate(amount_nano=Sum("amount_nano")).order_by("-amount_nano", *keys)


class Posting(models.Model):
    """An amount on an account. Positive is debit, negative is credit."""

    journal = models.ForeignKey(Journal, on_delete=models.PROTECT, related_name="postings")
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="postings")
    amount_nano = models.BigIntegerField()

    objects = PostingQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=("journal", "account"), name="responses_ws_posting_once")]

    def __str__(self) -> str:
        return f"{self.account}: {self.amount_nano}"
