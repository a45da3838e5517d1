"""Roll-ups made anew from the ledger, within the database."""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db import router, transaction
from django.db.models import Count, F, Max, Min, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce, TruncDay, TruncHour

from responses_ws.models import EndingRollup, Journal, LatencyRollup, RatedLine, UsageRecord, UsageRollup
from responses_ws.models.latency import BOUNDS_MS, DURATION, FIRST_TOKEN, LATENCY_DIMENSIONS
from responses_ws.models.ledger import sum_of
from responses_ws.models.rollups import DIMENSIONS, ENDING_DIMENSIONS, Width
from responses_ws.runtime import sql

from .rollups import COUNTED, FAILURES

_MIDNIGHT = TruncDay("start", tzinfo=UTC)


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
    with transaction.atomic(using=router.db_for_write(UsageRollup)):
        sql.stop_writers(UsageRollup, LatencyRollup, EndingRollup)
        return fill_day(day, entries, "usage__", sum_of(RatedLine.objects.all(), "journal", "amount_nano"))


def fill_day(day: datetime, rows: QuerySet[Any], prefix: str, amount: Any) -> int:
    """Put roll-ups of ``rows`` in the place of those of a day. Returns how many.

    Args:
        rows: one for each response of the day.
        prefix: of the usage record's fields, as seen from them.
        amount: what each was charged, in nano units.
    """
    unfinished = rows.exclude(**{f"{prefix}status": UsageRecord.Status.COMPLETED})
    who = {
        "width": Value(str(Width.HOUR)),
        "start": TruncHour(f"{prefix}started_at", tzinfo=UTC),
        "organization_id": F(f"{prefix}organization_id"),
        "project_id": F(f"{prefix}project_id"),
        "api_key_id": Coalesce(f"{prefix}api_key_id", 0),
        "model": F(f"{prefix}model"),
    }
    tier, transport, status, reason = (
        {name: F(f"{prefix}{name}")} for name in ("service_tier", "transport", "status", "reason")
    )
    made = 0
    for model, dimensions, hours, keys, sums in (
        (UsageRollup, DIMENSIONS, rows, who | tier, _sums(prefix) | {"amount_nano": Sum(amount)}),
        (LatencyRollup, LATENCY_DIMENSIONS, rows, who | transport, _latencies(prefix)),
        (EndingRollup, ENDING_DIMENSIONS, unfinished, who | status | reason, {"responses": Count("pk")}),
    ):
        of_day = model.objects.between(day, day + timedelta(days=1))
        of_day.delete()
        made += _fill(model, hours, keys, sums)
        keys = {name: F(name) for name in dimensions} | {"width": Value(str(Width.DAY)), "start": _MIDNIGHT}
        made += _fill(model, of_day.hours(), keys, {name: Sum(name) for name in sums})
    return made


def _fill(model: Any, rows: QuerySet[Any], keys: Mapping[str, Any], sums: Mapping[str, Any]) -> int:
    keys, sums = ({f"to_{name}": value for name, value in some.items()} for some in (keys, sums))
    return sql.insert_from(model, rows.order_by().values(**keys).annotate(**sums))


def _sums(prefix: str) -> dict[str, Any]:
    """By column, what `rollups.add` has added for the standing entries of usage."""
    ended = [status for status in UsageRecord.Status.values if status != UsageRecord.Status.IN_PROGRESS]
    return {
        "responses": Count("pk"),
        **{status: Count("pk", filter=Q(**{f"{prefix}status": status})) for status in ended},
        **{name: Sum(f"{prefix}{name}") for name in COUNTED},
    }


def _latencies(prefix: str) -> dict[str, Any]:
    timed = Q(**{f"{prefix}duration_ms__isnull": False})
    waited = Coalesce(f"{prefix}first_token_ms", f"{prefix}duration_ms")
    return {
        "responses": Count("pk"),
        "failures": Count("pk", filter=Q(**{f"{prefix}status__in": FAILURES})),
        "timed": Count("pk", filter=timed),
        "output_tokens": Coalesce(Sum(f"{prefix}output_tokens", filter=timed), 0),
        "checks_ms": _added(f"{prefix}checks_ms", timed),
        "render_ms": _added(f"{prefix}render_ms", timed),
        "first_token_ms": _added(waited, timed),
        "duration_ms": _added(f"{prefix}duration_ms", timed),
        **_histogram(f"{prefix}first_token_ms", FIRST_TOKEN),
        **_histogram(f"{prefix}duration_ms", DURATION),
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
