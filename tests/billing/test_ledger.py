"""Every ended record becomes one journal entry, whatever happens to the task that makes it."""

from datetime import timedelta

import pytest
from django.apps import apps
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from responses_ws.billing import ledger
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Account, Journal, Posting, RatedLine, UsageRecord

from .rows import NOON, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db


def test_a_completed_turn_is_debited_to_who_pays_and_credited_to_revenue():
    make_prices()
    record = make_record(input_tokens=1_000, cached_tokens=600, output_tokens=100, reasoning_tokens=40)

    assert ledger.bill_batch() == 1

    journal = Journal.objects.get()
    assert (journal.idempotency_key, journal.kind, journal.usage, journal.memo, journal.occurred_at) == (
        f"usage:{record.response_id}:1",
        "usage",
        record,
        "",
        NOON,
    )
    assert list(journal.lines.order_by("id").values_list("component", "quantity", "amount_nano")) == [
        ("input", 400, 800_000),
        ("cached_input", 600, 300_000),
        ("output", 100, 800_000),
    ]
    assert list(journal.postings.order_by("id").values_list("account__kind", "amount_nano")) == [
        ("receivable", 1_900_000),
        ("revenue", -1_900_000),
    ]
    assert dict(Account.objects.values_list("kind", "balance_nano")) == {
        "receivable": 1_900_000,
        "revenue": -1_900_000,
    }
    record.refresh_from_db()
    assert record.billed_at is not None
    assert reconcile() == []


@pytest.mark.parametrize(
    ("fields", "overrides", "amount", "memo"),
    [
        pytest.param({}, {}, 2_800_000, "", id="completed"),
        pytest.param({"status": "incomplete"}, {}, 2_800_000, "", id="incomplete"),
        pytest.param({"status": "cancelled"}, {}, 2_800_000, "", id="cancelled"),
        pytest.param(
            {"status": "cancelled"},
            {"BILL_CANCELLED": False},
            0,
            "cancelled: not billed by policy",
            id="cancelled, free by setting",
        ),
        pytest.param({"status": "failed"}, {}, 0, "failed: provider failures are free", id="failed"),
        pytest.param({"status": "abandoned"}, {}, 2_800_000, "", id="abandoned"),
        pytest.param(
            {"status": "abandoned"},
            {"BILL_ABANDONED": False},
            0,
            "abandoned: not billed by policy",
            id="abandoned, free by setting",
        ),
        pytest.param({"is_warmup": True}, {}, 0, "warm-up: the engine did no work", id="warm-up"),
        pytest.param({"is_warmup": True}, {"BILL_WARMUP": True}, 2_800_000, "", id="warm-up, billed by setting"),
        pytest.param({"estimated": True}, {}, 2_800_000, "estimated", id="estimated"),
        pytest.param({"model": "x"}, {}, 0, "no price in USD for model x", id="no price"),
        pytest.param(
            {"model": "x", "estimated": True}, {}, 0, "no price in USD for model x; estimated", id="both notes"
        ),
        pytest.param({"input_tokens": 0, "output_tokens": 0}, {}, 0, "no tokens", id="no tokens"),
    ],
)
def test_policy_decides_and_the_memo_says_why(settings, fields, overrides, amount, memo):
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, **overrides}
    make_prices()
    make_record(**fields)

    ledger.bill_batch()

    journal = Journal.objects.get()
    assert journal.memo == memo
    assert sorted(journal.postings.values_list("amount_nano", flat=True)) == [-amount, amount]
    assert reconcile() == []


def test_a_running_turn_is_not_billed():
    make_record(status="in_progress")

    assert ledger.bill_batch() == 0
    assert not Journal.objects.exists()


def test_a_task_delivered_three_times_bills_once():
    make_prices()
    for _ in range(3):
        make_record()

    assert [ledger.bill_all(), ledger.bill_all(), ledger.bill_all()] == [3, 0, 0]

    assert Journal.objects.count() == 3
    assert Account.objects.get(kind="receivable").balance_nano == 3 * 2_800_000
    assert reconcile() == []


def test_batches_go_on_until_nothing_is_left():
    for _ in range(5):
        make_record()

    assert ledger.bill_all(limit=2) == 5


def test_a_batch_is_no_larger_than_asked_and_starts_with_the_oldest():
    records = [make_record() for _ in range(3)]

    assert ledger.bill_batch(limit=2) == 2

    assert list(UsageRecord.objects.unbilled()) == [records[2]]


@pytest.mark.parametrize("dies_at", ["RatedLine", "Posting", "Account", "UsageRecord"])
def test_a_task_killed_anywhere_leaves_nothing_half_done(monkeypatch, dies_at):
    class Killed(BaseException):
        """Not an Exception: nothing may catch it and go on."""

    make_prices()
    make_record()
    model = apps.get_model("responses_ws", dies_at)
    queryset = model._default_manager._queryset_class
    method = "bulk_create" if dies_at in ("RatedLine", "Posting") else "update"

    def die(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(queryset, method, die)
        with pytest.raises(Killed):
            ledger.bill_batch()
    assert not Journal.objects.exists()
    assert ledger.bill_batch() == 1

    assert Account.objects.get(kind="receivable").balance_nano == 2_800_000
    assert reconcile() == []


def test_a_record_put_back_by_hand_is_not_billed_again():
    make_prices()
    record = make_record()
    ledger.bill_batch()
    UsageRecord.objects.update(billed_at=None)
    other = make_record()

    assert ledger.bill_batch() == 2

    assert set(Journal.objects.values_list("usage", flat=True)) == {record.pk, other.pk}
    assert reconcile() == []


def test_a_turn_keeps_the_price_of_its_start():
    change = NOON + timedelta(seconds=1)
    make_prices(per_million={"output": 8_000_000_000}, valid_from=NOON - timedelta(days=9), valid_to=change)
    make_prices(per_million={"output": 80_000_000_000}, valid_from=change)
    make_record(input_tokens=0, output_tokens=100, ended_at=NOON + timedelta(seconds=9))
    make_record(input_tokens=0, output_tokens=100, started_at=change)

    ledger.bill_batch()

    amounts = RatedLine.objects.order_by("journal__usage_id").values_list("amount_nano", flat=True)
    assert list(amounts) == [800_000, 8_000_000]


def test_every_organisation_has_its_own_accounts():
    make_prices()
    make_record(make_project("acme"))
    make_record(make_project("globex"))
    make_record(make_project("globex", "second"))

    ledger.bill_batch()

    balances = Account.objects.filter(kind="receivable").values_list("organization__name", "balance_nano")
    assert dict(balances) == {"acme": 2_800_000, "globex": 5_600_000}


def test_a_batch_takes_the_same_number_of_queries_however_many_records(django_assert_num_queries):
    make_prices()
    ids = [make_record().pk for _ in range(40)]
    make_record(response_id="resp_first")
    UsageRecord.objects.filter(pk__in=ids).update(billed_at=NOON)
    ledger.bill_batch()
    UsageRecord.objects.filter(pk__in=ids).update(billed_at=None)

    # Savepoint ×2, records, present keys, prices, currencies, journals, lines, grants, accounts, postings, two
    # balances, roll-ups, their times, billed_at.
    with django_assert_num_queries(16):
        ledger.bill_batch()


def test_a_reversal_adds_the_opposite_and_changes_nothing():
    make_prices()
    record = make_record()
    ledger.bill_batch()
    journal = Journal.objects.get()

    reversal = ledger.reverse(journal, "billed by mistake")

    assert (reversal.kind, reversal.usage, reversal.reverses, reversal.memo) == (
        "reversal",
        record,
        journal,
        "billed by mistake",
    )
    assert set(Account.objects.values_list("balance_nano", flat=True)) == {0}
    assert Posting.objects.count() == 4
    assert reconcile() == []


def test_an_entry_is_reversed_once():
    make_record()
    ledger.bill_batch()
    journal = Journal.objects.get()
    ledger.reverse(journal, "first")

    with pytest.raises(IntegrityError), transaction.atomic():
        ledger.reverse(journal, "second")

    assert Journal.objects.count() == 2


def test_the_reaper_closes_what_a_dead_process_left():
    lapsed = make_record(status="in_progress", lease_until=NOON)
    alive = make_record(status="in_progress", lease_until=NOON + timedelta(minutes=1))
    ended = make_record(lease_until=NOON)

    assert ledger.reap(NOON + timedelta(seconds=1)) == 1

    lapsed.refresh_from_db()
    assert (lapsed.status, lapsed.reason, lapsed.ended_at) == (
        "abandoned",
        "lease_expired",
        NOON + timedelta(seconds=1),
    )
    assert UsageRecord.objects.get(pk=alive.pk).status == "in_progress"
    assert UsageRecord.objects.get(pk=ended.pk).status == "completed"


def test_a_reaped_record_is_billed_up_to_its_last_checkpoint():
    make_prices()
    make_record(status="in_progress", lease_until=NOON, input_tokens=1_000, output_tokens=64, estimated=True)

    ledger.reap()
    ledger.bill_all()

    journal = Journal.objects.get()
    assert journal.memo == "estimated"
    assert Account.objects.get(kind="receivable").balance_nano == 2_000_000 + 512_000


def test_two_thousand_tiny_amounts_do_not_drift():
    make_prices(per_million={"input": 1_000_000 * 3, "output": 1})
    project = make_project()
    UsageRecord.objects.bulk_create(
        UsageRecord(
            response_id=f"tiny_{number}",
            organization=project.organization,
            project=project,
            model="m",
            transport="http",
            status="completed",
            input_tokens=1,
            started_at=NOON,
            ended_at=NOON,
            lease_until=NOON,
        )
        for number in range(2_000)
    )

    assert ledger.bill_all() == 2_000

    assert Account.objects.get(kind="receivable").balance_nano == 6_000
    assert reconcile() == []


tokens = st.integers(min_value=0, max_value=10**9)
records = st.lists(
    st.tuples(
        st.sampled_from(["acme", "globex"]),
        st.sampled_from(["completed", "incomplete", "failed", "cancelled", "abandoned", "in_progress"]),
        st.sampled_from(["m", "unpriced"]),
        st.booleans(),
        tokens,
        tokens,
        st.integers(min_value=0, max_value=100),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records, st.integers(min_value=1, max_value=4))
def test_the_books_agree_whatever_came_in(drawn, limit):
    with transaction.atomic():
        make_prices()
        for organization, status, model, is_warmup, input_tokens, output_tokens, percent in drawn:
            make_record(
                make_project(organization),
                status=status,
                model=model,
                is_warmup=is_warmup,
                input_tokens=input_tokens,
                cached_tokens=input_tokens * percent // 100,
                output_tokens=output_tokens,
                reasoning_tokens=output_tokens * percent // 100,
            )

        ledger.bill_all(limit=limit)

        assert reconcile() == []
        assert not UsageRecord.objects.unbilled().exists()
        assert Journal.objects.count() == UsageRecord.objects.ended().count()
        assert sum(Account.objects.values_list("balance_nano", flat=True)) == 0
        transaction.set_rollback(True)
