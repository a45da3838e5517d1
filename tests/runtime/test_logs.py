"""Lines of the log: what is in them, what is not, and how many there are."""

import asyncio
import json
import logging
import sys
import time
from typing import Any

import pytest

from responses_ws.runtime import logs
from responses_ws.runtime.logs import Brake, JsonFormatter


def record(message: str = "what happened", *args: Any, level: int = logging.WARNING, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("some.room", level, __file__, 1, message, args, None)
    made.__dict__.update(more)
    return made


def told(made: logging.LogRecord, **options: Any) -> dict[str, Any]:
    line = JsonFormatter(**options).format(made)
    assert "\n" not in line and line.isascii()
    return json.loads(line)


async def test_a_line_says_what_its_task_is_about() -> None:
    async def turn(project_id: int) -> dict[str, Any]:
        logs.about(response_id=f"resp_{project_id}")
        await asyncio.sleep(0)
        return told(record("Response %s", "x"))

    logs.about(project_id=7, connection_id="req_a")
    lines = await asyncio.gather(turn(1), turn(2))

    ids = [{name: line[name] for name in ("project_id", "connection_id", "response_id")} for line in lines]
    assert ids == [{"project_id": 7, "connection_id": "req_a", "response_id": f"resp_{n}"} for n in (1, 2)]
    assert (lines[0]["message"], lines[0]["level"], lines[0]["logger"]) == ("Response x", "WARNING", "some.room")


async def test_what_is_of_nobody_says_nothing_of_who_began_it() -> None:
    async def shared() -> dict[str, Any]:
        return told(record())

    logs.about(response_id="resp_a")
    line = await asyncio.get_running_loop().create_task(shared(), context=logs.of_nobody())

    assert "response_id" not in line


@pytest.mark.parametrize("text", ["two\nlines", 'a "quote"', "\ud800 alone", "Größe", "\x00"])
def test_any_text_is_one_line(text: str) -> None:
    assert told(record("%s", text))["message"] == text


def test_a_long_message_is_cut() -> None:
    assert len(JsonFormatter().format(record("x" * 100_000))) < 1000


def failure() -> BaseException:
    """An exception with a cause, as a parser raises them: both quote what they could not read."""
    try:
        try:
            int("canary-inside")
        except ValueError as exc:
            raise KeyError("canary-outside") from exc
    except KeyError as exc:
        return exc


def test_an_exception_is_told_by_its_type_and_place_and_not_by_its_words() -> None:
    line = told(record(exc_info=(KeyError, failure(), None)))

    assert "canary" not in json.dumps(line)
    assert line["exception"].startswith("Traceback: ValueError (")
    assert "; then KeyError (" in line["exception"]
    assert "test_logs.py:" in line["exception"] and " failure" in line["exception"]


def test_for_development_the_words_are_told_too() -> None:
    line = told(record(exc_info=(KeyError, failure(), None)), exception_texts=True)

    assert "canary-inside" in line["exception"] and "canary-outside" in line["exception"]


def test_without_an_exception_being_handled_there_is_none_to_tell() -> None:
    assert "exception" not in told(record(exc_info=sys.exc_info()))


def test_a_brake_lets_so_many_of_a_kind_through() -> None:
    brake = Brake(lines=3, seconds=60)

    passed = [brake.filter(record("Bad frame %d", number)) for number in range(10)]
    other = brake.filter(record("Another kind"))

    assert passed == [True] * 3 + [False] * 7
    assert other


def test_how_many_were_held_back_is_told_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    brake = Brake(lines=1, seconds=10)
    for _ in range(5):
        brake.filter(record())

    now = 11.0
    late = record()

    assert brake.filter(late)
    assert told(late)["held_back"] == 4
    assert not brake.filter(record())


def test_texts_that_a_client_writes_are_held_back_together() -> None:
    """Django logs the names by which it does not want to be called."""
    brake = Brake(lines=3, seconds=60)

    passed = [brake.filter(record(f"Invalid HTTP_HOST header: {number}")) for number in range(100)]

    assert passed == [True] * 30 + [False] * 70


def test_kinds_without_end_take_no_memory_without_end() -> None:
    brake = Brake()

    for number in range(logs.MAX_KINDS + 100):
        brake.filter(record(f"kind {number}"))

    assert len(brake._kinds) == logs.MAX_KINDS


def test_the_access_log_is_not_braked() -> None:
    brake = Brake(lines=1)
    line = logging.LogRecord(logs.access.name, logging.INFO, __file__, 1, "turn ended", (), None)

    assert [brake.filter(line) for _ in range(5)] == [True] * 5
