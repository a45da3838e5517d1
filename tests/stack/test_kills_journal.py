"""With ends that run ahead of the database: a server is killed at every point between the two."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from .checker import check
from .rig import Rig
from .turns import Turn

pytestmark = pytest.mark.stack

REPLAY = "from responses_ws.serving.replay import replay; replay()"
SAID = "!tokens 40 !rate 400 once upon a time"
POINTS = (
    "end.before",
    "journal.written",
    "terminal.before",
    "terminal.after",
    "end.begun",
    "end.written",
    "end.durable",
)
PRIVATE_POINTS = ("row.before", "output.before", "checkpoint.written", "journal.written", "end.begun", "end.durable")
"""Of a turn that is not stored: the database hears of it at its first checkpoint or at its end."""
LONG = "!tokens 600 !rate 250 once upon a time"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rig"), environment={"DURABILITY": "journal"}) as running:
        yield running


def killed_at(rig: Rig, point: str, *, store: bool = True) -> Turn:
    """A turn of a server that is killed at that point of it."""
    said = LONG if point.startswith("checkpoint") else SAID
    with rig.web("doomed", fault=f"{point}:1:kill") as doomed:
        turn = doomed.client().turn(point, input=said, store=store)
        assert doomed.died() == -signal.SIGKILL, f"{point} was not passed: {turn.kinds}"
    rig.interrupted()
    return turn


def test_a_server_killed_between_its_word_and_the_database_keeps_it(rig: Rig, figure: Callable[..., None]) -> None:
    # Before anything of it is on its way to the database.
    untold = killed_at(rig, "journal.written")
    # Nobody else is there to replay it; and who does may be killed, too.
    for point in ("replay.before", "replay.after"):
        replaying = rig.forker.fork(
            ["-c", REPLAY], log=rig.directory / "replay.txt", environment={"RESPONSES_WS_FAULT": f"{point}:1:kill"}
        )
        assert replaying.wait(30) == -signal.SIGKILL, point
    well = rig.web("well")
    resumed: list[float] = []

    def resume(turn: Turn) -> None:
        began = time.monotonic()
        assert well.client().turn(f"after {turn.label}", previous=turn, input="!tokens 5 third").is_acknowledged
        resumed.append(time.monotonic() - began)

    killed = {}
    for point in POINTS:
        killed[point] = killed_at(rig, point)
        if killed[point].is_acknowledged:
            # It is found in the journal of the dead before anybody else has looked there.
            resume(killed[point])
        rig.run(REPLAY)
    private = {}
    for point in (*PRIVATE_POINTS, "terminal.after"):
        private[point] = killed_at(rig, point, store=False)
        rig.run(REPLAY)
    books = check(rig, well)

    kept = {record["response_id"]: record["status"] for record in books["records"]}
    assert {point for point, turn in killed.items() if turn.is_acknowledged} >= {"terminal.after"}
    assert {kept[str(turn.response_id)] for turn in killed.values() if turn.is_acknowledged} == {"completed"}
    assert kept[str(killed["end.before"].response_id)] == "abandoned"
    assert kept[str(untold.response_id)] == "completed"
    # Of one that was killed before its output, its client has seen a beginning or nothing.
    told = {point: kept[turn.response_id] for point, turn in private.items() if turn.response_id}
    promised = dict.fromkeys(("journal.written", "end.begun", "end.durable", "terminal.after"), "completed")
    assert told.pop("output.before", "abandoned") == "abandoned"
    assert told == {"checkpoint.written": "abandoned", **promised}
    figure(
        1,
        "kill -9 between the journal and the database",
        target="0 lost, 0 double, 100 % of chains resumed in 1 s",
        points=len(POINTS) + len(PRIVATE_POINTS) + 3,
        lost_or_double=0,
        resumed_seconds_at_most=round(max(resumed), 3),
    )
