"""How credit is given, taken and written off, entry by entry."""

from datetime import timedelta

import pytest
from django.db import IntegrityError
from django.utils import timezone

from responses_ws.billing import credits, ledger
from responses_ws.billing.credits import GrantConflict
from responses_ws.billing.money import MAX_NANO
from responses_ws.models import ControlMessage, CreditGrant, GrantUse, Journal, Organization, UsageRecord

from .rows import NOON, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

TURN = 2_800_000
"""What a turn of `make_record` costs."""
LATE = NOON + timedelta(days=9)


def give(amount=10 * TURN, *, to="acme", expires_at=None, **fields):
    """As `credits.grant`, also of what has expired by now."""
    one = credits.grant(make_project(to).organization, amount, **{"kind": "paid", **fields})
    if expires_at is not None:
        CreditGrant.objects.filter(pk=one.pk).update(expires_at=expires_at)
        one.refresh_from_db()
    return one


def postings(entry):
    return {
        (posting.account.kind, posting.account.currency): posting.amount_nano
        for posting in entry.postings.select_related("account")
    }


def test_a_grant_is_what_was_said_and_its_entry_says_the_same():
    owner = make_project().organization
    Organization.objects.update(currency="EUR")
    owner.refresh_from_db()
    ends = timezone.now() + timedelta(days=9)

    one = credits.grant(owner, 5, kind="promotional", priority=7, expires_at=ends, note="hello", idempotency_key="k")

    one.refresh_from_db()
    assert (one.organization, one.kind, one.currency) == (owner, "promotional", "EUR")
    assert (one.amount_nano, one.remaining_nano, one.priority, one.expires_at) == (5, 5, 7, ends)
    assert (one.note, one.idempotency_key) == ("hello", "k")
    entry = Journal.objects.get()
    assert (entry.idempotency_key, entry.kind, entry.memo) == (f"grant:{one.pk}", "grant", "hello")
    assert (entry.organization, entry.occurred_at, entry.posted_at) == (owner, one.created_at, one.created_at)
    assert postings(entry) == {("promotion", "EUR"): 5, ("prepaid", "EUR"): -5}
    assert ControlMessage.objects.filter(kind="budgets_changed").get().body == {"organization_id": owner.pk}


def test_a_grant_has_a_middle_priority_and_no_end_where_nobody_says_otherwise():
    one = give(1)

    assert (one.priority, one.expires_at, one.note, one.idempotency_key) == (50, None, "", None)
    assert give(1, idempotency_key="") != give(1, idempotency_key=""), "no key is nobody's key"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"amount_nano": 0}, "a grant is more than 0, and less than a thousand million"),
        ({"amount_nano": MAX_NANO + 1}, "a grant is more than 0, and less than a thousand million"),
        ({"kind": "borrowed"}, "credit is one of paid, promotional, not borrowed"),
        ({"priority": -1}, "a priority is a number from 0 to 32767"),
        ({"priority": 32_768}, "a priority is a number from 0 to 32767"),
        ({"expires_at": NOON - timedelta(days=9_000)}, "a grant cannot expire before it is made"),
    ],
)
def test_what_is_wrong_with_a_grant_is_said(given, problem):
    with pytest.raises(ValueError) as refused:
        credits.grant(make_project().organization, **{"amount_nano": 1, "kind": "paid", **given})

    assert str(refused.value) == problem
    assert not CreditGrant.objects.exists()


@pytest.mark.parametrize(
    "given", [{"amount_nano": 1}, {"amount_nano": MAX_NANO}, {"priority": 0}, {"priority": 32_767}]
)
def test_the_smallest_and_the_largest_are_taken(given):
    credits.grant(make_project().organization, **{"amount_nano": 1, "kind": "paid", **given})

    assert CreditGrant.objects.filter(**given).count() == 1


SOON = timezone.now() + timedelta(days=1)
FIRST = {"amount_nano": 5, "kind": "paid", "priority": 3, "expires_at": SOON, "idempotency_key": "k"}


@pytest.mark.parametrize(
    "other",
    [{"amount_nano": 6}, {"kind": "promotional"}, {"priority": 4}, {"expires_at": SOON + timedelta(days=1)}],
    ids=lambda other: next(iter(other)),
)
def test_a_key_is_for_one_grant_in_all_that_it_says(other):
    owner = make_project().organization
    one = credits.grant(owner, **FIRST)

    assert credits.grant(owner, **FIRST, note="said otherwise").pk == one.pk
    with pytest.raises(GrantConflict) as refused:
        credits.grant(owner, **{**FIRST, **other})

    assert str(refused.value) == f"the key k was used for another grant, number {one.pk}"


def test_a_key_is_for_one_organisation():
    credits.grant(make_project().organization, **FIRST)

    with pytest.raises(GrantConflict):
        credits.grant(make_project("globex").organization, **FIRST)


def test_a_key_gives_its_grant_also_when_that_has_expired():
    owner = make_project().organization
    one = credits.grant(owner, **FIRST)
    past = timezone.now() - timedelta(days=1)
    CreditGrant.objects.update(expires_at=past)

    assert credits.grant(owner, **{**FIRST, "expires_at": past}).pk == one.pk


def test_what_the_database_refuses_for_another_reason_is_not_taken_for_a_repetition():
    with pytest.raises(IntegrityError):
        credits.grant(Organization(pk=10**6, name="nobody", currency=None), 5, kind="paid", idempotency_key="k")


def test_what_a_turn_takes_is_noted_for_each_grant():
    make_prices()
    first, second = give(TURN - 1), give(TURN)
    record = make_record()

    ledger.bill_batch()

    entry = Journal.objects.get(usage=record)
    assert list(entry.grant_uses.order_by("pk").values_list("grant", "amount_nano")) == [
        (first.pk, TURN - 1),
        (second.pk, 1),
    ]
    assert postings(entry) == {("prepaid", "USD"): TURN, ("receivable", "USD"): 0, ("revenue", "USD"): -TURN}


def test_turns_of_one_batch_take_one_after_the_other_and_each_of_its_own_organisation():
    make_prices()
    mine, theirs = give(TURN + 1), give(TURN, to="globex")
    for name in ("acme", "globex", "acme", "globex"):
        make_record(make_project(name))

    ledger.bill_batch()

    uses = GrantUse.objects.order_by("pk").values_list("journal__organization__name", "grant", "amount_nano")
    assert [use for use in uses if use[2] > 0] == [
        ("acme", mine.pk, TURN),
        ("globex", theirs.pk, TURN),
        ("acme", mine.pk, 1),
    ]
    assert list(CreditGrant.objects.values_list("remaining_nano", flat=True)) == [0, 0]


def test_what_is_given_back_can_be_used_again():
    make_prices()
    one = give(TURN)
    record = make_record()
    ledger.bill_batch()

    ledger.correct(UsageRecord.objects.get(pk=record.pk), {"output_tokens": 0})
    ledger.bill_batch()

    one.refresh_from_db()
    assert one.remaining_nano == TURN - 2_000_000
    uses = GrantUse.objects.order_by("pk").values_list("journal__kind", "amount_nano")
    assert list(uses) == [("usage", TURN), ("reversal", -TURN), ("usage", 2_000_000)]


def test_the_entry_of_an_expiry_is_of_the_moment_when_it_expired():
    one = give(TURN, note="hello", expires_at=NOON)

    assert credits.expire(LATE) == 1

    entry = Journal.objects.get(kind="expiry")
    assert (entry.idempotency_key, entry.memo) == (f"expiry:{one.pk}:1", "hello")
    assert (entry.organization_id, entry.occurred_at, entry.posted_at) == (one.organization_id, NOON, LATE)
    assert postings(entry) == {("prepaid", "USD"): TURN, ("revenue", "USD"): -TURN}
    assert entry.grant_uses.get().amount_nano == TURN


def test_all_that_have_expired_are_written_off_and_only_these():
    give(1, expires_at=NOON)
    give(2, expires_at=NOON + timedelta(hours=1))
    give(4, to="globex", expires_at=NOON + credits.PATIENCE)
    give(8)
    now = NOON + 2 * credits.PATIENCE

    assert credits.expire(now - timedelta(microseconds=1)) == 1
    assert credits.expire(now) == 1

    assert list(CreditGrant.objects.order_by("pk").values_list("remaining_nano", flat=True)) == [0, 2, 0, 8]


def test_credit_waits_for_turns_that_started_before_its_end_and_for_no_others():
    give(1, expires_at=NOON)
    make_record(make_project("globex"), started_at=NOON - timedelta(hours=1), status="in_progress")
    make_record(started_at=NOON, status="in_progress")
    waited_for = make_record(started_at=NOON - timedelta(microseconds=1), status="in_progress")

    assert credits.expire(LATE) == 0
    UsageRecord.objects.filter(pk=waited_for.pk).update(billed_at=NOON)
    assert credits.expire(LATE) == 1


def test_of_two_that_expire_a_grant_at_once_the_second_finds_nothing():
    one = give(1, expires_at=NOON)

    assert [credits._write_off(one.pk, LATE), credits._write_off(one.pk, LATE)] == [True, False]
    assert Journal.objects.filter(kind="expiry").count() == 1


def test_by_itself_it_expires_what_has_expired_by_now():
    give(1, expires_at=timezone.now() - credits.PATIENCE)
    give(1, expires_at=timezone.now() + timedelta(minutes=1))

    assert credits.expire() == 1


def test_a_reversal_of_what_took_no_credit_gives_none_back():
    make_prices()
    make_record()
    ledger.bill_batch()
    one = give(TURN)

    ledger.reverse(Journal.objects.usage().get(), "a mistake")

    one.refresh_from_db()
    assert one.remaining_nano == TURN
    assert not GrantUse.objects.exists()
