"""Roll-ups: what was billed, added up by the hour and by the day."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from responses_ws.models import EndingRollup, LatencyRollup, UsageRecord, UsageRollup
from responses_ws.models.latency import BOUNDS_MS, DURATION, FIRST_TOKEN, LATENCY_DIMENSIONS
from responses_ws.models.rollups import DIMENSIONS, ENDING_DIMENSIONS, Width
from responses_ws.runtime import sql

from .entries import Entry

COUNTED = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens", "tool_calls")
FAILURES = (UsageRecord.Status.FAILED, UsageRecord.Status.ABANDONED)

Rows = dict[tuple[Any, ...], dict[str, float]]


def add(entries: Iterable[Entry]) -> None:
    """Add entries to the rows of their hours and days; reversals are taken away again.

    In the transaction that writes the entries, which holds their usage records.
    """
    usage: Rows = defaultdict(lambda: defaultdict(int))
    latencies: Rows = defaultdict(lambda: defaultdict(int))
    endings: Rows = defaultdict(lambda: defaultdict(int))
    for entry in entries:
        record = entry.record
        if record is None:
            continue
        counts, times = dict(_counts_of(record)), dict(_times_of(record))
        for width, start in _starts(record.started_at):
            who = (width, start, record.organization_id, record.project_id, record.api_key_id or 0, record.model)
            usage[*who, record.service_tier]["amount_nano"] += entry.amount_nano
            _add(usage[*who, record.service_tier], counts, entry.sign)
            _add(latencies[*who, record.transport], times, entry.sign)
            if record.status != UsageRecord.Status.COMPLETED:
                _add(endings[*who, record.status, record.reason], {"responses": 1}, entry.sign)
    sql.add(UsageRollup, DIMENSIONS, usage)
    sql.add(LatencyRollup, LATENCY_DIMENSIONS, latencies)
    sql.add(EndingRollup, ENDING_DIMENSIONS, endings)


def _add(row: dict[str, float], numbers: Mapping[str, float], sign: int) -> None:
    for name, number in numbers.items():
        row[name] += sign * number


def _starts(moment: datetime) -> Iterator[tuple[str, datetime]]:
    """The beginnings of the hour and of the day of UTC that hold ``moment``, by width."""
    hour = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    yield str(Width.HOUR), hour
    yield str(Width.DAY), hour.replace(hour=0)


def _counts_of(record: UsageRecord) -> Iterator[tuple[str, float]]:
    """The columns to which a record adds, and how much."""
    yield "responses", 1
    yield record.status, 1
    for name in COUNTED:
        yield name, getattr(record, name)


def _times_of(record: UsageRecord) -> Iterator[tuple[str, float]]:
    yield "responses", 1
    if record.status in FAILURES:
        yield "failures", 1
    first, duration = record.first_token_ms, record.duration_ms
    if first is not None:
        yield FIRST_TOKEN[bisect_left(BOUNDS_MS, first)], 1
    if duration is not None:
        yield DURATION[bisect_left(BOUNDS_MS, duration)], 1
        yield "timed", 1
        yield "output_tokens", record.output_tokens
        yield "checks_ms", record.checks_ms or 0
        yield "render_ms", record.render_ms or 0
        yield "first_token_ms", duration if first is None else first
        yield "duration_ms", duration
