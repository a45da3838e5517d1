"""Who gets WebSocket mode, while it is being introduced."""

from typing import Any

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models.functions import Coalesce

from .accounts import Project
from .control import ControlMessage


class WebSocketShareQuerySet(models.QuerySet["WebSocketShare"]):
    def by_project(self) -> dict[int | None, int]:
        """Percent by project id; None: of all projects without a share of their own."""
        return dict(self.values_list("project", "percent"))


class WebSocketShare(models.Model):
    """How many of a hundred keys may open sockets. Without any row all may."""

    project = models.ForeignKey(
        Project,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="websocket_shares",
        help_text="Empty: all projects without a share of their own.",
    )
    percent = models.PositiveSmallIntegerField(
        validators=[MaxValueValidator(100)],
        help_text="Of its keys, always the same ones; 0 is off. The others are sent to HTTP. Open sockets stay open.",
    )

    objects = WebSocketShareQuerySet.as_manager()

    class Meta:
        ordering = ("project",)
        verbose_name = "WebSocket share"
        constraints = [
            models.UniqueConstraint(
                Coalesce("project", 0),
                name="responses_ws_share_project",
                violation_error_message="There is a share for these already.",
            ),
            models.CheckConstraint(condition=models.Q(percent__lte=100), name="responses_ws_share_percent"),
        ]

    def __str__(self) -> str:
        return f"{self.project or 'all others'}: {self.percent} %"

    def save(self, **options: Any) -> None:
        """Every process is told."""
        super().save(**options)
        ControlMessage.objects.tell("websocket_shares_changed")

    def delete(self, *args: Any, **options: Any) -> tuple[int, dict[str, int]]:
        deleted = super().delete(*args, **options)
        ControlMessage.objects.tell("websocket_shares_changed")
        return deleted
