"""Roll-ups say what the ledger says, by the hour and by the day."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import Sum

from responses_ws.billing import ledger
from responses_ws.models import EndingRollup, Journal, LatencyRollup, UsageRecord, UsageRollup
from responses_ws.models.rollups import WHO

from .rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db


def rows(queryset, *names):
    return list(queryset.order_by(*names).values_list(*names))


def test_a_billed_turn_is_in_its_hour_and_in_its_day():
    make_prices()
    key = make_key(make_project())
    record = make_record(
        api_key=key,
        started_at=NOON + timedelta(minutes=59, seconds=59),
        input_tokens=1_000,
        cached_tokens=600,
        output_tokens=100,
        reasoning_tokens=40,
        tool_calls=3,
        checks_ms=0.5,
        render_ms=1.5,
        first_token_ms=90.0,
        duration_ms=2_000.0,
    )

    ledger.bill_batch()

    day, hour = UsageRollup.objects.order_by("width")
    assert (hour.width, hour.start) == ("hour", NOON)
    assert (day.width, day.start) == ("day", NOON.replace(hour=0))
    for row in (day, hour):
        assert (row.organization_id, row.project_id, row.api_key_id) == (
            record.organization_id,
            record.project_id,
            key.pk,
        )
        assert (row.model, row.service_tier) == ("m", "default")
        assert (row.responses, row.completed, row.tool_calls) == (1, 1, 3)
        assert (row.incomplete, row.failed, row.cancelled, row.abandoned) == (0, 0, 0, 0)
        assert (row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens) == (1_000, 600, 100, 40)
        assert row.amount_nano == 1_900_000
    for row, times in zip((day, hour), LatencyRollup.objects.order_by("width"), strict=True):
        for name in WHO:
            assert getattr(times, name) == getattr(row, name)
        assert (times.transport, times.responses, times.failures, times.output_tokens) == ("websocket", 1, 0, 100)
        assert (times.timed, times.checks_ms, times.render_ms, times.first_token_ms, times.duration_ms) == (
            1,
            0.5,
            1.5,
            90,
            2_000,
        )
        # 85.4 < 90 ≤ 128.1 and 1,459.6 < 2,000 ≤ 2,189.5.
        assert (times.first_token_08, times.duration_15) == (1, 1)


def test_turns_of_one_hour_share_a_row_and_those_of_others_do_not():
    make_prices()
    make_record()
    make_record(started_at=NOON + timedelta(minutes=30))
    make_record(started_at=NOON + timedelta(hours=1))
    make_record(model="n")
    make_record(service_tier="flex", transport="sse")

    ledger.bill_batch(limit=3)
    ledger.bill_batch()

    assert rows(UsageRollup.objects, "width", "start__hour", "model", "service_tier", "responses", "amount_nano") == [
        ("day", 0, "m", "default", 3, 8_400_000),
        ("day", 0, "m", "flex", 1, 2_800_000),
        ("day", 0, "n", "default", 1, 0),
        ("hour", 12, "m", "default", 2, 5_600_000),
        ("hour", 12, "m", "flex", 1, 2_800_000),
        ("hour", 12, "n", "default", 1, 0),
        ("hour", 13, "m", "default", 1, 2_800_000),
    ]
    assert rows(LatencyRollup.objects.hours(), "start__hour", "model", "transport", "responses") == [
        (12, "m", "sse", 1),
        (12, "m", "websocket", 2),
        (12, "n", "websocket", 1),
        (13, "m", "websocket", 1),
    ]


@pytest.mark.parametrize(
    ("milliseconds", "bucket"),
    [(0.0, 0), (5.0, 0), (5.01, 1), (7.5, 1), (37_409.0, 22), (37_410.0, 23), (1e9, 23)],
)
def test_a_time_is_counted_where_its_bound_holds_it(milliseconds, bucket):
    make_record(first_token_ms=milliseconds, duration_ms=milliseconds)

    ledger.bill_batch()

    row = LatencyRollup.objects.days().get()
    for kind in ("first_token", "duration"):
        assert [number for number in range(24) if getattr(row, f"{kind}_{number:02}")] == [bucket]


def test_a_response_without_a_token_has_waited_for_it_all_the_time():
    make_record(status="failed", reason="server_error", first_token_ms=None, duration_ms=300.0)

    ledger.bill_batch()

    row = LatencyRollup.objects.days().get()
    assert (row.timed, row.first_token_ms, row.duration_ms) == (1, 300, 300)
    assert not any(getattr(row, f"first_token_{number:02}") for number in range(24))


def test_what_did_not_complete_is_counted_by_its_reason():
    make_record()
    make_record(status="failed", reason="server_error")
    make_record(status="failed", reason="server_error")
    make_record(status="incomplete", reason="max_output_tokens")

    ledger.bill_batch()

    found = EndingRollup.objects.days().order_by("status").values_list("status", "reason", "responses")
    assert list(found) == [("failed", "server_error", 2), ("incomplete", "max_output_tokens", 1)]


def test_a_reversal_takes_back_what_was_added_where_it_was_added():
    make_prices()
    make_record(first_token_ms=90.0, duration_ms=2_000.0, status="cancelled")
    make_record()
    ledger.bill_batch()

    ledger.reverse(Journal.objects.get(usage__status="cancelled"), "credited")

    for row in UsageRollup.objects.all():
        assert (row.responses, row.completed, row.cancelled, row.input_tokens) == (1, 1, 0, 1_000)
        assert row.amount_nano == 2_800_000
    for row in LatencyRollup.objects.all():
        assert (row.responses, row.timed, row.first_token_08, row.duration_ms) == (1, 0, 0, 0)
    assert EndingRollup.objects.aggregate(all=Sum("responses"))["all"] == 0


def test_a_corrected_end_moves_from_one_count_to_the_other():
    make_prices()
    make_record(status="abandoned", reason="lease_expired", output_tokens=10)
    ledger.bill_batch()
    assert set(LatencyRollup.objects.values_list("failures", flat=True)) == {1}

    ledger.correct(UsageRecord.objects.get(), {"status": "completed", "reason": "", "output_tokens": 100})
    ledger.bill_batch()

    for row in UsageRollup.objects.all():
        assert (row.responses, row.abandoned, row.completed) == (1, 0, 1)
        assert (row.output_tokens, row.amount_nano) == (100, 2_800_000)
    assert set(LatencyRollup.objects.values_list("responses", "failures")) == {(1, 0)}
    assert set(EndingRollup.objects.values_list("reason", "responses")) == {("lease_expired", 0)}


def test_days_are_those_of_utc_wherever_the_project_is(settings):
    settings.TIME_ZONE = "Pacific/Auckland"
    make_record(started_at=datetime(2026, 11, 29, 23, 59, tzinfo=UTC))

    ledger.bill_batch()

    assert UsageRollup.objects.days().get().start == datetime(2026, 11, 29, tzinfo=UTC)


def test_a_task_killed_after_the_ledger_was_written_leaves_no_roll_up(monkeypatch):
    class Killed(BaseException):
        pass

    def die(_entries):
        raise Killed

    make_record()
    with monkeypatch.context() as patch:
        patch.setattr(ledger.rollups, "add", die)
        with pytest.raises(Killed):
            ledger.bill_batch()
    assert not Journal.objects.exists()

    ledger.bill_batch()

    assert UsageRollup.objects.aggregate(all=Sum("responses"))["all"] == 2
    assert LatencyRollup.objects.aggregate(all=Sum("responses"))["all"] == 2
