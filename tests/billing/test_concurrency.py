"""Several workers at once, on real connections: SQLite here, and PostgreSQL by test_on_postgres.py."""

import threading
from datetime import timedelta

import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction

from responses_ws.billing import ledger
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Account, Journal, Price, UsageRecord

from .rows import NOON, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db(transaction=True)


def in_threads(count, function):
    """Call ``function`` in that many threads, all let go at once; returns what each returned."""
    results, errors = [], []
    together = threading.Barrier(count)

    def run():
        try:
            together.wait(10)
            results.append(function())
        except Exception as exc:
            errors.append(exc)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    return results


def test_workers_that_run_at_once_bill_each_record_once():
    make_prices()
    projects = [make_project(name) for name in ("acme", "globex", "initech")]
    for number in range(120):
        make_record(projects[number % 3])

    billed = in_threads(4, lambda: ledger.bill_all(limit=7))

    # A worker that finds the rest locked by others stops early; the sweep of 5 seconds later finds them.
    ledger.bill_all()
    assert sum(billed) <= 120
    assert Journal.objects.count() == 120
    balances = Account.objects.filter(kind="receivable").values_list("balance_nano", flat=True)
    assert list(balances) == [40 * 2_800_000] * 3
    assert reconcile() == []


def test_the_first_records_of_an_organisation_may_come_to_two_workers():
    make_prices()
    for number in range(40):
        make_record(make_project(f"org {number % 10}"))

    in_threads(4, lambda: ledger.bill_batch(limit=10))

    ledger.bill_all()
    assert Account.objects.count() == 20
    assert reconcile() == []


def test_rows_that_another_worker_holds_are_skipped():
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("this database has one writer at a time")
    make_prices()
    held, free = make_record(), make_record()

    with transaction.atomic():
        UsageRecord.objects.select_for_update().get(pk=held.pk)
        billed = in_threads(1, ledger.bill_batch)

    assert billed == [1]
    assert list(UsageRecord.objects.unbilled()) == [held]
    assert UsageRecord.objects.get(pk=free.pk).billed_at is not None


def test_the_reaper_and_the_owner_cannot_both_close_a_record():
    record = make_record(status="in_progress", lease_until=NOON)

    def finish():
        mine = UsageRecord.objects.filter(pk=record.pk, status="in_progress")
        return mine.update(status="completed", ended_at=NOON)

    closed = in_threads(2, lambda: ledger.reap(NOON + timedelta(hours=1)) or finish())

    assert sorted(closed) == [0, 1]


def test_a_renewed_lease_is_left_alone():
    """The reaper waits for the owner's commit and then looks again; it does not act on what it read before."""
    record = make_record(status="in_progress", lease_until=NOON)
    now = NOON + timedelta(seconds=1)
    reaped = []
    reaper = threading.Thread(target=lambda: (reaped.append(reap_patiently(now)), connections.close_all()))

    with transaction.atomic():
        UsageRecord.objects.filter(pk=record.pk).update(lease_until=NOON + timedelta(minutes=1))
        reaper.start()
        reaper.join(0.2)
        assert reaped == [], "the reaper did not wait for the owner"
    reaper.join(30)

    assert reaped == [0]
    assert UsageRecord.objects.get().status == "in_progress"


def reap_patiently(now):
    while True:
        try:
            return ledger.reap(now)
        except OperationalError:  # SQLite's writer is busy: the next tick tries again
            connection.close()


def test_two_transactions_that_write_one_price_at_once_do_not_both():
    """Neither sees the other's row: what looks for overlaps before it writes would find none."""
    together = threading.Barrier(2)

    def write(start):
        with transaction.atomic():
            assert not Price.objects.valid_at(NOON).exists()
            if connection.features.has_select_for_update:
                # SQLite lets only one of them begin.
                together.wait(30)
            Price.objects.create(
                model="m", component="input", nano_per_million=1, valid_from=start, valid_to=NOON + timedelta(days=9)
            )

    starts = iter([NOON - timedelta(days=1), NOON])

    def attempt():
        try:
            write(next(starts))
        except (IntegrityError, AssertionError):
            return False
        return True

    assert sorted(in_threads(2, attempt)) == [False, True]
    assert Price.objects.count() == 1
