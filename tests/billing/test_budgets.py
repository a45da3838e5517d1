"""What the database says of budgets: which there are, what is spent of them, and what will be."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from responses_ws.billing import budgets, ledger, pricebook
from responses_ws.connection.budgets import Share, Window
from responses_ws.models import Budget, CreditGrant, Organization, UsageRecord
from responses_ws.protocol.usage import Usage

from .rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

TURN = 2_800_000
"""What a turn of `make_record` costs."""
LIMIT = 10**9


def budget(owner=None, **fields):
    owner = owner or make_project().organization
    return Budget.objects.create(organization=owner, limit_nano=LIMIT, **{"window": "total", **fields})


def share(row, moment=NOON):
    return budgets.rule_of(row).at(moment)


def credit():
    return budgets.credit_of(Organization.objects.get()).at(NOON)


def grant(amount, **fields):
    owner = make_project().organization
    made = {"organization": owner, "kind": "paid", "amount_nano": amount, "remaining_nano": amount, **fields}
    return CreditGrant.objects.create(**made)


def book():
    return pricebook.read_book()


def look(of, names=(), *, is_first=False, mine=()):
    return budgets.read(of, names, is_first, mine, book())


def test_turns_are_refused_by_hard_budgets_that_are_active_and_by_prepaid_credit_and_by_nothing_else():
    hard = budget()
    budget(is_hard=False)
    budget(is_active=False)
    make_project("globex")
    assert [rule.name for rule in budgets.hard_budgets()] == [f"b{hard.pk}"]

    Organization.objects.filter(name="globex").update(is_prepaid=True, currency="EUR")

    (_, of_credit) = budgets.hard_budgets()
    globex = Organization.objects.get(name="globex")
    assert (of_credit.is_credit, of_credit.organization_id, of_credit.currency) == (True, globex.pk, "EUR")
    assert (of_credit.kind, of_credit.limit_nano, of_credit.of) == ("total", 0, "organization globex")


@pytest.mark.parametrize(
    ("named", "of"),
    [
        ((), "organization acme"),
        (("project",), "project chat"),
        (("api_key",), "key laptop"),
        (("project", "api_key"), "key laptop"),
        (("model",), "organization acme for the model m"),
        (("api_key", "model"), "key laptop for the model m"),
    ],
)
def test_a_row_as_the_rule_takes_it(named, of):
    project = make_project("acme", "chat")
    fields = {"project": project, "api_key": make_key(project), "model": "m"}
    Organization.objects.update(currency="EUR")

    row = budget(Organization.objects.get(), window="week", **{name: fields[name] for name in named})
    rule = budgets.rule_of(row)

    assert (rule.name, rule.kind, rule.limit_nano, rule.currency, rule.of) == (f"b{row.pk}", "week", LIMIT, "EUR", of)
    assert rule.organization_id == project.organization_id
    assert rule.project_id == (project.pk if "project" in named else None)
    assert rule.api_key_id == (fields["api_key"].pk if "api_key" in named else None)
    assert rule.model == ("m" if "model" in named else "")


@pytest.mark.parametrize(("window", "turns"), [("day", 2), ("week", 3), ("month", 4), ("total", 5)])
def test_what_is_spent_is_that_of_the_window(window, turns):
    make_prices()
    sunday = NOON  # the last day of its week
    for moment in (
        sunday.replace(hour=0),
        sunday.replace(hour=23, minute=59),
        sunday - timedelta(days=6),
        sunday.replace(day=1),
        sunday.replace(day=1, hour=0) - timedelta(seconds=1),
    ):
        make_record(started_at=moment)
    ledger.bill_all()
    row = budget(window=window)

    assert budgets.spent_nano(share(row)) == turns * TURN
    assert budgets.spent_nano(share(row, NOON + timedelta(days=365))) == (5 * TURN if window == "total" else 0)


def test_what_is_spent_is_of_those_that_the_budget_names():
    make_prices()
    make_prices("n")
    project, lab = make_project("acme", "chat"), make_project("acme", "lab")
    key, other = make_key(project), make_key(project, "server")
    make_record(make_project("globex"))
    # Turns of 1, 10, 100 and 1,000 times as much: a sum tells which of them are in it.
    used = [(project, {"api_key": key}), (project, {"api_key": other}), (project, {"model": "n"}), (lab, {})]
    for number, (of, fields) in enumerate(used):
        make_record(of, input_tokens=1_000 * 10**number, output_tokens=100 * 10**number, **fields)
    ledger.bill_all()

    def spent(**fields):
        return budgets.spent_nano(share(budget(project.organization, **fields))) // TURN

    assert spent() == 1_111
    assert spent(project=project) == 111
    assert spent(api_key=key) == 1
    assert spent(model="m") == 1_011
    assert spent(project=project, model="m") == 11
    assert spent(project=lab) == 1_000


def test_of_credit_it_is_what_is_left_below_zero():
    grant(100)
    grant(10, expires_at=timezone.now() + timedelta(hours=1))
    grant(1_000, expires_at=timezone.now() - timedelta(seconds=1))
    grant(10_000, currency="EUR")
    CreditGrant.objects.create(
        organization=make_project("globex").organization, kind="paid", amount_nano=10**5, remaining_nano=10**5
    )
    of_credit = budgets.credit_of(Organization.objects.get(name="acme")).at(NOON)

    assert budgets.spent_nano(of_credit) == -110
    CreditGrant.objects.filter(amount_nano=100).update(remaining_nano=60)
    assert budgets.spent_nano(of_credit) == -70
    CreditGrant.objects.update(remaining_nano=0)
    assert budgets.spent_nano(of_credit) == 0


def test_a_look_at_credit_is_good_until_some_of_it_expires():
    soon = timezone.now() + timedelta(hours=1)
    grant(1)
    assert look(credit()).true_until == float("inf")

    grant(1, expires_at=soon + timedelta(hours=1), priority=1)
    grant(1, expires_at=soon)
    grant(0, expires_at=soon - timedelta(minutes=1))
    grant(1, expires_at=timezone.now() - timedelta(minutes=1))

    assert look(credit()).true_until == soon.timestamp()
    assert look(share(budget())).true_until == float("inf")


def test_a_look_says_which_responses_are_in_the_sum(monkeypatch):
    make_prices()
    # Several questions for many names.
    monkeypatch.setattr(budgets, "_CHUNK", 2)
    names = [make_record().response_id for _ in range(5)]
    ledger.bill_all()
    waiting = make_record().response_id

    reading = look(share(budget()), [*names, waiting, "resp_unknown"])

    assert (reading.spent_nano, sorted(reading.billed)) == (5 * TURN, sorted(names))
    assert look(share(budget()), names[1:3]).billed == names[1:3]


def test_the_first_look_says_what_has_ended_and_is_not_billed_and_later_ones_do_not():
    make_prices()
    billed = make_record()
    ledger.bill_all()
    waiting = make_record(output_tokens=1_100)
    make_record(status="in_progress")
    make_record(status="failed")
    make_record(is_warmup=True)
    make_record(make_project("globex"))
    of = share(budget(Organization.objects.get(name="acme")))

    assert look(of, is_first=True).unbilled == {waiting.response_id: TURN + 8_000_000}
    assert look(of, is_first=False).unbilled == {}
    assert billed.response_id not in look(of, is_first=True).unbilled


def test_what_is_not_billed_will_cost_what_its_organisation_and_its_tier_pay():
    for price in make_prices("flexible", {"input": 10**9}, currency="EUR"):
        price.service_tier = "flex"
        price.save()
    Organization.objects.filter(pk=make_project().organization_id).update(currency="EUR")
    flexible = make_record(model="flexible", service_tier="flex").response_id
    make_record(model="flexible")

    assert look(share(budget()), is_first=True).unbilled == {flexible: 1_000_000}


def test_what_is_not_billed_belongs_to_the_window_of_its_start_and_to_what_the_budget_names():
    make_prices()
    make_prices("n")
    project = make_project()
    key = make_key(project)
    midnight = NOON.replace(hour=0)
    first = make_record(started_at=midnight, api_key=key)
    last = make_record(started_at=midnight + timedelta(days=1) - timedelta(microseconds=1), model="n")
    make_record(started_at=midnight - timedelta(microseconds=1))
    make_record(started_at=midnight + timedelta(days=1))
    day = {first.response_id: TURN, last.response_id: TURN}

    assert look(share(budget(window="day")), is_first=True).unbilled == day
    assert look(share(budget(window="day", api_key=key)), is_first=True).unbilled == {first.response_id: TURN}
    assert look(share(budget(window="day", model="n")), is_first=True).unbilled == {last.response_id: TURN}
    assert len(look(share(budget()), is_first=True).unbilled) == 4


def test_a_first_look_knows_whether_somebody_else_s_turn_runs():
    of = share(budget())
    assert look(of, is_first=True).is_quiet

    mine = make_record(status="in_progress").response_id
    make_record(make_project("globex"), status="in_progress")
    assert look(of, is_first=True, mine={mine}).is_quiet
    assert not look(of, is_first=True, mine=set()).is_quiet
    assert look(of, is_first=False, mine=set()).is_quiet

    make_record(status="in_progress")
    assert not look(of, is_first=True, mine={mine}).is_quiet
    UsageRecord.objects.update(status="completed", ended_at=NOON)
    assert look(of, is_first=True).is_quiet


USAGE = Usage(input_tokens=1_000, output_tokens=100)


def cost(**fields):
    project = make_project()
    given = {
        "organization_id": project.organization_id,
        "model": "m",
        "service_tier": "default",
        "started_at": NOON,
        "status": "completed",
        "is_warmup": False,
        "usage": USAGE,
        "tool_calls": 0,
        **fields,
    }
    return budgets.cost_of(book(), **given)


def test_a_response_will_cost_what_the_ledger_would_charge(settings):
    make_prices()
    make_prices(per_million={"tool_call": 5 * 10**12})
    make_prices("n", {"input": 10**9}, currency="EUR")

    assert cost() == TURN
    assert cost(tool_calls=2) == TURN + 10_000_000
    assert cost(model="unknown") == 0
    assert cost(started_at=NOON - timedelta(days=400)) == 0
    assert [cost(status=status) for status in ("failed", "cancelled", "abandoned")] == [0, TURN, TURN]
    assert cost(is_warmup=True) == 0
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "BILL_CANCELLED": False}
    assert cost(status="cancelled") == 0
    Organization.objects.update(currency="EUR")
    assert (cost(), cost(model="n")) == (0, 1_000_000)


def test_a_response_of_a_tier_costs_what_that_tier_costs():
    make_prices()
    for price in make_prices("flexible", {"input": 10**9}):
        price.service_tier = "flex"
        price.save()

    assert cost(model="flexible", service_tier="flex") == 1_000_000
    assert cost(model="flexible") == 0


def test_a_share_of_a_day_is_that_day():
    of = share(budget(window="day"), datetime(2026, 11, 29, 23, 59, tzinfo=UTC))

    assert of == Share(of.budget, Window(NOON.replace(hour=0), NOON.replace(hour=0) + timedelta(days=1)))
