"""The price book: immutable intervals. Money is an integer of nano units of its currency, everywhere."""

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Exists, F, Max, OuterRef, Q
from django.utils import timezone

from .control import ControlMessage


class Component(models.TextChoices):
    """What a price is for. The parts of a response's tokens never overlap."""

    INPUT = "input", "input (uncached)"
    CACHED_INPUT = "cached_input", "cached input"
    CACHE_WRITE = "cache_write", "cache write"
    OUTPUT = "output", "output"
    REASONING = "reasoning", "reasoning"
    TOOL_CALL = "tool_call", "hosted tool call"


class PriceQuerySet(models.QuerySet["Price"]):
    def standing(self) -> "PriceQuerySet":
        """Prices that nobody withdrew: what is charged, sometime."""
        return self.filter(withdrawn_at=None)

    def valid_at(self, moment: datetime) -> "PriceQuerySet":
        """Prices whose interval holds ``moment``; the start belongs to the interval, the end does not."""
        return self.standing().filter(valid_from__lte=moment).filter(Q(valid_to=None) | Q(valid_to__gt=moment))

    def with_use(self) -> "PriceQuerySet":
        """Adds ``used``: whether the ledger refers to the price."""
        return self.annotate(used=Exists(Price.objects.filter(pk=OuterRef("pk"), lines__isnull=False)))

    def overlapping(self, price: "Price") -> "PriceQuerySet":
        """Other prices for the same thing at a time when ``price`` is valid."""
        same = {name: getattr(price, name) for name in Price.THING}
        others = self.standing().filter(**same).exclude(pk=price.pk)
        if price.valid_to is not None:
            others = others.filter(valid_from__lt=price.valid_to)
        return others.filter(Q(valid_to=None) | Q(valid_to__gt=price.valid_from))


class Price(models.Model):
    """What a million units of one component of one model cost, from one moment to another.

    A price is not edited once it was used: end it and start another. A turn keeps the price of its start. One that was
    wrong from its start is withdrawn: nothing is charged by it any more, and another may stand in its place.
    """

    THING = ("currency", "model", "service_tier", "component", "min_context")
    """What a price is for, in its fields: of one thing there is one price at any moment."""

    currency = models.CharField(max_length=3, default="USD")
    model = models.CharField(max_length=200)
    service_tier = models.CharField(max_length=20, blank=True, help_text="Empty: of all tiers without their own.")
    component = models.CharField(max_length=20, choices=Component.choices)
    min_context = models.PositiveBigIntegerField(
        default=0, help_text="Of responses with at least so many input tokens; the highest that fits prices all of it."
    )
    nano_per_million = models.PositiveBigIntegerField(help_text="Nano units for 1,000,000 tokens, or calls.")
    valid_from = models.DateTimeField(default=timezone.now)
    valid_to = models.DateTimeField(null=True, blank=True, help_text="Empty: until further notice.")
    withdrawn_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = PriceQuerySet.as_manager()

    class Meta:
        ordering = ("model", "service_tier", "component", "min_context", "-valid_from")
        constraints = [
            models.UniqueConstraint(
                fields=("currency", "model", "service_tier", "component", "min_context", "valid_from"),
                condition=Q(withdrawn_at=None),
                name="responses_ws_price_start",
            ),
            models.UniqueConstraint(
                fields=("currency", "model", "service_tier", "component", "min_context"),
                condition=Q(valid_to=None, withdrawn_at=None),
                name="responses_ws_price_one_open",
            ),
            models.CheckConstraint(
                condition=Q(valid_to=None) | Q(valid_to__gt=F("valid_from")), name="responses_ws_price_interval"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.component} from {self.valid_from:%Y-%m-%d}"

    def save(self, **options: Any) -> None:
        """Every process is told."""
        super().save(**options)
        ControlMessage.objects.tell("prices_changed")

    def delete(self, *args: Any, **options: Any) -> tuple[int, dict[str, int]]:
        deleted = super().delete(*args, **options)
        ControlMessage.objects.tell("prices_changed")
        return deleted

    def withdraw(self) -> None:
        """It was wrong. What was charged by it stays in the books until it is rated again."""
        self.withdrawn_at = timezone.now()
        self.save(update_fields=["withdrawn_at"])

    def clean(self) -> None:
        if self.valid_from and self.withdrawn_at is None and Price.objects.overlapping(self).exists():
            raise ValidationError("Another price for this model and component is valid in this time: end it first.")

    @property
    def is_used(self) -> bool:
        """Whether the ledger refers to it; such a price can only be ended."""
        return self.pk is not None and self.lines.exists()

    @property
    def last_used_at(self) -> datetime | None:
        """When the newest turn started that was billed with it."""
        return self.lines.aggregate(last=Max("journal__usage__started_at"))["last"]

    def is_valid_at(self, moment: datetime) -> bool:
        return self.valid_from <= moment and (self.valid_to is None or moment < self.valid_to)
