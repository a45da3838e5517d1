"""When what should come by itself has come last."""

from datetime import datetime

from django.db import models
from django.utils import timezone


class HeartbeatQuerySet(models.QuerySet["Heartbeat"]):
    def came(self, name: str) -> None:
        """It has come now."""
        self.update_or_create(name=name, defaults={"at": timezone.now()})

    def came_last(self, name: str) -> datetime | None:
        """When it came last; None if it never has."""
        return self.filter(name=name).values_list("at", flat=True).first()


class Heartbeat(models.Model):
    """One row for each thing that comes by itself, so that every process sees when it does not."""

    BEAT = "celery beat"

    name = models.CharField(primary_key=True, max_length=40)
    at = models.DateTimeField()

    objects = HeartbeatQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name
