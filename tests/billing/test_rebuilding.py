"""Roll-ups made anew are those that billing has made, also beside billing that goes on."""

import random
import threading
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.forms.models import model_to_dict

from responses_ws.billing import ledger, rollups
from responses_ws.billing.rebuilding import days_with_usage, rebuild
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import EndingRollup, Journal, LatencyRollup, UsageRollup
from responses_ws.models.latency import LATENCY_DIMENSIONS
from responses_ws.models.rollups import DIMENSIONS, ENDING_DIMENSIONS

from .rows import NOON, make_key, make_prices, make_project, make_record

DAY = NOON.date()


def everything():
    """All rows without their ids, in order; floats to a millionth."""

    def rows(model, dimensions):
        for row in model.objects.exclude(responses=0).order_by(*dimensions):
            yield {
                name: round(value, 6) if isinstance(value, float) else value
                for name, value in (model_to_dict(row) | {"start": row.start}).items()
                if name != "id"
            }

    return [
        *rows(UsageRollup, DIMENSIONS),
        *rows(LatencyRollup, LATENCY_DIMENSIONS),
        *rows(EndingRollup, ENDING_DIMENSIONS),
    ]


def any_record(chance, projects, keys):
    number = chance.randrange(len(projects))
    first = chance.choice([None, chance.lognormvariate(4, 2)])
    status, reason = chance.choice(
        [("completed", ""), ("failed", "server_error"), ("incomplete", "max_output_tokens"), ("abandoned", "too_old")]
    )
    return make_record(
        projects[number],
        api_key=chance.choice([None, keys[number]]),
        model=chance.choice(["m", "n"]),
        transport=chance.choice(["websocket", "sse"]),
        service_tier=chance.choice(["default", "flex"]),
        status=status,
        reason=reason,
        estimated=chance.choice([True, False]),
        cached_tokens=chance.randrange(1_000),
        reasoning_tokens=chance.randrange(100),
        tool_calls=chance.randrange(3),
        started_at=NOON + timedelta(seconds=chance.randrange(-200_000, 200_000)),
        checks_ms=chance.choice([None, 0.25]),
        render_ms=chance.choice([None, 1.5]),
        first_token_ms=first,
        duration_ms=chance.choice([None, (first or 0) + chance.lognormvariate(5, 2)]),
    )


@pytest.fixture
def billed():
    """120 billed records of all kinds over five days, some of them reversed or corrected."""
    chance = random.Random(6)
    make_prices()
    projects = [make_project(), make_project("globex")]
    keys = [make_key(project) for project in projects]
    records = [any_record(chance, projects, keys) for _ in range(120)]
    ledger.bill_all(limit=50)
    for record in records[:20]:
        ledger.reverse(Journal.objects.get(usage=record), "credited")
    for record in records[20:40]:
        ledger.correct(record, {"status": "completed", "reason": "", "output_tokens": 7_000})
    ledger.bill_all()


@pytest.mark.django_db
def test_what_is_made_anew_is_what_billing_has_made(billed):
    before = everything()
    UsageRollup.objects.update(responses=5, amount_nano=0)
    LatencyRollup.objects.update(duration_ms=7.0)
    EndingRollup.objects.all().delete()

    call_command("responses_ws_rebuild_rollups", stdout=StringIO())

    assert len(before) > 150
    assert everything() == before
    assert reconcile() == []


@pytest.mark.django_db
def test_other_days_than_those_asked_for_are_left_alone(billed):
    UsageRollup.objects.update(responses=5)
    output = StringIO()

    call_command("responses_ws_rebuild_rollups", "--since=2026-11-29", "--until=2026-11-29", stdout=output)

    wrong = UsageRollup.objects.exclude(responses__lt=5)
    assert {start.date() for start in wrong.values_list("start", flat=True)}.isdisjoint({DAY})
    midnight = NOON.replace(hour=0)
    assert UsageRollup.objects.filter(start__lt=midnight, responses=5).exists()
    assert UsageRollup.objects.filter(start__gte=midnight + timedelta(days=1), responses=5).exists()
    assert output.getvalue().startswith("2026-11-29: ")
    assert output.getvalue().count("\n") == 1


@pytest.mark.django_db
def test_the_days_with_usage_are_those_of_records_and_of_what_was_added_up():
    make_record(started_at=NOON)
    make_record(started_at=NOON + timedelta(days=2))
    assert days_with_usage() == (DAY, DAY + timedelta(days=2))

    ledger.bill_all()
    UsageRollup.objects.filter(start__gte=NOON + timedelta(days=1)).update(start=NOON + timedelta(days=5))
    UsageRollup.objects.filter(start__lt=NOON + timedelta(days=1)).update(start=NOON - timedelta(days=3))

    assert days_with_usage() == (DAY - timedelta(days=3), DAY + timedelta(days=5))


@pytest.mark.django_db
def test_nothing_is_made_of_nothing():
    output = StringIO()

    call_command("responses_ws_rebuild_rollups", stdout=output)

    assert output.getvalue() == "There is no usage.\n"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--since=2026-13-01"], "no day such as"),
        (["--since=2026-11-30", "--until=2026-11-29"], "--since 2026-11-30 is after --until 2026-11-29"),
    ],
)
def test_days_that_are_none_are_refused(options, complaint):
    make_record()

    with pytest.raises(CommandError, match=complaint):
        call_command("responses_ws_rebuild_rollups", *options)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["before", "behind"])
def test_what_is_billed_while_they_are_made_is_in_them_once(monkeypatch, where):
    """A biller stands before its upsert, or behind it and before its commit, when the day is made anew."""
    make_prices()
    make_record()
    ledger.bill_batch()
    make_record()
    arrived, may_go_on, errors = threading.Event(), threading.Event(), []

    def add_slowly(entries, add=rollups.add):
        if where == "behind":
            add(entries)
        arrived.set()
        assert may_go_on.wait(30)
        if where == "before":
            add(entries)

    def run(function, *arguments):
        try:
            function(*arguments)
        except Exception as exc:
            errors.append(exc)
        finally:
            connections.close_all()

    monkeypatch.setattr(rollups, "add", add_slowly)
    biller = threading.Thread(target=run, args=(ledger.bill_batch,))
    maker = threading.Thread(target=run, args=(rebuild, DAY, DAY))
    biller.start()
    assert arrived.wait(30)
    maker.start()
    # PostgreSQL makes the day meanwhile, if the biller stands before its upsert. Otherwise it waits for the biller.
    maker.join(0.5)
    may_go_on.set()
    biller.join(30)
    maker.join(30)

    assert errors == []
    assert UsageRollup.objects.days().totals()["responses"] == Journal.objects.count() == 2
    assert reconcile() == []
