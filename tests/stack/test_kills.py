"""A web server is killed with SIGKILL at every fault point: nothing is lost, nothing is billed twice, chains go on."""

import signal
import time
from collections.abc import Callable

import pytest

from responses_ws.runtime.faults import POINTS

from .checker import check, engine_calls, unbilled_tokens
from .rig import Rig, Web
from .turns import Client, Turn

pytestmark = pytest.mark.stack

SHORT = "!tokens 40 !rate 400 once upon a time"
LONG = "!tokens 600 !rate 250 once upon a time"
"""Takes two seconds: long enough for a checkpoint."""


def streamed(client: Client, point: str, previous: Turn) -> Turn:
    return client.turn(point, previous=previous, input=LONG if point.startswith("checkpoint") else SHORT)


def in_background(client: Client, point: str, previous: Turn) -> Turn:
    turn = client.begin(point, background=True, input=SHORT)
    try:
        client.ask("POST", "/responses", turn.asked)
    except OSError:
        # Killed before it answered.
        pass
    return turn


IN_WORKER = {point for point in POINTS if point.partition(".")[0] in ("sweep", "bill", "reap")}
IN_WEB: dict[str, Callable[[Client, str, Turn], Turn]] = {
    point: in_background if point.startswith("queue") else streamed for point in POINTS if point not in IN_WORKER
}


def test_a_web_server_killed_at_any_point_loses_nothing(rig: Rig, well: Web, figure: Callable[..., None]) -> None:
    client = well.client()
    resumed: list[float] = []
    for point, ask in IN_WEB.items():
        first = client.turn(f"before {point}", input="!tokens 5 first")
        assert first.is_acknowledged
        doomed = rig.web("doomed", fault=f"{point}:1:kill")

        second = ask(doomed.client(), point, first)

        assert doomed.died() == -signal.SIGKILL, f"{point} was not passed: {second.kinds}"
        rig.interrupted()
        began = time.monotonic()
        last = second if second.is_acknowledged else first
        third = client.turn(f"after {point}", previous=last, input="!tokens 5 third")
        assert third.is_acknowledged, f"after {point}: {third.terminal}"
        assert third.first_event_seconds is not None
        resumed.append(third.first_event_seconds)
        assert time.monotonic() - began < 10, point
    turns = rig.history.turns()
    made = engine_calls(rig, turns)

    books = check(rig, well)

    figure(
        1,
        "kill -9 of a web server at each fault point",
        target="0 lost, 0 double, 100 % of chains resumed in 1 s",
        points=len(IN_WEB),
        lost_or_double=0,
        resumed_seconds_at_most=round(max(resumed), 3),
        unbilled_tokens_at_most=max(unbilled_tokens(books, made).values(), default=0),
    )


def test_points_are_passed_somewhere() -> None:
    assert IN_WEB.keys() | IN_WORKER == set(POINTS)
