"""Questions that roll-ups answer: the same as the records would give, one by one."""

from datetime import timedelta

import pytest
from django.db.models import F

from responses_ws.billing import ledger
from responses_ws.models import EndingRollup, UsageRollup
from tests.billing.rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db
DAY = NOON.replace(hour=0)


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

    assert [(start, row["responses"]) for start, row in hours.items()] == [(NOON, 1), (NOON + timedelta(hours=2), 1)]
    assert [(start, row["responses"]) for start, row in days.items()] == [(DAY, 2), (DAY + timedelta(days=1), 1)]


def test_the_dearest_come_first_with_their_names():
    make_prices()
    project, other = make_project(), make_project("globex", "labs")
    laptop, server = make_key(project, "laptop"), make_key(other, "server")
    make_record(project, api_key=laptop)
    make_record(other, api_key=server)
    make_record(other, api_key=server)
    make_record(other, model="free")
    ledger.bill_batch()

    found = UsageRollup.objects.days().rankings(3)

    assert [(row["key_name"], row["project_name"], row["amount_nano"]) for row in found["keys"]] == [
        ("server", "labs", 5_600_000),
        ("laptop", "default", 2_800_000),
        ("", "labs", 0),
    ]
    assert [(row["project_name"], row["organization_name"], row["responses"]) for row in found["projects"]] == [
        ("labs", "globex", 3),
        ("default", "acme", 1),
    ]
    assert [(row["organization_name"], row["tokens"]) for row in found["organizations"]] == [
        ("globex", 3_300),
        ("acme", 1_100),
    ]
    assert [(row["model"], row["responses"]) for row in found["models"]] == [("m", 3), ("free", 1)]


def test_no_more_than_the_dearest_are_ranked_and_those_that_are_gone_have_no_name():
    for number in range(3):
        project = make_project(f"org {number}")
        make_record(project, api_key=make_key(project), input_tokens=1_000 * (number + 1))
    ledger.bill_batch()
    UsageRollup.objects.update(organization_id=F("organization_id") + 1_000, project_id=F("project_id") + 1_000)

    found = UsageRollup.objects.days().rankings(2)

    assert {title: len(rows) for title, rows in found.items()} == {
        "organizations": 2,
        "projects": 2,
        "keys": 2,
        "models": 1,
    }
    assert [(row["project_name"], row["organization_name"], row["tokens"]) for row in found["projects"]] == [
        ("", "", 3_100),
        ("", "", 2_100),
    ]
    assert {row["organization_name"] for row in found["organizations"]} == {""}


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
