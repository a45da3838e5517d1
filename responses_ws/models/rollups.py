"""Usage added up by the hour and by the day, so that a page of figures costs the same at any number of responses."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from django.db import models
from django.db.models import F, Max, Q, Sum

from .accounts import ApiKey, Organization, Project

WHO = ("width", "start", "organization_id", "project_id", "api_key_id", "model")
DIMENSIONS = (*WHO, "service_tier")
"""What tells rows of usage apart."""
ENDING_DIMENSIONS = (*WHO, "status", "reason")
"""What tells rows of endings apart."""

SUMS = {
    "responses": Sum("responses"),
    "failures": Sum(F("failed") + F("abandoned")),
    "tokens": Sum(F("input_tokens") + F("output_tokens")),
    "uncached": Sum(F("input_tokens") - F("cached_tokens")),
    "cached": Sum("cached_tokens"),
    "answer": Sum(F("output_tokens") - F("reasoning_tokens")),
    "reasoning": Sum("reasoning_tokens"),
    "tool_calls": Sum("tool_calls"),
    "amount_nano": Sum("amount_nano"),
}
"""What every question is answered with. uncached + cached + answer + reasoning = tokens; ``failures`` are ours, not the
client's leaving; ``amount_nano`` only makes sense within one currency (see `UsageRollupQuerySet.in_currency`)."""
_COUNTS = SUMS | {name: Sum(name) for name in ("completed", "incomplete", "failed", "cancelled", "abandoned")}
_RANKED = ("responses", "tokens", "amount_nano")
_RANKINGS = {
    "organizations": ("organization_id",),
    "projects": ("project_id",),
    "keys": ("project_id", "api_key_id"),
    "models": ("model",),
}

_BUCKET_SUMS = {
    "requests": Sum("responses"),
    "input": Sum("input_tokens"),
    "cached": Sum("cached_tokens"),
    "cache_write": Sum("cache_write_tokens"),
    "output": Sum("output_tokens"),
}


class Width(models.TextChoices):
    HOUR = "hour", "hour"
    DAY = "day", "day"


class RollupQuerySet(models.QuerySet[Any]):
    """Questions that rows of all these tables answer. Begin with one width: each response is in a row of either."""

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
    def of_organization(self, organization_id: int) -> Self:
        return self.filter(organization_id=organization_id)

    def among(
        self,
        project_ids: Collection[int] | None = None,
        api_key_ids: Collection[int] | None = None,
        models: Collection[str] | None = None,
    ) -> Self:
        """Only of some projects, keys and models; None: of all."""
        wanted = {"project_id__in": project_ids, "api_key_id__in": api_key_ids, "model__in": models}
        return self.filter(**{name: some for name, some in wanted.items() if some is not None})

    def in_buckets(self, columns: Sequence[str]) -> models.QuerySet[Any]:
        """Rows of ``start``, the columns, ``requests``, ``input``, ``cached``, ``cache_write``, ``output``, ``amount``.

        Without those of nothing, which corrections may have left.
        """
        rows = self.values("start", *columns).annotate(**_BUCKET_SUMS, amount=Sum("amount_nano"))
        return rows.exclude(requests=0, input=0, output=0, amount=0).order_by("start", *columns)

    def in_currency(self, currency: str) -> Self:
        """Of organisations that are billed in it."""
        return self.filter(organization_id__in=Organization.objects.filter(currency=currency).values("pk"))

    def amount(self) -> int:
        """What was charged, in nano units."""
        return self.aggregate(amount=Sum("amount_nano"))["amount"] or 0

    def month_against_last(self, now: datetime) -> dict[str, int]:
        """What was charged in the month of ``now``, in nano units. Of rows of days.

        ``this`` month so far; ``last`` month, all of it; ``last_by_now``: last month up to and with the same day.
        """
        today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        month = today.replace(day=1)
        last = (month - timedelta(days=1)).replace(day=1)
        same_day = min(last + timedelta(days=today.day), month)
        spans = {"this": Q(start__gte=month), "last": Q(start__lt=month), "last_by_now": Q(start__lt=same_day)}
        sums = {name: Sum("amount_nano", filter=span) for name, span in spans.items()}
        amounts = self.between(last, today + timedelta(days=1)).aggregate(**sums)
        return {name: amount or 0 for name, amount in amounts.items()}

    def totals(self) -> dict[str, int]:
        """`SUMS`, and ``completed``, ``incomplete``, ``failed``, ``cancelled``, ``abandoned``: zeros of nothing."""
        return total_of(self.series().values())

    def series(self) -> dict[datetime, dict[str, int]]:
        """What `totals` has by ``start``, in order; hours or days of nothing are absent."""
        # Put in order here: a database may sort the rows before it adds them up.
        rows = self.order_by().values("start").annotate(**_COUNTS)
        return {row.pop("start"): row for row in sorted(rows, key=lambda row: row["start"])}

    def model_names(self, since: datetime | None = None) -> list[str]:
        """The models that were asked for on the days since then (None: the last 90 with usage), in order."""
        days = self.days()
        newest = days.aggregate(newest=Max("start"))["newest"]
        since = since or (newest and newest - timedelta(days=90))
        return sorted(set(days.between(since).order_by().values_list("model", flat=True).distinct()))

    def rankings(self, top: int) -> dict[str, list[dict[str, Any]]]:
        """The ``top`` dearest ``organizations``, ``projects``, ``keys`` and ``models``: the rows are read once for all.

        Each has ``responses``, ``tokens``, ``amount_nano``, and says whose: ``organization_id``, ``organization_name``;
        ``project_id``, ``project_name``, ``organization_name``; of a key these and ``api_key_id`` (0: no key),
        ``key_name``; ``model``. Names of what was deleted are empty.
        """
        sums = {name: SUMS[name] for name in _RANKED}
        parts = list(self.order_by().values(*WHO[2:]).annotate(**sums))
        found = {title: _dearest(parts, columns, top) for title, columns in _RANKINGS.items()}
        of_projects = [*found["projects"], *found["keys"]]
        organizations = Organization.objects.in_bulk([row["organization_id"] for row in found["organizations"]])
        projects = Project.objects.select_related("organization").in_bulk({row["project_id"] for row in of_projects})
        keys = ApiKey.objects.in_bulk([row["api_key_id"] for row in found["keys"]])
        for row in found["organizations"]:
            row["organization_name"] = _name(organizations.get(row["organization_id"]))
        for row in of_projects:
            project = projects.get(row["project_id"])
            row["project_name"], row["organization_name"] = _name(project), _name(project and project.organization)
        for row in found["keys"]:
            row["key_name"] = _name(keys.get(row["api_key_id"]))
        return found


def total_of(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Rows of a series in one."""
    total = dict.fromkeys(_COUNTS, 0)
    for row in rows:
        for name in total:
            total[name] += row[name]
    return total


def _dearest(parts: list[dict[str, Any]], columns: tuple[str, ...], top: int) -> list[dict[str, Any]]:
    whole: dict[tuple[Any, ...], dict[str, Any]] = {}
    for part in parts:
        who = {column: part[column] for column in columns}
        row = whole.setdefault(tuple(who.values()), who | dict.fromkeys(_RANKED, 0))
        for name in _RANKED:
            row[name] += part[name]
    order = sorted(whole, key=lambda who: (-whole[who]["amount_nano"], -whole[who]["tokens"], who))
    return [whole[who] for who in order[:top]]


def _name(row: Any) -> str:
    return "" if row is None else row.name


class EndingRollupQuerySet(RollupQuerySet):
    def failures(self) -> Self:
        """Those that were our fault, or our engine's."""
        return self.filter(status__in=("failed", "abandoned"))

    def by_reason(self) -> models.QuerySet[Any]:
        """Rows of ``status``, ``reason`` and ``responses``, the most frequent first."""
        rows = self.values("status", "reason").annotate(responses=Sum("responses")).exclude(responses=0)
        return rows.order_by("-responses", "status", "reason")


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


def count_field() -> Any:
    # Half as wide as a sum: most of a row are counts, and a page reads thousands of rows.
    return models.IntegerField(default=0, db_default=0)


def sum_field() -> Any:
    return models.BigIntegerField(default=0, db_default=0)


def milliseconds_field() -> Any:
    return models.FloatField(default=0, db_default=0)


def owner_index(name: str) -> models.Index:
    return models.Index(fields=("width", "organization_id", "start"), name=name)


class UsageRollup(Rollup):
    """Sums of billed usage records that started in [start, start + width)."""

    service_tier = models.CharField(max_length=20)

    responses = count_field()
    completed = count_field()
    incomplete = count_field()
    failed = count_field()
    cancelled = count_field()
    abandoned = count_field()
    input_tokens = sum_field()
    cached_tokens = sum_field()
    cache_write_tokens = sum_field()
    output_tokens = sum_field()
    reasoning_tokens = sum_field()
    tool_calls = sum_field()
    amount_nano = sum_field()
    """What was charged, before credit, in nano units of the organisation's currency."""

    objects = UsageRollupQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=DIMENSIONS, name="responses_ws_rollup_once")]
        indexes = [owner_index("responses_ws_rollup_owner")]


class EndingRollup(Rollup):
    """How many billed usage records ended in another way than ``completed``, and why.

    A table of its own, so that the rows of `UsageRollup` are not multiplied by the reasons.
    """

    status = models.CharField(max_length=12)
    reason = models.CharField(max_length=64)
    responses = count_field()

    objects = EndingRollupQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=ENDING_DIMENSIONS, name="responses_ws_ending_once")]
        indexes = [owner_index("responses_ws_ending_owner")]
