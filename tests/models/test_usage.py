"""Questions that usage records answer."""

from datetime import date, timedelta

import pytest

from responses_ws.billing import ledger
from responses_ws.models import Posting, UsageRecord
from tests.billing.rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db


def test_days_add_up_in_parts_that_do_not_overlap():
    make_record(input_tokens=100, cached_tokens=60, output_tokens=50, reasoning_tokens=20)
    make_record(input_tokens=10, output_tokens=1, status="failed")
    make_record(input_tokens=1, output_tokens=0, started_at=NOON - timedelta(days=2))

    assert list(UsageRecord.objects.by_day()) == [
        {
            "day": date(2026, 11, 27),
            "responses": 1,
            "failures": 0,
            "tokens": 1,
            "uncached": 1,
            "cached": 0,
            "answer": 0,
            "reasoning": 0,
        },
        {
            "day": date(2026, 11, 29),
            "responses": 2,
            "failures": 1,
            "tokens": 161,
            "uncached": 50,
            "cached": 60,
            "answer": 31,
            "reasoning": 20,
        },
    ]


def test_days_are_those_of_utc_wherever_the_project_is(settings):
    settings.TIME_ZONE = "Pacific/Auckland"
    make_prices()
    make_record(started_at=NOON.replace(hour=23, minute=59))
    ledger.bill_all()

    assert [row["day"] for row in UsageRecord.objects.by_day()] == [date(2026, 11, 29)]
    assert [row["day"] for row in Posting.objects.charges().by_day()] == [date(2026, 11, 29)]


def test_totals_of_nothing_are_zero():
    assert set(UsageRecord.objects.totals().values()) == {0}


@pytest.mark.parametrize(
    ("fraction", "milliseconds"),
    [
        pytest.param(0.5, 20.0, id="p50"),
        pytest.param(0.95, 40.0, id="p95"),
        pytest.param(0.25, 10.0, id="p25"),
        pytest.param(1.0, 40.0, id="p100"),
    ],
)
def test_a_percentile_is_a_value_that_occurred(fraction, milliseconds):
    for first_token_ms in (40.0, 10.0, None, 30.0, 20.0):
        make_record(first_token_ms=first_token_ms)

    assert UsageRecord.objects.first_token_percentile(fraction) == milliseconds


def test_a_percentile_of_nothing_is_none():
    make_record(first_token_ms=None)

    assert UsageRecord.objects.first_token_percentile(0.5) is None


def test_models_and_keys_come_with_the_most_tokens_first():
    project = make_project()
    laptop, server = make_key(project, "laptop"), make_key(project, "server")
    make_record(model="small", api_key=laptop, input_tokens=5, output_tokens=0)
    make_record(model="large", api_key=server, input_tokens=9, output_tokens=0)
    make_record(model="large", api_key=server, input_tokens=9, output_tokens=0)

    by_model = UsageRecord.objects.by_model()
    by_key = UsageRecord.objects.by_key()

    assert [(row["name"], row["tokens"], row["responses"]) for row in by_model] == [("large", 18, 2), ("small", 5, 1)]
    assert [(row["key_name"], row["project_name"], row["tokens"]) for row in by_key] == [
        ("server", "default", 18),
        ("laptop", "default", 5),
    ]


def test_the_start_of_a_period_belongs_to_it_and_the_end_does_not():
    record = make_record()

    assert list(UsageRecord.objects.between(NOON)) == [record]
    assert list(UsageRecord.objects.between(NOON - timedelta(days=1), NOON)) == []


def test_lapsed_is_in_progress_past_its_lease():
    lapsed = make_record(status="in_progress", lease_until=NOON)
    make_record(status="in_progress", lease_until=NOON + timedelta(seconds=9))
    make_record(lease_until=NOON)

    assert list(UsageRecord.objects.lapsed(NOON + timedelta(seconds=1))) == [lapsed]
