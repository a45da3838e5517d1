"""What one process has to tell all others."""

from datetime import timedelta
from typing import Any

from django.db import models
from django.utils import timezone

KEPT = timedelta(minutes=10)
"""Every process has read a message long before that, or has lost its memory and needs none."""


class ControlMessageQuerySet(models.QuerySet["ControlMessage"]):
    def tell(self, kind: str, **body: Any) -> None:
        """Tell every process. Part of the caller's transaction: what is rolled back is never heard."""
        self.create(kind=kind, body=body)

    def recent(self, window: timedelta) -> "ControlMessageQuerySet":
        """Those of the last ``window``, oldest first."""
        return self.filter(created_at__gte=timezone.now() - window).order_by("id")

    def outdated(self) -> "ControlMessageQuerySet":
        return self.filter(created_at__lt=timezone.now() - KEPT)


class ControlMessage(models.Model):
    """A row that every process reads once: a key has changed, responses were deleted."""

    kind = models.CharField(max_length=40)
    body = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    objects = ControlMessageQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
