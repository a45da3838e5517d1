"""Credit that is used up before anything is owed."""

from datetime import datetime

from django.db import models
from django.db.models import F, Q, Sum
from django.utils import timezone

from .accounts import Organization
from .ledger import Journal, sum_of


class CreditGrantQuerySet(models.QuerySet["CreditGrant"]):
    def usable_at(self, moment: datetime) -> "CreditGrantQuerySet":
        """Grants with something left that have not expired, in the order in which they are used up."""
        live = self.filter(remaining_nano__gt=0).filter(Q(expires_at=None) | Q(expires_at__gt=moment))
        return live.order_by("priority", F("expires_at").asc(nulls_last=True), "pk")

    def with_wrong_rest(self) -> "CreditGrantQuerySet":
        """Grants of which not that is left what their uses leave (``used_nano``)."""
        used = sum_of(GrantUse.objects.all(), "grant", "amount_nano")
        return self.annotate(used_nano=used).exclude(remaining_nano=F("amount_nano") - F("used_nano"))

    def left(self) -> dict[tuple[int, str], int]:
        """What is left of all grants, by (organization id, currency)."""
        sums = self.order_by().values_list("organization", "currency").annotate(left=Sum("remaining_nano"))
        return {(organization, currency): left for organization, currency, left in sums}

    def expired(self, now: datetime) -> "CreditGrantQuerySet":
        """Grants whose rest is to be written off."""
        return self.filter(remaining_nano__gt=0, expires_at__lte=now).order_by("pk")


class CreditGrant(models.Model):
    """An amount that an organisation may use: bought, or given. ``remaining_nano`` is the amount less its uses."""

    class Kind(models.TextChoices):
        PAID = "paid", "paid"
        PROMOTIONAL = "promotional", "promotional"

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="credit_grants")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    currency = models.CharField(max_length=3, default="USD")
    amount_nano = models.PositiveBigIntegerField()
    remaining_nano = models.PositiveBigIntegerField(editable=False)
    priority = models.PositiveSmallIntegerField(default=50, help_text="The smallest number is used first.")
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: never. What is left then is gone.")
    note = models.CharField(max_length=200, blank=True)
    idempotency_key = models.CharField(
        max_length=200, unique=True, null=True, blank=True, help_text="Grants with the same one are made once."
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = CreditGrantQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.CheckConstraint(condition=Q(remaining_nano__lte=F("amount_nano")), name="responses_ws_grant_rest")
        ]

    def __str__(self) -> str:
        return f"{self.organization}: {self.kind} credit {self.pk}"

    def is_valid_at(self, moment: datetime) -> bool:
        return self.expires_at is None or moment < self.expires_at


class GrantUse(models.Model):
    """What one entry of the ledger took from a grant, its expiry too; below 0 where it was given back.

    Added, never changed.
    """

    journal = models.ForeignKey(Journal, on_delete=models.PROTECT, related_name="grant_uses")
    grant = models.ForeignKey(CreditGrant, on_delete=models.PROTECT, related_name="uses")
    amount_nano = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=("journal", "grant"), name="responses_ws_grant_use_once")]

    def __str__(self) -> str:
        return f"{self.grant}: {self.amount_nano}"
