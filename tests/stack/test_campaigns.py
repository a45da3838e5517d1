"""The long campaigns: random moments, many times, and a database that goes away. ``make chaos`` runs them."""

import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live import until

from .checker import check, engine_calls, unbilled_tokens
from .rig import Rig, Web, start_again
from .test_kills import IN_WEB, taken_over
from .test_workers import BILL_THRICE
from .turns import SECONDS, Turn

pytestmark = [pytest.mark.stack, pytest.mark.chaos]

KILLS = 200
CHECK_EVERY = 20
CHECKPOINT_TOKENS = 64


class Load:
    """Chains on ``count`` threads until the block ends; each goes on with its last acknowledged response.

    Each thread has a home among the ``servers``; while that does not answer, or breaks off, it tries the next.
    """

    def __init__(self, servers: list[Web], count: int, *, said: str) -> None:
        self.servers = servers
        self.said = said
        self.resumed: list[float] = []
        """Seconds to the first event on another server, after the first had broken off."""
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(count)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        last: Turn | None = None
        position, was_cut = number, False  # in the list of servers; whether the last turn just broke off
        while not self._stopping.is_set():
            server = self.servers[position % len(self.servers)]
            turn = server.client().turn(f"load {number}", previous=last, input=self.said)
            if turn.is_acknowledged:
                if was_cut and turn.first_event_seconds is not None:
                    self.resumed.append(turn.first_event_seconds)
                last, position, was_cut = turn, number, False
            else:
                # Refused or cut: by the one that is killed, or because the database is away.
                position, was_cut = position + 1, turn.terminal is None
                self._stopping.wait(0.05)


@pytest.fixture(params=["commit", "journal"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """What a terminal event waits for is the database, or a file."""
    with Rig(tmp_path, environment={"DURABILITY": request.param}) as running:
        yield running


def test_web_servers_killed_at_random_moments_lose_nothing(durable: Rig, figure: Callable[..., None]) -> None:
    rig, well = durable, durable.web("well")
    moments = random.Random(11)
    unbilled: list[int] = []
    resumed: list[float] = []
    for _ in range(KILLS // CHECK_EVERY):
        doomed = rig.web("doomed")
        with Load([doomed, well], 6, said="!tokens 120 !rate 300 all the time") as load:
            for _ in range(CHECK_EVERY):
                time.sleep(moments.uniform(0.05, 0.8))
                rig.interrupted(doomed.turns_running() + 6)
                doomed.kill()
                doomed.start()
        doomed.stop()
        made = engine_calls(rig, rig.history.turns())
        books = check(rig, well)
        unbilled += unbilled_tokens(books, made).values()
        resumed += load.resumed
    figure(
        2,
        f"kill -9 of a web server at {KILLS} random moments, {rig.more_environment['DURABILITY']}",
        target=f"0 lost, 0 double, chains resumed in 1 s, unbilled tokens <= {CHECKPOINT_TOKENS} per kill",
        lost_or_double=0,
        interrupted_turns=len(unbilled),
        unbilled_tokens_at_most=max(unbilled, default=0),
        resumed=len(resumed),
        resumed_seconds_at_most=round(max(resumed, default=0.0), 3),
    )


def test_workers_killed_at_random_moments_post_everything_once(
    rig: Rig, well: Web, figure: Callable[..., None]
) -> None:
    moments = random.Random(13)
    posted = 0
    for _ in range(KILLS // CHECK_EVERY):
        with Load([well], 4, said="!tokens 3 bill me"):
            for number in range(CHECK_EVERY):
                worker = rig.worker("doomed-worker", pool="prefork" if number % 2 else "solo")
                rig.run(BILL_THRICE)
                time.sleep(moments.uniform(0.0, 0.4))
                worker.kill()
        with rig.working(2):
            rig.run(BILL_THRICE)
            until(lambda: not rig.unbilled(), "all to be billed", seconds=60)
        posted += len(check(rig, well, bills=False)["records"])
    figure(
        3,
        f"kill -9 of Celery workers at {KILLS} random moments, every task delivered three times",
        target="the ledger is what was used, to the token",
        records=posted,
        differences=0,
    )


@pytest.fixture
def on_postgres() -> Iterator[Rig]:
    # Not pytest's directory, which is closed to the user as whom PostgreSQL runs.
    with tempfile.TemporaryDirectory(prefix="responses_ws_rig_") as directory:
        with Rig(Path(directory), postgres=True) as rig:
            yield rig


def stop_immediately(rig: Rig) -> None:
    """As ``pg_ctl stop -m immediate``: no checkpoint, every connection dropped."""
    rig.postgres.signal(signal.SIGQUIT)
    assert rig.postgres.process is not None
    rig.postgres.process.wait(30)
    time.sleep(3)
    start_again(rig.postgres)


def stand_still(rig: Rig) -> None:
    assert rig.postgres.process is not None
    postmaster = str(rig.postgres.process.pid)
    servers = subprocess.run(["pgrep", "-P", postmaster], capture_output=True, text=True, check=True).stdout.split()
    for pid in [postmaster, *servers]:
        os.kill(int(pid), signal.SIGSTOP)
    time.sleep(10)
    for pid in [*servers, postmaster]:
        os.kill(int(pid), signal.SIGCONT)


def fall_silent(rig: Rig) -> None:
    rig.database_link.black_hole()
    time.sleep(10)
    rig.database_link.heal()


@pytest.mark.parametrize("fault", [stop_immediately, stand_still, fall_silent])
def test_what_was_acknowledged_outlives_every_fault_of_postgresql(
    on_postgres: Rig, fault: Callable[[Rig], None], figure: Callable[..., None]
) -> None:
    rig = on_postgres
    servers = [rig.web("first"), rig.web("second")]
    with Load(servers, 8, said="!tokens 40 !rate 100 all the time"):
        time.sleep(2)
        fault(rig)
        healed = time.monotonic()
        others = {turn.response_id for turn in rig.history.turns()}
        until(
            lambda: any(turn.is_acknowledged and turn.response_id not in others for turn in rig.history.turns()),
            "turns to end well again",
            seconds=30,
        )
        well_after = time.monotonic() - healed
    turns = rig.history.turns()
    lag = max(loop_lag(server) for server in servers)
    for server in servers:
        rig.excuse(server)

    check(rig, servers[0])

    figure(
        20,
        f"PostgreSQL under load: {fault.__name__}",
        target="0 acknowledged responses lost; loop lag p99 < 0.05 s",
        acknowledged=sum(turn.is_acknowledged for turn in turns),
        lost=0,
        refused_or_failed=sum(not turn.is_acknowledged for turn in turns),
        well_after_seconds=round(well_after, 1),
        loop_lag_p99_seconds_at_most=lag,
    )


def loop_lag(server: Web) -> float:
    """The upper edge of the bucket in which 99 of 100 measurements of the event loop's lag lie."""
    told = re.findall(r"^responses_ws_loop_lag_seconds_bucket\{(.*)\} (\d+)", server.metrics(), re.MULTILINE)
    buckets = [(re.findall(r'le="([^"]+)"', labels)[0], count) for labels, count in told]
    assert buckets, "the metrics tell of the loop"
    total = int(buckets[-1][1])
    return next(float(edge) for edge, count in buckets if int(count) >= 0.99 * total)


@pytest.mark.parametrize("action", ["raise", "cancel"])
def test_a_turn_broken_at_any_point_is_on_the_books_once(rig: Rig, well: Web, action: str) -> None:
    """What a bug or a shutdown may do to a living server: an exception, or a cancellation, where nobody expects it."""
    for point in [point for point, ask in IN_WEB.items() if ask is not taken_over]:
        first = well.client().turn(f"before {point}", input="!tokens 5 first")
        server = rig.web("broken", fault=f"{point}:1:{action}")
        # Who cancels a turn tells nobody: its client has left, or is about to.
        server.patience = 2.0
        broken = IN_WEB[point](rig, server, point, first)
        server.patience = SECONDS
        again = server.client().turn(f"after {point}", previous=first, input="!tokens 5 again")
        assert again.is_acknowledged, f"after {action} at {point}: {again.terminal}, {broken.kinds} before"
        server.stop()
        rig.excuse(server)

    check(rig, well)
