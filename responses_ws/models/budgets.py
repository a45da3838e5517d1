"""How much may be spent, by whom, in what time; and who has been told."""

from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Case, F, OuterRef, Subquery, Sum, Value, When
from django.db.models.functions import Cast, Coalesce, NullIf
from django.utils import timezone

from responses_ws.connection.budgets import window_of

from .accounts import ApiKey, Organization, Project
from .control import ControlMessage
from .rollups import UsageRollup

EPOCH, END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def alert_percents() -> list[int]:
    return [80, 100]


class BudgetQuerySet(models.QuerySet["Budget"]):
    def with_spent(self, now: datetime) -> "BudgetQuerySet":
        """Adds the window that holds ``now``, from ``window_start`` to ``window_end``, and what is billed in it as
        ``spent_nano``. All time starts in 1970.
        """
        windows = {kind: window_of(kind, now) for kind in Budget.Window.values}
        starts = [When(window=kind, then=Value(window.start or EPOCH)) for kind, window in windows.items()]
        ends = [When(window=kind, then=Value(window.end or END)) for kind, window in windows.items()]
        days = UsageRollup.objects.days().filter(
            organization_id=OuterRef("organization_id"),
            start__gte=OuterRef("window_start"),
            start__lt=OuterRef("window_end"),
            # What the budget does not name may be anything.
            project_id=Coalesce(OuterRef("project_id"), F("project_id")),
            api_key_id=Coalesce(OuterRef("api_key_id"), F("api_key_id")),
            model=Coalesce(NullIf(OuterRef("model"), Value("")), F("model")),
        )
        spent = days.order_by().values("organization_id").annotate(total=Sum("amount_nano")).values("total")
        return self.annotate(
            window_start=Case(*starts, output_field=models.DateTimeField()),
            window_end=Case(*ends, output_field=models.DateTimeField()),
            spent_nano=Coalesce(Subquery(spent), 0, output_field=models.BigIntegerField()),
        )

    def near_limit(self, now: datetime, *, percent: int = 80) -> "BudgetQuerySet":
        """Active budgets of which at least so much is spent, with what `with_spent` adds; the fullest first."""
        near = self.filter(is_active=True).with_spent(now).filter(spent_nano__gte=F("limit_nano") / 100 * percent)
        part = Cast("spent_nano", models.FloatField()) / F("limit_nano")
        return near.order_by(part.desc(), "pk").select_related("organization", "project", "api_key")


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

    objects = BudgetQuerySet.as_manager()

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


ALERT_TRIES = 8
"""After so many an alert is left as it is, with its error."""


class BudgetAlertQuerySet(models.QuerySet["BudgetAlert"]):
    def untold(self) -> "BudgetAlertQuerySet":
        """Those that somebody still has to be told of, oldest first."""
        return self.filter(told_at=None, tries__lt=ALERT_TRIES).order_by("id")


class BudgetAlert(models.Model):
    """That a part of a budget was reached, once a window. Told to people as long as ``told_at`` is null."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="alerts")
    percent = models.PositiveSmallIntegerField()
    window_start = models.DateTimeField()
    spent_nano = models.BigIntegerField(help_text="When it was noticed.")
    created_at = models.DateTimeField(default=timezone.now)
    told_at = models.DateTimeField(null=True, blank=True)
    told = models.JSONField(default=list, help_text="Who has been told already: the signal, email, webhook.")
    tries = models.PositiveSmallIntegerField(default=0)
    error = models.CharField(max_length=200, blank=True)

    objects = BudgetAlertQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=("budget", "percent", "window_start"), name="responses_ws_alert_once")
        ]

    def __str__(self) -> str:
        return f"{self.budget}: {self.percent} %"
