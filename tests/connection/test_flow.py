"""Too many frames, and too many that are no events: told once, then closed."""

import json
from typing import Any

import pytest

from responses_ws.connection.commands import Close, Command, Send
from responses_ws.connection.flow import Bucket
from responses_ws.connection.limits import Limits
from responses_ws.connection.state import Connection

PROCESSED = '{"type":"response.processed"}'
CLOSED = Close(1008, "too many messages")
LIMITS = Limits(frames_at_once=10, frames_per_second=2, faults_per_minute=3)


def received(connection: Connection, frames: list[str], now: float = 0.0) -> list[Command]:
    return [command for frame in frames for command in connection.receive(frame, now=now)]


def errors(commands: list[Command]) -> list[dict[str, Any]]:
    return [json.loads(command.frame) for command in commands if isinstance(command, Send)]


def test_as_many_as_may_come_at_once_and_one_more() -> None:
    connection = Connection(LIMITS, opened_at=0.0)

    within = received(connection, [PROCESSED] * 10)
    beyond = connection.receive(PROCESSED, now=0.0)

    assert within == []
    (error,) = errors(beyond)
    assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    assert beyond[1:] == [CLOSED]


def test_nothing_is_answered_any_more() -> None:
    connection = Connection(LIMITS, opened_at=0.0)

    received(connection, [PROCESSED] * 11)

    assert received(connection, [PROCESSED, "no JSON"] * 10, now=1000.0) == []


def test_the_rate_holds_for_ever() -> None:
    connection = Connection(LIMITS, opened_at=0.0)

    commands = [command for number in range(1000) for command in connection.receive(PROCESSED, now=number / 2)]

    assert commands == []


def test_a_thousand_times_the_limit_is_told_once() -> None:
    connection = Connection(LIMITS, opened_at=0.0)

    commands = received(connection, [PROCESSED] * 10_000)

    assert len(commands) == 2
    assert commands[-1] == CLOSED


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param("no JSON", id="no JSON"),
        pytest.param('{"type":"no.such.event"}', id="no event"),
        pytest.param('{"type":"response.create","model":"m","input":7}', id="a create that cannot be decoded"),
    ],
)
def test_faults_are_answered_until_there_are_too_many(frame: str) -> None:
    connection = Connection(LIMITS, opened_at=0.0)

    for _ in range(3):
        (answer,) = connection.receive(frame, now=0.0)
        assert answer != CLOSED
        connection.turn_ended(None, now=0.0)
    beyond = connection.receive(frame, now=0.0)

    assert len(errors(beyond)) == 1
    assert beyond[1:] == [CLOSED]


def test_a_fault_now_and_then_is_none_too_many() -> None:
    connection = Connection(LIMITS, opened_at=0.0)

    commands = [command for number in range(500) for command in connection.receive("no JSON", now=20.0 * number + 20)]

    assert CLOSED not in commands
    assert len(errors(commands)) > 100


def test_what_a_bucket_has_no_room_for_does_not_keep_others_out() -> None:
    bucket = Bucket(3, per_second=1, now=0.0)

    at_once = [bucket.takes(0.0) for _ in range(100)]
    a_second_later = [bucket.takes(1.0) for _ in range(100)]

    assert at_once == [True] * 3 + [False] * 97
    assert a_second_later == [True] + [False] * 99
