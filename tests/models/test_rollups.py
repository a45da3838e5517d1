"""Questions that roll-ups answer: the same as the records would give, one by one."""

import random
from datetime import timedelta

import pytest

from responses_ws.billing import ledger
from responses_ws.models import EndingRollup, UsageRollup
from responses_ws.models.rollups import BOUNDS_MS, FIRST_TOKEN, percentile
from tests.billing.rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db
DAY = NOON.replace(hour=0)


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
    times = UsageRollup.objects.days().times()
    assert (times.first_token_p50, times.duration_p95, times.tokens_per_second, times.parts) == (None, None, None, {})


def test_totals_are_in_parts_that_do_not_overlap():
    make_prices()
    make_record(input_tokens=100, cached_tokens=60, output_tokens=50, reasoning_tokens=20, tool_calls=2)
    make_record(input_tokens=10, output_tokens=1, status="failed", reason="server_error")
    make_record(status="cancelled", input_tokens=0, output_tokens=0)
    ledger.bill_batch()

    totals = UsageRollup.objects.days().totals()

    assert totals == {
        "responses": 3,
        "failures": 1,
        "tokens": 161,
        "uncached": 50,
        "cached": 60,
        "answer": 31,
        "reasoning": 20,
        "tool_calls": 2,
        "amount_nano": 40 * 2_000 + 60 * 500 + 50 * 8_000,
        "completed": 1,
        "incomplete": 0,
        "failed": 1,
        "cancelled": 1,
        "abandoned": 0,
    }


def test_totals_of_nothing_are_zero():
    assert set(UsageRollup.objects.totals().values()) == {0}


def test_a_series_has_the_hours_or_the_days_of_something():
    make_record()
    make_record(started_at=NOON + timedelta(hours=2))
    make_record(started_at=NOON + timedelta(days=1))
    ledger.bill_batch()

    hours = UsageRollup.objects.hours().between(DAY, DAY + timedelta(days=1)).series()
    days = UsageRollup.objects.days().series()

    assert [(row["start"], row["responses"]) for row in hours] == [(NOON, 1), (NOON + timedelta(hours=2), 1)]
    assert [(row["start"], row["responses"]) for row in days] == [(DAY, 2), (DAY + timedelta(days=1), 1)]


def test_the_dearest_come_first_with_their_names():
    make_prices()
    project, other = make_project(), make_project("globex", "labs")
    laptop, server = make_key(project, "laptop"), make_key(other, "server")
    make_record(project, api_key=laptop)
    make_record(other, api_key=server)
    make_record(other, api_key=server)
    make_record(other, model="free")
    ledger.bill_batch()

    rows = UsageRollup.objects.days()

    assert [(row["key_name"], row["project_name"], row["amount_nano"]) for row in rows.by_key(3)] == [
        ("server", "labs", 5_600_000),
        ("laptop", "default", 2_800_000),
        ("", "labs", 0),
    ]
    assert [(row["project_name"], row["organization_name"], row["responses"]) for row in rows.by_project(9)] == [
        ("labs", "globex", 3),
        ("default", "acme", 1),
    ]
    assert [row["organization_name"] for row in rows.by_organization(1)] == ["globex"]
    assert [(row["model"], row["responses"]) for row in rows.by_model()] == [("m", 3), ("free", 1)]


def test_what_is_asked_for_can_be_narrowed():
    project, other = make_project(), make_project(name="labs")
    key = make_key(project)
    make_record(project, api_key=key)
    make_record(project, model="n")
    make_record(other)
    ledger.bill_batch()

    def responses(**narrowing):
        return UsageRollup.objects.days().narrowed(**narrowing).totals()["responses"]

    assert responses() == 3
    assert responses(organization_id=project.organization_id) == 3
    assert responses(project_id=project.pk) == 2
    assert responses(api_key_id=key.pk) == 1
    assert responses(api_key_id=0) == 2
    assert responses(project_id=project.pk, model="n") == 1


def test_times_are_told_by_transport():
    for _ in range(10):
        make_record(
            checks_ms=1.0, render_ms=3.0, first_token_ms=104.0, duration_ms=1_104.0, output_tokens=50, input_tokens=0
        )
    make_record(transport="http", first_token_ms=900.0, duration_ms=1_000.0, output_tokens=1)
    make_record(transport="http", status="failed", duration_ms=None)
    ledger.bill_batch()

    socket, http = UsageRollup.objects.days().by_transport()

    assert (socket["transport"], socket["responses"], socket["failures"]) == ("websocket", 10, 0)
    assert socket["times"].parts == {"checks": 1, "render": 3, "first_token": 100, "rest": 1_000}
    assert socket["times"].tokens_per_second == 50
    assert 85 <= socket["times"].first_token_p50 <= socket["times"].first_token_p95 <= 129
    assert (http["responses"], http["failures"]) == (2, 1)
    assert 649 <= http["times"].first_token_p50 <= 974
    assert set(UsageRollup.objects.hours().times_series()) == {NOON}


def test_a_month_is_compared_with_as_much_of_the_last():
    make_prices()
    for days in (0, 28, 29, 30, 40, 60):
        make_record(started_at=NOON - timedelta(days=days))
    ledger.bill_batch()

    months = UsageRollup.objects.days().month_against_last(NOON)

    # Today, the 1st; 31, 30 and 20 October, of which the 30th is too late for the 29th; 30 September.
    assert months == {"this": 2 * 2_800_000, "last": 3 * 2_800_000, "last_by_now": 2_800_000}


def test_money_of_one_currency_is_summed_by_itself():
    make_prices()
    euros = make_project("globex")
    euros.organization.currency = "EUR"
    euros.organization.save()
    make_record()
    make_record(euros)
    ledger.bill_batch()

    days = UsageRollup.objects.days()

    assert days.in_currency("USD").totals()["responses"] == 1
    assert days.in_currency("EUR").totals()["responses"] == 1
    assert days.in_currency("CHF").totals()["responses"] == 0


def test_failures_are_counted_by_their_code():
    make_record(status="failed", reason="server_error")
    make_record(status="failed", reason="server_error")
    make_record(status="failed", reason="rate_limit_exceeded")
    make_record(status="abandoned", reason="lease_expired")
    make_record(status="incomplete", reason="max_output_tokens")
    ledger.bill_batch()

    found = EndingRollup.objects.days().failures().by_reason()

    assert [(row["reason"], row["responses"]) for row in found] == [
        ("server_error", 2),
        ("lease_expired", 1),
        ("rate_limit_exceeded", 1),
    ]


def test_an_overview_says_what_each_question_says_by_itself():
    make_prices()
    make_record(first_token_ms=90.0, duration_ms=400.0)
    make_record(transport="sse", first_token_ms=30.0, duration_ms=3_000.0, started_at=NOON + timedelta(hours=3))
    make_record(transport="sse", status="failed", reason="server_error", duration_ms=5.0)
    ledger.bill_batch()
    hours = UsageRollup.objects.hours()

    seen = hours.overview()

    assert seen.totals == hours.totals()
    assert [{"start": start, **row} for start, row in seen.series.items()] == list(hours.series())
    assert seen.times == hours.times()
    assert seen.times_series == hours.times_series()
    assert seen.transports == hours.by_transport()
    assert UsageRollup.objects.none().overview().totals == UsageRollup.objects.none().totals()
