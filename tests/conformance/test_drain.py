"""SIGTERM, with real processes: nothing that runs is broken, nothing new begins, and the process ends in time."""

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.exceptions import InvalidStatus

from tests.live import Server, until

from .grammar import check_turn
from .raw import Door, Socket

pytestmark = pytest.mark.conformance

SECONDS = 30.0
ENDLESS = "!tokens 100000 !rate 100"
FLOOD = "!tokens 3000000"


def serving(database: Path, *arguments: str, **options: Any) -> Iterator[Server]:
    with Server(directory=database, name="draining", arguments=arguments, **options) as running:
        yield running
        assert not running.trouble(), running.output()


@pytest.fixture(params=["alone", "two workers"])
def draining(request: pytest.FixtureRequest, database: Path) -> Iterator[Server]:
    """A server that a test may end, on SQLite and without Redis."""
    yield from serving(database, "--workers", "1" if request.param == "alone" else "2")


@pytest.fixture
def two_workers(database: Path) -> Iterator[Server]:
    yield from serving(database, "--workers", "2")


@pytest.fixture
def hasty(database: Path) -> Iterator[Server]:
    """One whose turns have a second to end."""
    yield from serving(database, "--drain-seconds", "1")


def ended(server: Server) -> int:
    """Its exit code, as soon as it has one."""
    process, server.process = server.process, None
    assert process is not None
    return process.wait(SECONDS)


def is_held_back(server: Server, response_id: str) -> bool:
    """Whether a turn has begun to speak and makes nothing more, from one checkpoint to the next."""
    sql = "SELECT output_tokens FROM responses_ws_usagerecord WHERE response_id = ? AND output_tokens > 0"
    before = server.rows(sql, response_id)
    # They are a second apart.
    time.sleep(2.0)
    return bool(before) and server.rows(sql, response_id) == before


async def seconds_until_closed(one: Socket, since: float) -> float:
    assert await one.close_code() == 1012
    return time.monotonic() - since


async def answers_of_the_door(door: Door, stop: asyncio.Event) -> list[str]:
    """What whoever comes during the drain is told, again and again."""
    seen: list[str] = []
    while not stop.is_set():
        try:
            async with door.socket():
                seen.append("accepted")
        except InvalidStatus as refused:
            assert refused.response.headers["Retry-After"] == "1"
            seen.append(str(refused.response.status_code))
        except (OSError, EOFError):
            seen.append("refused")
        try:
            async with door.http() as client, client.get("/readyz") as answer:
                seen.append(f"ready {answer.status}" if answer.status == 200 else str(answer.status))
        except (aiohttp.ClientError, OSError):
            seen.append("refused")
        await asyncio.sleep(0.02)
    return seen


async def test_fifty_turns_end_whole_and_nothing_new_begins(
    two_workers: Server, key: str, figure: Callable[..., None]
) -> None:
    door = Door(two_workers, key)
    async with AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(door.socket()) for _ in range(25)]
        idle = [await stack.enter_async_context(door.socket()) for _ in range(20)]
        for number, one in enumerate(busy):
            for lane in ("a", "b"):
                await one.create(stream_id=lane, input=f"!tokens {40 + number} !rate 20", store=False)
        waiting = {(number, lane) for number in range(25) for lane in ("a", "b")}
        for number, one in enumerate(busy):
            while (number, "a") in waiting or (number, "b") in waiting:
                waiting.discard((number, (await one.wait_for("response.output_text.delta"))["stream_id"]))

        two_workers.signal(signal.SIGTERM)
        begun = time.monotonic()
        stop = asyncio.Event()
        # A signal takes its way; from here on nobody is let in.
        await asyncio.to_thread(until, lambda: not two_workers.answers(), "the door to close")
        took = time.monotonic() - begun
        outside = asyncio.create_task(answers_of_the_door(door, stop))
        await busy[-1].create(stream_id="late", input="Too late.", store=False)
        closed = await asyncio.gather(*(seconds_until_closed(one, begun) for one in idle))
        served = await asyncio.gather(*(seconds_until_closed(one, begun) for one in busy))
        code = await asyncio.to_thread(ended, two_workers)
        exited = time.monotonic() - begun
        stop.set()
        seen = await outside

    for one in busy:
        for lane in ("a", "b"):
            turn = [event for event in one.received if event.get("stream_id") == lane]
            assert check_turn(turn, stream_id=lane)["status"] == "completed"
    (late,) = [event for event in busy[-1].received if event.get("stream_id") == "late"]
    assert late["error"]["code"] == "websocket_connection_limit_reached"
    assert all(event["error"]["code"] == late["error"]["code"] for one in idle for event in one.received)
    assert "accepted" not in seen and "ready 200" not in seen
    assert code == 0
    seconds = {"door": took, "idle closed": max(closed), "exit after the last turn": exited - max(served)}
    figure(
        4,
        "SIGTERM with 50 turns in flight, in seconds",
        target="0 broken, 0 accepted; idle closed 2, exit after the last turn 2",
        measured={"broken": 0, "accepted": 0, **{name: round(value, 2) for name, value in seconds.items()}},
    )
    # 2 s are promised each; what a busy machine takes for them comes on top.
    assert max(closed) <= 2.0 + 8.0
    assert max(closed) - min(closed) > 0.2, "all at once"
    assert exited - max(served) <= 2.0 + 8.0


async def test_a_reader_that_has_stopped_does_not_hold_the_exit(
    hasty: Server, key: str, figure: Callable[..., None]
) -> None:
    door = Door(hasty, key)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.connect(("127.0.0.1", int(hasty.url.rpartition(":")[2])))
    narrow.setblocking(False)
    async with door.socket(sock=narrow, max_queue=1, close_timeout=0.1) as deaf, door.socket() as other:
        await deaf.create(input=FLOOD, store=False)
        first = (await deaf.receive())["response"]["id"]
        await asyncio.to_thread(until, lambda: is_held_back(hasty, first), "the reader to hold the engine back")
        await other.create(input=ENDLESS, store=False)
        second = (await other.receive())["response"]["id"]
        await other.wait_for("response.output_text.delta")

        hasty.signal(signal.SIGTERM)
        begun = time.monotonic()
        hasty.signal(signal.SIGTERM)
        events = [*other.received, *await other.rest_of_turn()]
        told = time.monotonic() - begun
        code = await other.close_code()
        assert await asyncio.to_thread(ended, hasty) == 0
        exited = time.monotonic() - begun

    figure(5, "SIGTERM and a stalled reader: seconds to the exit", target="deadline 1 + 5", measured=round(exited, 2))
    assert exited <= 1.0 + 10.0
    assert told >= 1.0, "a second signal has changed the deadline"
    failed = check_turn(events)
    assert (failed["status"], failed["error"]["code"], code) == ("failed", "server_error", 1012)
    records = {response_id: hasty.usage(response_id) for response_id in (first, second)}
    assert [record["status"] for record in records.values()] == ["cancelled", "abandoned"]
    assert records[second]["reason"] == "server_restarted"
    for response_id, record in records.items():
        assert record["output_tokens"] == hasty.tokens.call(response_id)["output_tokens"] > 0


@pytest.mark.chaos
async def test_a_second_ctrl_c_ends_turns_at_once_and_they_are_on_record(draining: Server, key: str) -> None:
    async with Door(draining, key).socket() as one:
        await one.create(input=ENDLESS, store=False)
        await one.wait_for("response.output_text.delta")
        response_id = one.received[0]["response"]["id"]

        draining.signal(signal.SIGINT)
        # Seen by the first one's effect, so that the second is a second.
        await asyncio.to_thread(until, lambda: not draining.answers(), "the door to close")
        draining.signal(signal.SIGINT)
        last = (await one.rest_of_turn())[-1]
        code = await asyncio.to_thread(ended, draining)

    assert (last["type"], code) == ("response.failed", 0)
    record = draining.usage(response_id)
    assert record["status"] == "abandoned"
    assert record["output_tokens"] == draining.tokens.call(response_id)["output_tokens"]
