"""A web server is killed with SIGKILL at every fault point: nothing is lost, nothing is billed twice, chains go on."""

import contextlib
import signal
from collections.abc import Callable
from http.client import HTTPException

import pytest

from responses_ws.runtime.faults import POINTS

from .checker import check, engine_calls, unbilled_tokens
from .rig import Rig, Web, paused
from .turns import Turn

pytestmark = pytest.mark.stack

SHORT = "!tokens 40 !rate 400 once upon a time"
LONG = "!tokens 600 !rate 250 once upon a time"
"""Takes two seconds: long enough for a checkpoint."""


LAPSE = """
from django.utils import timezone
from responses_ws.models import BackgroundRun
BackgroundRun.objects.update(lease_until=timezone.now())
"""


def streamed(_rig: Rig, doomed: Web, point: str, previous: Turn) -> Turn:
    said = LONG if point.startswith("checkpoint") else SHORT
    return doomed.client().turn(point, previous=previous, input=said)


def in_background(_rig: Rig, doomed: Web, point: str, _previous: Turn) -> Turn:
    turn = doomed.client().begin(point, background=True, input=SHORT)
    # Killed before it answers.
    with contextlib.suppress(OSError, HTTPException):
        doomed.client().ask("POST", "/responses", turn.asked)
    return turn


def taken_over(rig: Rig, doomed: Web, point: str, previous: Turn) -> Turn:
    """A background response whose process died is claimed by the one that is to be killed."""
    first = rig.web("queueing", fault="queue.after:1:kill")
    turn = in_background(rig, first, point, previous)
    assert first.died() == -signal.SIGKILL
    others = [server for server in rig.servers() if server is not doomed]
    with paused(*others):
        rig.run(LAPSE)
        doomed.died()
    return turn


WAYS = {"queue": in_background, "claim": taken_over}
IN_WORKER = {point for point in POINTS if point.partition(".")[0] in ("sweep", "bill", "reap")}
IN_JOURNAL = {point for point in POINTS if point.partition(".")[0] in ("journal", "replay")}
"""See `test_kills_journal`."""
IN_OFFICE = {point for point in POINTS if point.partition(".")[0] in ("expiry", "invoice")}
"""See `test_settlement`."""
AT_SINKS = {point for point in POINTS if point.startswith("deliver.")}
"""See `test_sinks`."""
ELSEWHERE = IN_WORKER | IN_JOURNAL | IN_OFFICE | AT_SINKS
IN_WEB = {point: WAYS.get(point.partition(".")[0], streamed) for point in POINTS if point not in ELSEWHERE}


def test_a_web_server_killed_at_any_point_loses_nothing(rig: Rig, well: Web, figure: Callable[..., None]) -> None:
    client = well.client()
    resumed: list[float] = []
    for point, ask in IN_WEB.items():
        first = client.turn(f"before {point}", input="!tokens 5 first")
        assert first.is_acknowledged
        doomed = rig.web("doomed", fault=f"{point}:1:kill")

        second = ask(rig, doomed, point, first)

        assert doomed.died() == -signal.SIGKILL, f"{point} was not passed: {second.kinds}"
        rig.interrupted()
        last = second if second.is_acknowledged else first
        third = client.turn(f"after {point}", previous=last, input="!tokens 5 third")
        assert third.is_acknowledged, f"after {point}: {third.terminal}"
        resumed.append(third.first_event_seconds or 0.0)
    turns = rig.history.turns()
    made = engine_calls(rig, turns)

    books = check(rig, well)

    figure(
        1,
        "kill -9 of a web server at each fault point",
        target="0 lost, 0 double, 100 % of chains resumed in 1 s, unbilled tokens <= 64",
        points=len(IN_WEB),
        lost_or_double=0,
        resumed_seconds_at_most=round(max(resumed), 3),
        unbilled_tokens_at_most=max(unbilled_tokens(books, made).values(), default=0),
    )


def test_points_are_passed_somewhere() -> None:
    assert IN_WEB.keys() | ELSEWHERE == set(POINTS)
