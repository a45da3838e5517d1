"""Credit is used before anything is owed, in its order and its time, and what is left of it is always known."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from responses_ws.billing import credits, ledger
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Account, ControlMessage, CreditGrant, GrantUse, Journal, Organization, UsageRecord

from .rows import NOON, make_prices, make_project, make_record
from .test_concurrency import in_threads

pytestmark = pytest.mark.django_db

TURN = 2_800_000
"""What a turn of `make_record` costs."""


def give(amount=10 * TURN, kind="paid", **fields):
    fields.setdefault("expires_at", None)
    expires_at = fields.pop("expires_at")
    one = credits.grant(make_project().organization, amount, kind=kind, **fields)
    if expires_at is not None:
        # It is made today, and the turns of these tests are of `NOON`.
        CreditGrant.objects.filter(pk=one.pk).update(expires_at=expires_at)
        one.refresh_from_db()
    return one


def left():
    return list(CreditGrant.objects.order_by("pk").values_list("remaining_nano", flat=True))


def balances():
    return {kind: nano for kind, nano in Account.objects.values_list("kind", "balance_nano") if nano}


@pytest.fixture(autouse=True)
def _books_agree(db):
    """Whatever these tests do, the books agree behind them."""
    make_prices()
    yield
    assert reconcile() == []


def test_credit_that_was_bought_is_owed_to_the_customer():
    give(10 * TURN)

    assert balances() == {"cash": 10 * TURN, "prepaid": -10 * TURN}
    assert Journal.objects.get().kind == "grant"
    assert ControlMessage.objects.filter(kind="budgets_changed").count() == 1


def test_credit_that_is_given_away_costs_promotion():
    give(10 * TURN, kind="promotional")

    assert balances() == {"promotion": 10 * TURN, "prepaid": -10 * TURN}


def test_a_turn_takes_of_credit_and_owes_nothing():
    give(10 * TURN)
    make_record()

    ledger.bill_batch()

    assert left() == [9 * TURN]
    assert balances() == {"cash": 10 * TURN, "prepaid": -9 * TURN, "revenue": -TURN}
    use = GrantUse.objects.get()
    assert (use.amount_nano, use.journal.kind) == (TURN, "usage")


def test_what_credit_does_not_reach_is_owed():
    give(TURN // 2)
    make_record()

    ledger.bill_batch()

    assert left() == [0]
    assert balances() == {"cash": TURN // 2, "receivable": TURN - TURN // 2, "revenue": -TURN}


def test_priority_comes_before_expiry_and_expiry_before_age():
    later, sooner = NOON + timedelta(days=9), NOON + timedelta(days=2)
    give(TURN, note="last: never expires")
    give(TURN, note="third", expires_at=later)
    give(TURN, note="second", expires_at=sooner)
    give(TURN, note="second, but younger", expires_at=sooner)
    give(TURN, note="first", priority=1)

    for _ in range(5):
        make_record()
        ledger.bill_batch()

    order = GrantUse.objects.filter(journal__kind="usage").order_by("pk").values_list("grant__note", flat=True)
    assert list(order) == ["first", "second", "second, but younger", "third", "last: never expires"]


def test_one_turn_may_use_several_grants():
    give(TURN // 2)
    give(TURN)
    make_record()

    ledger.bill_batch()

    assert left() == [0, TURN // 2]
    assert GrantUse.objects.count() == 2


def test_what_counts_is_the_moment_when_the_turn_started():
    grant = give(10 * TURN, expires_at=NOON)
    make_record(started_at=NOON)
    make_record(started_at=NOON - timedelta(microseconds=1))

    ledger.bill_batch()

    assert left() == [9 * TURN]
    assert GrantUse.objects.get(grant=grant).journal.usage.started_at < NOON
    assert balances()["receivable"] == TURN


def test_nobody_uses_the_credit_of_others_or_of_another_currency():
    give(10 * TURN)
    make_record(make_project("globex"))
    Organization.objects.filter(name="acme").update(currency="EUR")
    make_record()

    ledger.bill_batch()

    assert left() == [10 * TURN]


def test_what_costs_nothing_takes_nothing():
    give(10 * TURN)
    make_record(status="failed")

    ledger.bill_batch()

    assert left() == [10 * TURN]
    assert not GrantUse.objects.exists()


def test_a_reversal_gives_back_to_the_grants_that_it_came_from():
    give(TURN // 2)
    give(10 * TURN)
    make_record()
    ledger.bill_batch()

    ledger.reverse(Journal.objects.usage().get(), "a mistake")

    assert left() == [TURN // 2, 10 * TURN]
    assert balances() == {"cash": TURN // 2 + 10 * TURN, "prepaid": -(TURN // 2 + 10 * TURN)}
    assert list(GrantUse.objects.order_by("pk").values_list("amount_nano", flat=True)) == [
        TURN // 2,
        TURN - TURN // 2,
        -(TURN // 2),
        -(TURN - TURN // 2),
    ]


def test_a_grant_is_not_reversed_as_if_it_were_usage():
    give(10 * TURN)

    with pytest.raises(ValueError, match="not about usage"):
        ledger.reverse(Journal.objects.get(), "a mistake")
    assert left() == [10 * TURN]


def test_the_rest_of_what_was_bought_is_earned_when_it_expires():
    give(10 * TURN, expires_at=NOON + timedelta(days=1))
    make_record()
    ledger.bill_batch()

    assert credits.expire(NOON + timedelta(days=2)) == 1

    assert left() == [0]
    assert balances() == {"cash": 10 * TURN, "revenue": -10 * TURN}


def test_the_rest_of_a_present_is_not_made():
    give(10 * TURN, kind="promotional", expires_at=NOON + timedelta(days=1))
    make_record()
    ledger.bill_batch()

    credits.expire(NOON + timedelta(days=2))

    assert balances() == {"promotion": TURN, "revenue": -TURN}


def test_a_rest_is_written_off_once_and_not_before_its_time():
    ends = NOON + timedelta(days=1)
    give(10 * TURN, expires_at=ends)

    times = [ends - timedelta(seconds=1), ends + credits.PATIENCE, ends + timedelta(days=1), ends + timedelta(days=2)]
    assert [credits.expire(now) for now in times] == [0, 1, 0, 0]

    assert Journal.objects.filter(kind="expiry").count() == 1


@pytest.mark.parametrize("status", ["in_progress", "completed"])
def test_credit_does_not_expire_under_a_turn_that_is_not_billed(status):
    give(10 * TURN, expires_at=NOON + timedelta(seconds=1))
    make_record(status=status)
    late = NOON + timedelta(days=1)

    assert credits.expire(late) == 0
    UsageRecord.objects.update(status="completed", ended_at=NOON)
    ledger.bill_batch()
    assert credits.expire(late) == 1

    assert balances()["cash"] == 10 * TURN and "receivable" not in balances()


def test_what_comes_back_to_an_expired_grant_is_there_for_the_second_rating_and_else_written_off():
    give(10 * TURN, expires_at=NOON + timedelta(hours=1))
    make_record()
    other = make_record()
    ledger.bill_batch()
    credits.expire(NOON + timedelta(days=1))

    ledger.correct(UsageRecord.objects.get(pk=other.pk), {"output_tokens": 0})
    assert left() == [TURN]
    assert credits.expire(NOON + timedelta(days=1)) == 0, "the turn that is to be rated again may still use it"
    ledger.bill_batch()
    assert left() == [800_000]
    assert credits.expire(NOON + timedelta(days=1)) == 1

    assert left() == [0]
    assert list(Journal.objects.filter(kind="expiry").order_by("pk").values_list("idempotency_key", flat=True)) == [
        f"expiry:{CreditGrant.objects.get().pk}:1",
        f"expiry:{CreditGrant.objects.get().pk}:2",
    ]
    assert balances() == {"cash": 10 * TURN, "revenue": -10 * TURN}


def test_the_same_key_gives_once():
    first, second = give(TURN, idempotency_key="order 7"), give(TURN, idempotency_key="order 7")

    assert first == second
    assert balances()["prepaid"] == -TURN


def test_a_key_that_was_used_for_something_else_is_refused():
    give(TURN, idempotency_key="order 7")

    with pytest.raises(credits.GrantConflict, match="order 7"):
        give(2 * TURN, idempotency_key="order 7")
    assert left() == [TURN]


@pytest.mark.parametrize(
    "wrong",
    [
        {"amount_nano": 0},
        {"amount_nano": -1},
        {"amount_nano": 10**19},
        {"kind": "borrowed"},
        {"priority": -1},
        {"expires_at": NOON - timedelta(days=9_000)},
    ],
)
def test_what_is_no_grant_is_refused(wrong):
    given = {"amount_nano": TURN, "kind": "paid", **wrong}

    with pytest.raises(ValueError):
        credits.grant(make_project().organization, **given)
    assert not Journal.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_grants_with_one_key_at_once_are_one():
    organization = make_project().organization

    made = in_threads(4, lambda: credits.grant(organization, TURN, kind="paid", idempotency_key="order 7").pk)

    assert len(set(made)) == 1
    assert balances()["prepaid"] == -TURN


@pytest.mark.django_db(transaction=True)
def test_workers_that_draw_at_once_use_no_credit_twice():
    for amount in (3 * TURN, 5 * TURN + 1, 7 * TURN):
        give(amount)
    for _ in range(40):
        make_record()

    in_threads(4, lambda: ledger.bill_all(limit=3))

    ledger.bill_all()
    assert left() == [0, 0, 0]
    assert balances()["receivable"] == 25 * TURN - 1


def test_the_command_gives_once_with_one_key():
    make_project()
    said = StringIO()

    for _ in range(2):
        call_command("responses_ws_grant", "acme", "12.50", "--key", "k", "--expires", "2030-01-31", stdout=said)

    grant = CreditGrant.objects.get()
    assert said.getvalue() == f"Grant {grant.pk} of acme: 12.50 USD of 12.50 USD left.\n" * 2
    assert (grant.amount_nano, grant.kind, grant.expires_at.isoformat()) == (
        12_500_000_000,
        "paid",
        "2030-01-31T00:00:00+00:00",
    )


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("nobody", "5"), "no organisation"),
        (("acme", "five"), "not an amount"),
        (("acme", "5", "--expires", "soon"), "not a date"),
        (("acme", "5", "--expires", "2001-01-01"), "before it is made"),
        (("acme", "5", "--priority", "-3"), "priority"),
    ],
)
def test_the_command_says_what_is_wrong(words, what):
    make_project()

    with pytest.raises(CommandError, match=what):
        call_command("responses_ws_grant", *words)


@pytest.mark.parametrize(
    ("table", "field", "kind"), [(CreditGrant, "remaining_nano", "credit"), (Account, "balance_nano", "prepaid")]
)
def test_a_difference_between_grants_and_ledger_is_found(table, field, kind):
    give(10 * TURN)
    row = table.objects.filter(kind__in=("paid", "prepaid"))
    right = row.values_list(field, flat=True).get()

    row.update(**{field: right - 1 if right > 0 else right + 1})

    assert kind in {difference.kind for difference in reconcile()}
    row.update(**{field: right})
