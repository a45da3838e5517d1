"""Entries of the ledger on their way to somebody else's books."""

from django.db import models
from django.utils import timezone

from .ledger import Journal


class Delivery(models.Model):
    """That one sink is still to be told of one entry. Gone once it was told."""

    sink = models.CharField(max_length=40)
    journal = models.ForeignKey(Journal, on_delete=models.CASCADE, related_name="deliveries")
    due_at = models.DateTimeField(default=timezone.now)
    tries = models.PositiveSmallIntegerField(default=0)
    error = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ("id",)
        verbose_name_plural = "deliveries"
        constraints = [models.UniqueConstraint(fields=("sink", "journal"), name="responses_ws_delivery_once")]
        indexes = [models.Index(fields=("sink", "due_at"), name="responses_ws_delivery_due")]

    def __str__(self) -> str:
        return f"{self.journal} to {self.sink}"
