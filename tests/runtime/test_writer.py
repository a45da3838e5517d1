import threading
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from responses_ws.models import Organization
from responses_ws.runtime.writer import GroupWriter

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def group_writer() -> Any:
    group_writer = GroupWriter()
    yield group_writer
    group_writer.stop()


def create(name: str) -> Organization:
    return Organization.objects.create(name=name)


def held_up(group_writer: GroupWriter) -> tuple[threading.Event, "Future[Any]"]:
    """Keep the writer busy until the event is set, so that what comes meanwhile is one batch."""
    busy, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        busy.set()
        go_on.wait(10)

    future = group_writer.submit(wait)
    busy.wait(10)
    return go_on, future


def test_a_resolved_future_is_a_commit(group_writer: GroupWriter) -> None:
    created = group_writer.submit(lambda: create("Acme")).result(10)

    assert Organization.objects.get() == created


def test_what_waits_together_is_committed_together(group_writer: GroupWriter) -> None:
    transactions: list[int] = []
    go_on, _ = held_up(group_writer)

    def note() -> None:
        # The savepoint list and the connection are new with every outermost transaction.
        transactions.append(id(connection.run_on_commit))

    futures = [group_writer.submit(note) for _ in range(10)]
    go_on.set()
    for future in futures:
        future.result(10)

    assert len(transactions) == 10 and len(set(transactions)) == 1


def test_one_bad_write_takes_no_other_with_it(group_writer: GroupWriter) -> None:
    create("taken")
    go_on, _ = held_up(group_writer)
    good, bad, also_good = (group_writer.submit(lambda name=name: create(name)) for name in ("a", "taken", "b"))
    go_on.set()

    assert bad.exception(10) is not None
    assert (good.exception(10), also_good.exception(10)) == (None, None)
    assert set(Organization.objects.values_list("name", flat=True)) == {"a", "taken", "b"}


def test_the_writer_outlives_a_failure(group_writer: GroupWriter) -> None:
    def fail() -> None:
        raise ValueError("not a database error")

    assert isinstance(group_writer.submit(fail).exception(10), ValueError)
    group_writer.submit(lambda: create("after")).result(10)

    assert Organization.objects.exists()


def test_stopping_writes_what_is_waiting(group_writer: GroupWriter) -> None:
    go_on, _ = held_up(group_writer)
    waiting = group_writer.submit(lambda: create("last"))
    go_on.set()

    group_writer.stop()

    assert waiting.done() and Organization.objects.get().name == "last"


async def test_a_cancelled_wait_does_not_lose_the_write(group_writer: GroupWriter) -> None:
    go_on, _ = held_up(group_writer)
    future = group_writer.submit(lambda: create("kept"))
    go_on.set()

    await group_writer.write(lambda: None)

    assert future.result(10).name == "kept"


@pytest.mark.parametrize("fails", [False, True], ids=["written", "failed"])
def test_the_writer_outlives_a_wait_that_was_cancelled(group_writer: GroupWriter, fails: bool) -> None:
    """A result was set on the cancelled future: the thread died of it, and every later write waited for ever."""
    wrote: list[str] = []

    def write() -> None:
        wrote.append("it")
        if fails:
            raise DatabaseError("no")

    go_on, _ = held_up(group_writer)
    cancelled = group_writer.submit(write)
    assert cancelled.cancel()
    go_on.set()
    after = group_writer.submit(lambda: "later").result(10)

    assert wrote
    assert after == "later"


def test_a_wait_cannot_be_cancelled_under_the_writer(group_writer: GroupWriter) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def write() -> str:
        begun.set()
        go_on.wait(10)
        return "written"

    future = group_writer.submit(write)
    begun.wait(10)
    was_cancelled = future.cancel()
    go_on.set()

    assert not was_cancelled
    assert future.result(10) == "written"


def test_a_write_in_which_the_database_gives_up_is_tried_three_times(group_writer: GroupWriter) -> None:
    """As in a deadlock: the connection is well, and another try may do."""
    tries: list[str] = []

    def deadlock(name: str, until: int) -> str:
        tries.append(name)
        if tries.count(name) < until:
            raise OperationalError("deadlock detected")
        return name

    go_on, _ = held_up(group_writer)
    passing = group_writer.submit(lambda: deadlock("passing", 3))
    lasting = group_writer.submit(lambda: deadlock("lasting", 100))
    well = group_writer.submit(lambda: create("well"))
    go_on.set()

    assert isinstance(lasting.exception(10), OperationalError)
    assert passing.result(10) == "passing"
    assert well.result(10).name == "well"
    # Once more for the batch in which all of them were tried together.
    assert tries.count("lasting") <= 4


@pytest.fixture
def lost_database(monkeypatch: pytest.MonkeyPatch) -> "threading.Event":
    """While it is set nothing can be begun with the database."""
    is_lost = threading.Event()
    begin = transaction.Atomic.__enter__

    def enter(atomic: Any) -> None:
        if is_lost.is_set() and threading.current_thread().name == "responses_ws-writer":
            raise OperationalError("connection refused")
        begin(atomic)

    monkeypatch.setattr(transaction.Atomic, "__enter__", enter)
    return is_lost


def test_writes_wait_for_a_database_that_is_down_and_keep_their_order(
    group_writer: GroupWriter, lost_database: threading.Event
) -> None:
    order: list[int] = []
    lost_database.set()
    futures = [group_writer.submit(lambda number=number: order.append(number)) for number in range(5)]
    impatient = group_writer.submit(lambda: order.append(99), patience=0)

    assert isinstance(impatient.exception(10), OperationalError)
    futures.append(group_writer.submit(lambda: order.append(5)))
    lost_database.clear()
    for future in futures:
        future.result(10)

    assert order == [0, 1, 2, 3, 4, 5]


def test_a_process_that_ends_does_not_wait_for_the_database(
    group_writer: GroupWriter, lost_database: threading.Event
) -> None:
    lost_database.set()
    waiting = group_writer.submit(lambda: None, patience=float("inf"))

    group_writer.stop()

    assert isinstance(waiting.exception(0), OperationalError)
