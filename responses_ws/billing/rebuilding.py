"""Roll-ups made anew from the ledger, within the database."""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db import router, transaction
from django.db.models import Count, F, Max, Min, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce, TruncDay, TruncHour

from responses_ws.models import EndingRollup, Journal, RatedLine, UsageRecord, UsageRollup
from responses_ws.models.ledger import sum_of
from responses_ws.models.rollups import BOUNDS_MS, DIMENSIONS, DURATION, ENDING_DIMENSIONS, FIRST_TOKEN, Width
from responses_ws.runtime import sql

from .rollups import COUNTED


def rebuild(since: date, until: date, told: Callable[[date, int], None] = lambda _day, _rows: None) -> None:
    """Make the rows of the days from ``since`` to ``until``, both included, anew from the ledger.

    Day by day, each in a transaction that billing waits for: what is billed meanwhile is either in the ledger that is
    read here, or added behind it.

    Args:
        told: is called with each day and its number of rows when they stand.
    """
    for number in range((until - since).days + 1):
        day = since + timedelta(days=number)
        told(day, _rebuild_day(datetime(day.year, day.month, day.day, tzinfo=UTC)))


def days_with_usage() -> tuple[date, date] | None:
    """The first and the last day of usage records and of roll-ups; None of neither."""
    usage = UsageRecord.objects.aggregate(first=Min("started_at"), last=Max("started_at"))
    rows = UsageRollup.objects.aggregate(first=Min("start"), last=Max("start"))
    moments = [moment.astimezone(UTC) for moment in (*usage.values(), *rows.values()) if moment is not None]
    return (min(moments).date(), max(moments).date()) if moments else None


def _rebuild_day(day: datetime) -> int:
    end = day + timedelta(days=1)
    entries = Journal.objects.standing().filter(usage__started_at__gte=day, usage__started_at__lt=end)
    unfinished = entries.exclude(usage__status=UsageRecord.Status.COMPLETED)
    who = {
        "width": Value(str(Width.HOUR)),
        "start": TruncHour("usage__started_at", tzinfo=UTC),
        "organization_id": F("usage__organization_id"),
        "project_id": F("usage__project_id"),
        "api_key_id": Coalesce("usage__api_key_id", 0),
        "model": F("usage__model"),
    }
    how = {"service_tier": F("usage__service_tier"), "transport": F("usage__transport")}
    end_as = {"status": F("usage__status"), "reason": F("usage__reason")}
    with transaction.atomic(using=router.db_for_write(UsageRollup)):
        sql.stop_writers(UsageRollup, EndingRollup)
        made = 0
        for model, dimensions, hours, keys, sums in (
            (UsageRollup, DIMENSIONS, entries, who | how, _sums()),
            (EndingRollup, ENDING_DIMENSIONS, unfinished, who | end_as, {"responses": Count("pk")}),
        ):
            rows = model.objects.between(day, end)
            rows.delete()
            made += _fill(model, hours, keys, sums)
            of_day = {"width": Value(str(Width.DAY)), "start": TruncDay("start", tzinfo=UTC)}
            keys = {name: F(name) for name in dimensions} | of_day
            made += _fill(model, rows.hours(), keys, {name: Sum(name) for name in sums})
    return made


def _fill(model: Any, rows: QuerySet[Any], keys: Mapping[str, Any], sums: Mapping[str, Any]) -> int:
    keys, sums = ({f"to_{name}": value for name, value in some.items()} for some in (keys, sums))
    return sql.insert_from(model, rows.order_by().values(**keys).annotate(**sums))


def _sums() -> dict[str, Any]:
    """By column, what `rollups.add` has added for the standing entries of usage."""
    timed = Q(usage__duration_ms__isnull=False)
    waited = Coalesce("usage__first_token_ms", "usage__duration_ms")
    ended = [status for status in UsageRecord.Status.values if status != UsageRecord.Status.IN_PROGRESS]
    return {
        "responses": Count("pk"),
        **{status: Count("pk", filter=Q(usage__status=status)) for status in ended},
        "estimated": Count("pk", filter=Q(usage__estimated=True)),
        **{name: Sum(f"usage__{name}") for name in COUNTED},
        "amount_nano": Sum(sum_of(RatedLine.objects.all(), "journal", "amount_nano")),
        "timed": Count("pk", filter=timed),
        "checks_ms": _added("usage__checks_ms", timed),
        "render_ms": _added("usage__render_ms", timed),
        "first_token_ms": _added(waited, timed),
        "duration_ms": _added("usage__duration_ms", timed),
        **_histogram("usage__first_token_ms", FIRST_TOKEN),
        **_histogram("usage__duration_ms", DURATION),
    }


def _added(field: Any, condition: Q) -> Coalesce:
    return Coalesce(Sum(field, filter=condition), 0.0)


def _histogram(field: str, columns: tuple[str, ...]) -> dict[str, Count]:
    bounds = [None, *BOUNDS_MS, None]
    found = {}
    for column, lower, upper in zip(columns, bounds, bounds[1:], strict=False):
        above = Q(**{f"{field}__gt": lower}) if lower is not None else Q()
        within = Q(**{f"{field}__lte": upper}) if upper is not None else Q()
        found[column] = Count("pk", filter=above & within)
    return found
