"""What is told of the ledger to other billing systems."""

from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import Count, Q
from django.utils import timezone

from .ledger import Journal


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    def unsent(self) -> "DeliveryQuerySet":
        return self.filter(sent_at=None)

    def waiting(self) -> "DeliveryQuerySet":
        """Not sent yet, or to be tried again."""
        return self.unsent().exclude(due_at=None)

    def given_up(self) -> "DeliveryQuerySet":
        """Dead letters: nobody tries them any more."""
        return self.unsent().filter(due_at=None)

    def due(self, sink: str, now: datetime) -> "DeliveryQuerySet":
        """What is to be sent to a sink by now, that which has waited longest first."""
        return self.unsent().filter(sink=sink, due_at__lte=now).order_by("due_at", "id")

    def told(self, usage_ids: set[int | None]) -> set[tuple[str, int]]:
        """(sink, usage record): which sinks are told of which of these records."""
        rows = self.filter(journal__usage__in=usage_ids).order_by()
        return set(rows.values_list("sink", "journal__usage").distinct())

    def send_again(self) -> int:
        """Try dead letters again, as often as at first. Returns how many."""
        return self.given_up().update(due_at=timezone.now(), tries=0, first_tried_at=None, error="")

    def by_sink(self) -> "models.QuerySet[Any]":
        """Rows of ``sink`` and how many are ``waiting`` and ``given_up``; sinks that have everything are absent."""
        counts = {"waiting": Count("due_at"), "given_up": Count("pk", filter=Q(due_at=None))}
        return self.unsent().order_by().values("sink").annotate(**counts).order_by("sink")


class Delivery(models.Model):
    """One entry of the ledger on its way to one sink. Written with the entry, in its transaction, and kept as that is.

    It is sent once ``sent_at`` is set, due at ``due_at`` before that, and a dead letter where that is null, too.
    """

    sink = models.CharField(max_length=100, help_text="Its name in BILLING_SINKS.")
    journal = models.ForeignKey(Journal, on_delete=models.PROTECT, related_name="deliveries")
    body = models.JSONField(help_text="What is told, as it was when the entry was written.")
    due_at = models.DateTimeField("next try", null=True, blank=True, default=timezone.now)
    tries = models.PositiveSmallIntegerField(default=0)
    first_tried_at = models.DateTimeField(
        "first try", null=True, blank=True, help_text="Since then the receiver may have it."
    )
    sent_at = models.DateTimeField("sent", null=True, blank=True)
    error = models.CharField(max_length=200, blank=True, help_text="Why the last try has failed.")

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "deliveries"
        constraints = [models.UniqueConstraint(fields=("sink", "journal"), name="responses_ws_delivery_once")]
        indexes = [
            models.Index(fields=("sink", "due_at"), name="responses_ws_delivery_unsent", condition=Q(sent_at=None))
        ]

    def __str__(self) -> str:
        return f"{self.journal} to {self.sink}"

    @property
    def state(self) -> str:
        """``sent``, ``waiting``, or ``given up``."""
        if self.sent_at is not None:
            return "sent"
        return "given up" if self.due_at is None else "waiting"
