"""How much may be spent, by whom, in what time; and who has been told."""

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone

from .accounts import ApiKey, Organization, Project
from .control import ControlMessage


def alert_percents() -> list[int]:
    return [80, 100]


class Budget(models.Model):
    """A limit on what an organisation spends in a window of time, or one of its projects, keys, models.

    Windows are calendar days, weeks (from Monday) and months of UTC, as bills are.
    """

    class Window(models.TextChoices):
        DAY = "day", "day"
        WEEK = "week", "week"
        MONTH = "month", "month"
        TOTAL = "total", "all time"

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="budgets")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, null=True, blank=True, related_name="budgets")
    api_key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="budgets")
    model = models.CharField(max_length=200, blank=True, help_text="Empty: all models.")
    window = models.CharField(max_length=8, choices=Window.choices, default=Window.MONTH)
    limit_nano = models.PositiveBigIntegerField(validators=[MinValueValidator(1)])
    is_hard = models.BooleanField("hard", default=True, help_text="Turns that would pass the limit are refused.")
    alert_percents = models.JSONField(
        default=alert_percents, blank=True, help_text="Of the limit; each is told once a window."
    )
    emails = models.JSONField(default=list, blank=True, help_text="Addresses that are told.")
    webhook_url = models.URLField(blank=True, help_text="Is told, too, with a POST of JSON.")
    is_active = models.BooleanField("active", default=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("organization", "project", "api_key", "model", "window")
        constraints = [
            models.CheckConstraint(condition=models.Q(limit_nano__gte=1), name="responses_ws_budget_limit"),
        ]

    def __str__(self) -> str:
        parts = (self.organization, self.project and self.project.name, self.api_key, self.model)
        return f"{' / '.join(str(part) for part in parts if part)} per {self.get_window_display()}"

    def save(self, **options: Any) -> None:
        """Every process is told."""
        super().save(**options)
        ControlMessage.objects.tell("budgets_changed", organization_id=self.organization_id)

    def delete(self, *args: Any, **options: Any) -> tuple[int, dict[str, int]]:
        deleted = super().delete(*args, **options)
        ControlMessage.objects.tell("budgets_changed", organization_id=self.organization_id)
        return deleted

    def clean(self) -> None:
        if self.project is not None and self.project.organization_id != self.organization_id:
            raise ValidationError({"project": "This project is another organisation's."})
        if self.api_key is not None and self.api_key.project.organization_id != self.organization_id:
            raise ValidationError({"api_key": "This key is another organisation's."})
        percents = self.alert_percents
        if not isinstance(percents, list) or not all(type(one) is int and 0 < one <= 1000 for one in percents):
            raise ValidationError({"alert_percents": "A list of whole percents from 1 to 1000, such as [80, 100]."})


class BudgetAlert(models.Model):
    """That a part of a budget was reached, once a window. Told to people as long as ``told_at`` is null."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="alerts")
    percent = models.PositiveSmallIntegerField()
    window_start = models.DateTimeField()
    spent_nano = models.BigIntegerField(help_text="When it was noticed.")
    created_at = models.DateTimeField(default=timezone.now)
    told_at = models.DateTimeField(null=True, blank=True)
    tries = models.PositiveSmallIntegerField(default=0)
    error = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=("budget", "percent", "window_start"), name="responses_ws_alert_once")
        ]

    def __str__(self) -> str:
        return f"{self.budget}: {self.percent} %"
