"""The wall clock of web servers and workers jumps while they run: no socket minds, and nothing is billed twice."""

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live import until

from .checker import check
from .rig import Rig
from .test_campaigns import Load
from .test_workers import BILL_THRICE

pytestmark = [pytest.mark.stack, pytest.mark.chaos]

JUMPS = ("+1h", "-1h", "+24h", "-24h", "+2h", "+0")


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """The file that says how wrong the clock is."""
    file = tmp_path / "clock"
    file.write_text("+0")
    return file


@pytest.fixture
def rig(tmp_path: Path, clock: Path) -> Iterator[Rig]:
    found = importlib.util.find_spec("libfaketime")
    if found is None or found.origin is None:
        pytest.skip("libfaketime is not installed")
    (library,) = Path(found.origin).parent.rglob("libfaketime.so.1")
    fake = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock)}
    # Timers count by the monotonic clock, which does not jump.
    fake |= {"FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1"}
    directory = tmp_path / "rig"
    directory.mkdir()
    with Rig(directory, environment=fake) as running:
        yield running


def test_a_clock_that_jumps_closes_no_socket_and_bills_nothing_twice(
    rig: Rig, clock: Path, figure: Callable[..., None]
) -> None:
    well = rig.web("well")
    with ExitStack() as opened, rig.working(2):
        idle = [opened.enter_context(well.client().socket()) for _ in range(10)]
        with Load([well], 2, said="!tokens 30 !rate 60 all the time"):
            for jump in JUMPS:
                clock.write_text(jump)
                told = float(rig.run("import time; print(time.time())"))
                assert abs(told - time.time() - seconds_of(jump)) < 60, "the clock has jumped"
                rig.run(BILL_THRICE)
                # The fault itself.
                time.sleep(1.5)
        for socket in idle:
            assert socket.turn("on an idle socket", input="!tokens 3 hello").is_acknowledged
        until(lambda: not rig.unbilled(), "all to be billed", seconds=60)
    cut = [turn.kinds for turn in rig.history.turns() if turn.terminal is None]

    books = check(rig, well, bills=False)

    assert cut == []
    figure(
        25,
        f"clock of servers and workers: {', '.join(JUMPS)}",
        target="0 sockets closed, 0 double bills",
        sockets_closed=0,
        double=0,
        records=len(books["records"]),
    )


def seconds_of(jump: str) -> float:
    return float(jump.removesuffix("h")) * 3600
