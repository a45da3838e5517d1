"""What became of looking whether the books agree."""

from django.db import models
from django.utils import timezone


class ReconciliationQuerySet(models.QuerySet["Reconciliation"]):
    def newest(self) -> "Reconciliation | None":
        return self.order_by("-ended_at").first()

    def outdated(self) -> "ReconciliationQuerySet":
        """All but the newest `Reconciliation.KEPT`."""
        return self.exclude(pk__in=list(self.order_by("-ended_at").values_list("pk", flat=True)[: Reconciliation.KEPT]))


class Reconciliation(models.Model):
    """One look at the books, by the nightly task or the command: a row, so that every process can tell of it."""

    KEPT = 400
    """A year of nights."""

    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(default=timezone.now, db_index=True)
    differences = models.PositiveIntegerField(help_text="How many; 0 when the books are right.")
    told = models.TextField(blank=True, help_text="The first of them, one a line.")

    objects = ReconciliationQuerySet.as_manager()

    class Meta:
        ordering = ("-ended_at",)

    def __str__(self) -> str:
        return f"{self.ended_at:%Y-%m-%d %H:%M}: {self.differences} differences"
