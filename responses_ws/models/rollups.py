"""Usage added up by the hour and by the day, so that a page of figures costs the same at any number of responses."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import msgspec
from django.db import models
from django.db.models import F, Max, Q, Sum

from .accounts import ApiKey, Organization, Project

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
    "tool_calls": Sum("tool_calls"),
    "amount_nano": Sum("amount_nano"),
}
"""What every question is answered with. uncached + cached + answer + reasoning = tokens; ``failures`` are ours, not the
client's leaving; ``amount_nano`` only makes sense within one currency (see `UsageRollupQuerySet.in_currency`)."""
_BY_STATUS = {name: Sum(name) for name in ("completed", "incomplete", "failed", "cancelled", "abandoned")}
_TIMES = ("timed", "output_tokens", "checks_ms", "render_ms", "first_token_ms", "duration_ms", *FIRST_TOKEN, *DURATION)
_TIME_SUMS = {f"sum_{name}": Sum(name) for name in _TIMES}

_BUCKET_SUMS = {
    "requests": Sum("responses"),
    "input": Sum("input_tokens"),
    "cached": Sum("cached_tokens"),
    "cache_write": Sum("cache_write_tokens"),
    "output": Sum("output_tokens"),
}


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How fast responses were. Milliseconds; None where no response says it."""

    first_token_p50: float | None
    first_token_p95: float | None
    duration_p50: float | None
    duration_p95: float | None
    tokens_per_second: float | None
    """Of one response, while it came."""
    parts: dict[str, float]
    """The mean milliseconds of a response, in order: ``checks``, ``render``, ``first_token`` (from the engine's call to
    its first output) and ``rest``. Their sum is the mean duration. Empty of no responses."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What a page of figures says of all rows together, and of their hours or days: one look at them for all of it."""

    totals: dict[str, int]
    """As `UsageRollupQuerySet.totals`."""
    series: dict[datetime, dict[str, int]]
    """The same by ``start``; hours or days of nothing are absent."""
    times: Times
    times_series: dict[datetime, Times]
    transports: list[dict[str, Any]]
    """As `UsageRollupQuerySet.by_transport`."""


def percentile(counts: list[int], fraction: float) -> float | None:
    """The milliseconds within which ``fraction`` of the responses stayed; None without any.

    Args:
        counts: of a histogram, a number for each of `BOUNDS_MS` and one for what is longer than all of them.

    Within its bucket the place is guessed evenly, as if the bucket were full of different values; so it is always less
    than 1.5 times too much or too little. Beyond the last bound, that bound.
    """
    rank = sum(counts) * fraction
    lower = 0.0
    for bound, count in zip(BOUNDS_MS, counts, strict=False):
        if count > 0 and rank <= count:
            return lower + (bound - lower) * rank / count
        rank -= count
        lower = bound
    return lower if any(counts) else None


def _times(sums: Mapping[str, Any]) -> Times:
    told = {name: sums[f"sum_{name}"] or 0 for name in _TIMES}
    first, duration = ([told[name] for name in names] for names in (FIRST_TOKEN, DURATION))
    coming = told["duration_ms"] - told["first_token_ms"]
    parts = {
        "checks": told["checks_ms"],
        "render": told["render_ms"],
        "first_token": told["first_token_ms"] - told["checks_ms"] - told["render_ms"],
        "rest": coming,
    }
    return Times(
        first_token_p50=percentile(first, 0.5),
        first_token_p95=percentile(first, 0.95),
        duration_p50=percentile(duration, 0.5),
        duration_p95=percentile(duration, 0.95),
        tokens_per_second=told["output_tokens"] * 1000 / coming if coming > 0 else None,
        parts={name: max(part, 0) / told["timed"] for name, part in parts.items()} if told["timed"] else {},
    )


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
        return {name: value or 0 for name, value in self.aggregate(**SUMS, **_BY_STATUS).items()}

    def series(self) -> models.QuerySet[Any]:
        """Rows of ``start`` and what `totals` has, in order; hours or days of nothing are absent."""
        return self.values("start").annotate(**SUMS, **_BY_STATUS).order_by("start")

    def model_names(self, since: datetime | None = None) -> list[str]:
        """The models that were asked for on the days since then (None: the last 90 with usage), in order."""
        days = self.days()
        newest = days.aggregate(newest=Max("start"))["newest"]
        since = since or (newest and newest - timedelta(days=90))
        return sorted(set(days.between(since).order_by().values_list("model", flat=True).distinct()))

    def by_model(self) -> models.QuerySet[Any]:
        """Rows of ``model`` and `SUMS`, the dearest first."""
        return self._by("model")

    def by_organization(self, top: int) -> list[dict[str, Any]]:
        """The ``top`` dearest: ``organization_id``, ``organization_name`` and `SUMS`."""
        rows = list(self._by("organization_id")[:top])
        names = Organization.objects.in_bulk([row["organization_id"] for row in rows])
        for row in rows:
            owner = names.get(row["organization_id"])
            row["organization_name"] = "" if owner is None else owner.name
        return rows

    def by_project(self, top: int) -> list[dict[str, Any]]:
        """The ``top`` dearest: ``project_id``, ``project_name``, ``organization_name`` and `SUMS`."""
        return _with_projects(list(self._by("project_id")[:top]))

    def by_key(self, top: int) -> list[dict[str, Any]]:
        """The ``top`` dearest: ``api_key_id`` (0: no key), ``key_name`` ("" for none), its project and `SUMS`.

        The project is ``project_id``, ``project_name``, ``organization_name``.
        """
        rows = _with_projects(list(self._by("project_id", "api_key_id")[:top]))
        keys = ApiKey.objects.in_bulk([row["api_key_id"] for row in rows])
        for row in rows:
            key = keys.get(row["api_key_id"])
            row["key_name"] = "" if key is None else key.name
        return rows

    def by_transport(self) -> list[dict[str, Any]]:
        """For each way to ask, the busiest first: ``transport``, ``responses``, ``failures``, ``times`` (`Times`)."""
        sums = {name: SUMS[name] for name in ("responses", "failures")}
        rows = self.values("transport").annotate(**sums, **_TIME_SUMS).order_by("-responses", "transport")
        kept = ("transport", *sums)
        return [{name: row[name] for name in kept} | {"times": _times(row)} for row in rows]

    def overview(self) -> Overview:
        """Everything that needs no names, by one query: one by one, the same rows would be read five times."""
        sums = {**SUMS, **_BY_STATUS, **_TIME_SUMS}
        whole: Counter[str] = Counter()
        starts: dict[datetime, Counter[str]] = defaultdict(Counter)
        transports: dict[str, Counter[str]] = defaultdict(Counter)
        # Not sorted by the database, which would sort the wide rows before it adds them up.
        rows = self.order_by().values("start", "transport").annotate(**sums)
        for row in sorted(rows, key=lambda row: row["start"]):
            numbers = {name: row[name] or 0 for name in sums}
            for counter in (whole, starts[row["start"]], transports[row["transport"]]):
                counter.update(numbers)
        names = (*SUMS, *_BY_STATUS)
        busiest = sorted(transports.items(), key=lambda item: (-item[1]["responses"], item[0]))
        return Overview(
            totals={name: whole[name] for name in names},
            series={start: {name: numbers[name] for name in names} for start, numbers in starts.items()},
            times=_times({name: whole[name] for name in _TIME_SUMS}),
            times_series={start: _times(numbers) for start, numbers in starts.items()},
            transports=[
                {
                    "transport": transport,
                    "responses": numbers["responses"],
                    "failures": numbers["failures"],
                    "times": _times(numbers),
                }
                for transport, numbers in busiest
            ],
        )

    def times(self) -> Times:
        """How fast all of them were."""
        return _times(self.aggregate(**_TIME_SUMS))

    def times_series(self) -> dict[datetime, Times]:
        """How fast they were, by the hour or the day; those of nothing are absent."""
        return {row["start"]: _times(row) for row in self.values("start").annotate(**_TIME_SUMS).order_by("start")}

    def _by(self, *names: str) -> models.QuerySet[Any]:
        return self.values(*names).annotate(**SUMS).order_by("-amount_nano", "-tokens", *names)


def _with_projects(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that have a ``project_id`` get the project's name and its organisation's."""
    projects = Project.objects.select_related("organization").in_bulk([row["project_id"] for row in rows])
    for row in rows:
        project = projects.get(row["project_id"])
        row["project_name"] = "" if project is None else project.name
        row["organization_name"] = "" if project is None else project.organization.name
    return rows


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

    objects = EndingRollupQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=ENDING_DIMENSIONS, name="responses_ws_ending_once")]
        indexes = [
            models.Index(fields=("width", "organization_id", "start"), name="responses_ws_ending_owner"),
        ]
