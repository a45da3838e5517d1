"""How long responses took, added up by the hour and by the day in histograms whose columns can be added."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from operator import add
from typing import Any

import msgspec
from django.db.models import CharField, Sum, UniqueConstraint

from .rollups import WHO, Rollup, RollupQuerySet, count_field, milliseconds_field, owner_index, sum_field

BOUNDS_MS = tuple(round(5 * 1.5**number, 1) for number in range(23))
"""Upper bounds of all buckets of a histogram but the last, in milliseconds: 5, 7.5, …, 37,409. Each is 1.5 times the
one before: a percentile read off them is right within a quarter, and histograms of any rows can be added."""

FIRST_TOKEN = tuple(f"first_token_{number:02}" for number in range(len(BOUNDS_MS) + 1))
"""The columns that count responses by the time to their first token."""
DURATION = tuple(f"duration_{number:02}" for number in range(len(BOUNDS_MS) + 1))
"""The columns that count responses by how long they took."""

LATENCY_DIMENSIONS = (*WHO, "transport")
"""What tells rows of latency apart."""
_COUNTS = ("responses", "failures", "timed", "output_tokens")
_PARTS = ("checks_ms", "render_ms", "first_token_ms", "duration_ms")
_COLUMNS = (*_COUNTS, *_PARTS, *FIRST_TOKEN, *DURATION)


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


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """How fast they all were, and by what they are looked at."""

    times: Times
    series: dict[datetime, Times]
    """By the hour or the day, in order; those of nothing are absent."""
    transports: list[dict[str, Any]]
    """For each way to ask, the busiest first: ``transport``, ``responses``, ``failures``, ``times``."""


class LatencyRollupQuerySet(RollupQuerySet):
    def latencies(self) -> Latencies:
        """All of it by one query: one by one, the same rows would be read three times."""
        zeros = [0] * len(_COLUMNS)
        whole: Sequence[Any] = zeros
        starts: dict[datetime, Sequence[Any]] = defaultdict(lambda: zeros)
        transports: dict[str, Sequence[Any]] = defaultdict(lambda: zeros)
        sums = {f"sum_{name}": Sum(name) for name in _COLUMNS}
        # Not sorted by the database, which would sort the wide rows before it adds them up.
        rows = self.order_by().values("start", "transport").annotate(**sums)
        for start, transport, *numbers in sorted(rows.values_list("start", "transport", *sums)):
            whole = list(map(add, whole, numbers))
            starts[start] = list(map(add, starts[start], numbers))
            transports[transport] = list(map(add, transports[transport], numbers))
        busiest = sorted(transports.items(), key=lambda item: (-item[1][0], item[0]))
        return Latencies(
            times=_times(whole),
            series={start: _times(numbers) for start, numbers in starts.items()},
            transports=[
                {"transport": transport, "responses": numbers[0], "failures": numbers[1], "times": _times(numbers)}
                for transport, numbers in busiest
            ],
        )


class LatencyRollup(Rollup):
    """Times of billed usage records that started in [start, start + width), by the way they were asked for.

    A table of its own: these rows are wide, and questions of money and tokens need none of them.
    """

    transport = CharField(max_length=10)

    responses = count_field()
    failures = count_field()
    """Those that were our fault, or our engine's."""
    timed = count_field()
    """Responses whose times are in what follows."""
    output_tokens = sum_field()
    """Of those."""
    checks_ms = milliseconds_field()
    render_ms = milliseconds_field()
    first_token_ms = milliseconds_field()
    """Until the first token, or the end of a response that had none."""
    duration_ms = milliseconds_field()

    objects = LatencyRollupQuerySet.as_manager()

    class Meta:
        constraints = [UniqueConstraint(fields=LATENCY_DIMENSIONS, name="responses_ws_latency_once")]
        indexes = [owner_index("responses_ws_latency_owner")]


for _name in (*FIRST_TOKEN, *DURATION):
    LatencyRollup.add_to_class(_name, count_field())


def percentile(counts: Sequence[int], fraction: float) -> float | None:
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


def _times(numbers: Sequence[Any]) -> Times:
    told = dict(zip(_COLUMNS, numbers, strict=True))
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
