"""Times of many responses, read off histograms: as near as the records themselves would say."""

import random
from datetime import timedelta

import pytest

from responses_ws.billing import ledger
from responses_ws.models import LatencyRollup
from responses_ws.models.latency import BOUNDS_MS, FIRST_TOKEN, percentile
from tests.billing.rows import NOON, make_record

pytestmark = pytest.mark.django_db


def counts_of(values):
    counts = [0] * len(FIRST_TOKEN)
    for value in values:
        counts[sum(bound < value for bound in BOUNDS_MS)] += 1
    return counts


@pytest.mark.parametrize("fraction", [0.5, 0.95, 0.99])
def test_a_percentile_of_a_histogram_is_near_that_of_its_values(fraction):
    chance = random.Random(1)
    values = sorted(chance.lognormvariate(5, 1) for _ in range(5_000))

    found = percentile(counts_of(values), fraction)

    assert found == pytest.approx(values[int(len(values) * fraction)], rel=0.1)


@pytest.mark.parametrize("value", [0.0, 1.0, 5.0, 6.0, 100.0, 37_000.0])
def test_a_percentile_of_one_response_is_in_its_bucket(value):
    found = percentile(counts_of([value]), 0.5)

    upper = next(bound for bound in BOUNDS_MS if value <= bound)
    assert found is not None
    assert upper / 1.51 <= found * 1.5 and found <= upper


def test_beyond_the_last_bound_the_bound_is_said():
    assert percentile(counts_of([60_000.0, 90_000.0]), 0.95) == BOUNDS_MS[-1]


def test_no_response_has_no_percentile():
    assert percentile([0] * len(FIRST_TOKEN), 0.5) is None
    times = LatencyRollup.objects.days().latencies().times
    assert (times.first_token_p50, times.duration_p95, times.tokens_per_second, times.parts) == (None, None, None, {})


def test_times_are_told_by_transport():
    for _ in range(10):
        make_record(
            checks_ms=1.0, render_ms=3.0, first_token_ms=104.0, duration_ms=1_104.0, output_tokens=50, input_tokens=0
        )
    make_record(transport="http", first_token_ms=900.0, duration_ms=1_000.0, output_tokens=1)
    make_record(transport="http", status="failed", duration_ms=None)
    ledger.bill_batch()

    socket, http = LatencyRollup.objects.days().latencies().transports

    assert (socket["transport"], socket["responses"], socket["failures"]) == ("websocket", 10, 0)
    assert socket["times"].parts == {"checks": 1, "render": 3, "first_token": 100, "rest": 1_000}
    assert socket["times"].tokens_per_second == 50
    assert 85 <= socket["times"].first_token_p50 <= socket["times"].first_token_p95 <= 129
    assert (http["responses"], http["failures"]) == (2, 1)
    assert 649 <= http["times"].first_token_p50 <= 974


def test_hours_are_looked_at_one_by_one_and_all_together():
    later = NOON + timedelta(hours=3)
    make_record(first_token_ms=90.0, duration_ms=400.0)
    make_record(transport="sse", first_token_ms=30.0, duration_ms=3_000.0, started_at=later)
    make_record(transport="sse", first_token_ms=31.0, duration_ms=3_000.0, started_at=later)
    make_record(transport="sse", status="failed", reason="server_error", duration_ms=5.0)
    ledger.bill_batch()
    hours = LatencyRollup.objects.hours()

    seen = hours.latencies()

    assert list(seen.series) == [NOON, later]
    for start, times in seen.series.items():
        assert times == hours.between(start, start + timedelta(hours=1)).latencies().times
    assert seen.times.first_token_p50 < seen.times.first_token_p95
    assert [(row["transport"], row["responses"], row["failures"]) for row in seen.transports] == [
        ("sse", 3, 1),
        ("websocket", 1, 0),
    ]


def test_tokens_of_responses_that_were_not_timed_make_nobody_faster():
    make_record(output_tokens=50, first_token_ms=100.0, duration_ms=1_100.0)
    make_record(output_tokens=5_000, first_token_ms=None, duration_ms=None)
    ledger.bill_batch()

    assert LatencyRollup.objects.days().latencies().times.tokens_per_second == 50
