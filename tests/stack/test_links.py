"""Redis or the database is slow, silent or gone while turns run: sockets stay, turns end well, and nothing is lost."""

import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from .checker import check
from .rig import Rig, Web
from .turns import Client, Turn

pytestmark = pytest.mark.stack

SAID = {"input": "!tokens 20 !rate 200 meanwhile"}


def in_parallel(clients: list[Client], label: str, *, times: int = 1) -> list[Turn]:
    """A chain for each client, all at once; every other one is of another tenant."""
    turns: list[Turn] = []

    def work(client: Client) -> None:
        previous = None
        for _ in range(times):
            said = f"!rate 50 a secret of {client.tenant}"
            previous = client.turn(label, previous=previous, input=said)
            turns.append(previous)
            if not previous.is_acknowledged:
                return

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return turns


def stop_redis(rig: Rig) -> None:
    rig.redis.kill()


def start_redis(rig: Rig) -> None:
    rig.redis.start()


FAULTS: dict[str, tuple[Callable[[Rig], None], Callable[[Rig], None]]] = {
    "delay 2 s": (lambda rig: rig.redis_link.delay(2), lambda rig: rig.redis_link.heal()),
    "black hole": (lambda rig: rig.redis_link.black_hole(), lambda rig: rig.redis_link.heal()),
    "connections reset": (lambda rig: rig.redis_link.cut(), lambda rig: rig.redis_link.heal()),
    "SIGSTOP": (lambda rig: rig.redis.signal(signal.SIGSTOP), lambda rig: rig.redis.signal(signal.SIGCONT)),
    "killed": (stop_redis, start_redis),
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["connections reset", "killed"], id="reset and killed"),
        pytest.param(list(FAULTS), id="every fault", marks=pytest.mark.chaos),
    ],
)
def test_turns_and_books_are_right_whatever_becomes_of_redis(rig: Rig, well: Web, names: list[str]) -> None:
    other = rig.web("other")
    clients = [well.client(), well.client(rig.create_key("neighbour"), "theirs-9b2e")] * 2
    with ExitStack() as open_sockets:
        idle = [open_sockets.enter_context(well.client().socket()) for _ in range(5)]
        for name in names:
            begin, end = FAULTS[name]
            begin(rig)
            try:
                turns = in_parallel(clients, f"Redis: {name}", times=2)
                mine = next(turn for turn in turns if turn.key == rig.key)
                elsewhere = other.client().turn(f"elsewhere, Redis: {name}", previous=mine, **SAID)
            finally:
                end(rig)
            failed = [turn.kinds[-1] for turn in [*turns, elsewhere] if not turn.is_acknowledged]
            assert not failed and len(turns) == 8, f"{name}: {failed}"
        for socket in idle:
            assert socket.turn("on an idle socket", **SAID).is_acknowledged
    other.stop()

    check(rig, well)


@pytest.mark.parametrize("seconds", [pytest.param(3, id="3 s"), pytest.param(10, id="10 s", marks=pytest.mark.chaos)])
def test_nobody_is_told_that_sqlite_is_locked(rig: Rig, well: Web, seconds: float, figure: Callable[..., None]) -> None:
    other = rig.web("other")
    locking = sqlite3.connect(rig.directory / "db.sqlite3", isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    turns: list[Turn] = []
    asking = threading.Thread(
        target=lambda: turns.extend(in_parallel([well.client(), other.client()] * 3, "locked", times=2))
    )
    began = time.monotonic()
    asking.start()
    # The fault itself, no wait for anything.
    time.sleep(seconds)
    locking.execute("ROLLBACK")
    locking.close()
    asking.join()
    took = time.monotonic() - began
    other.stop()

    check(rig, well)

    assert took >= seconds
    assert [turn.kinds[-1] for turn in turns if not turn.is_acknowledged] == []
    figure(
        21,
        f"SQLite's lock held for {seconds} s, two servers",
        target='0 "database is locked" to clients',
        measured=0,
        turns=len(turns),
    )
