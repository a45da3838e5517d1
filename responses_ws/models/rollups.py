"""Usage added up by the hour and by the day, so that a page of figures costs the same at any number of responses."""

from datetime import datetime
from typing import Any, Self

from django.db import models
from django.db.models import F, Sum

BOUNDS_MS = tuple(round(5 * 1.5**number, 1) for number in range(23))
"""Upper bounds of all buckets of a histogram but the last, in milliseconds: 5, 7.5, …, 37,409. Each is 1.5 times the
one before: a percentile read off them is right within a quarter, and histograms of any rows can be added."""

FIRST_TOKEN = tuple(f"first_token_{number:02}" for number in range(len(BOUNDS_MS) + 1))
"""The columns that count responses by the time to their first token."""
DURATION = tuple(f"duration_{number:02}" for number in range(len(BOUNDS_MS) + 1))
"""The columns that count responses by how long they took."""

_WHO = ("width", "start", "organization_id", "project_id", "api_key_id", "model")
DIMENSIONS = (*_WHO, "service_tier", "transport")
"""What tells rows of usage apart."""
ENDING_DIMENSIONS = (*_WHO, "status", "reason")
"""What tells rows of endings apart."""

SUMS = {
    "responses": Sum("responses"),
    "failures": Sum(F("failed") + F("abandoned")),
    "tokens": Sum(F("input_tokens") + F("output_tokens")),
    "uncached": Sum(F("input_tokens") - F("cached_tokens")),
    "cached": Sum("cached_tokens"),
    "answer": Sum(F("output_tokens") - F("reasoning_tokens")),
    "reasoning": Sum("reasoning_tokens"),
    "amount_nano": Sum("amount_nano"),
}
"""What every question is answered with. uncached + cached + answer + reasoning = tokens."""


class Width(models.TextChoices):
    HOUR = "hour", "hour"
    DAY = "day", "day"


class RollupQuerySet(models.QuerySet[Any]):
    """Questions that rows of both tables answer. Begin with one width: each response is in a row of either."""

    def hours(self) -> Self:
        return self.filter(width=Width.HOUR)

    def days(self) -> Self:
        return self.filter(width=Width.DAY)

    def between(self, start: datetime | None, end: datetime | None = None) -> Self:
        """Rows that begin in [start, end): both on the hour, or at midnight UTC. None: no bound."""
        bounds = {"start__gte": start, "start__lt": end}
        return self.filter(**{name: bound for name, bound in bounds.items() if bound is not None})

    def narrowed(
        self,
        *,
        organization_id: int | None = None,
        project_id: int | None = None,
        api_key_id: int | None = None,
        model: str = "",
    ) -> Self:
        """Only what was asked for by these; what is left out does not matter. Key 0 is no key."""
        wanted = {"organization_id": organization_id, "project_id": project_id, "api_key_id": api_key_id}
        rows = self.filter(**{name: number for name, number in wanted.items() if number is not None})
        return rows.filter(model=model) if model else rows


class UsageRollupQuerySet(RollupQuerySet):
    def amount(self) -> int:
        """What was charged, in nano units."""
        return self.aggregate(amount=Sum("amount_nano"))["amount"] or 0


class Rollup(models.Model):
    """Numbers of one hour or day of UTC, by who asked for which model.

    Added to in the transaction that bills, so that rows and ledger say the same. What a correction takes back is taken
    from the row where it was. No foreign keys: rows are found by their numbers, and 0 stands for no key.
    """

    width = models.CharField(max_length=4, choices=Width.choices)
    start = models.DateTimeField()
    organization_id = models.BigIntegerField()
    project_id = models.BigIntegerField()
    api_key_id = models.BigIntegerField()
    model = models.CharField(max_length=200)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.width} {self.start:%Y-%m-%d %H} {self.model}"


def _count() -> Any:
    # Half as wide as a sum: most of a row are counts, and a page reads thousands of rows.
    return models.IntegerField(default=0, db_default=0)


def _sum() -> Any:
    return models.BigIntegerField(default=0, db_default=0)


def _milliseconds() -> Any:
    return models.FloatField(default=0, db_default=0)


class UsageRollup(Rollup):
    """Sums of billed usage records that started in [start, start + width)."""

    service_tier = models.CharField(max_length=20)
    transport = models.CharField(max_length=10)

    responses = _count()
    completed = _count()
    incomplete = _count()
    failed = _count()
    cancelled = _count()
    abandoned = _count()
    estimated = _count()
    input_tokens = _sum()
    cached_tokens = _sum()
    cache_write_tokens = _sum()
    output_tokens = _sum()
    reasoning_tokens = _sum()
    tool_calls = _sum()
    amount_nano = _sum()
    """What was charged, before credit, in nano units of the organisation's currency."""
    timed = _count()
    """Responses whose times are in the sums below."""
    checks_ms = _milliseconds()
    render_ms = _milliseconds()
    first_token_ms = _milliseconds()
    """Until the first token, or the end of a response that had none."""
    duration_ms = _milliseconds()

    objects = UsageRollupQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=DIMENSIONS, name="responses_ws_rollup_once")]
        indexes = [
            models.Index(fields=("width", "organization_id", "start"), name="responses_ws_rollup_owner"),
        ]


for _name in (*FIRST_TOKEN, *DURATION):
    UsageRollup.add_to_class(_name, _count())


class EndingRollup(Rollup):
    """How many billed usage records ended in another way than ``completed``, and why.

    A table of its own, so that the rows of `UsageRollup` are not multiplied by the reasons.
    """

    status = models.CharField(max_length=12)
    reason = models.CharField(max_length=64)
    responses = _count()

    objects = RollupQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=ENDING_DIMENSIONS, name="responses_ws_ending_once")]
        indexes = [
            models.Index(fields=("width", "organization_id", "start"), name="responses_ws_ending_owner"),
        ]
