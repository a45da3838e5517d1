"""What one process does when the machine gives it no more: files, memory; and when its clock is set."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from websockets.exceptions import InvalidStatus

from responses_ws.runtime.launcher import FRONT_FILES, SPARE_FILES
from responses_ws.runtime.supervisor import resident_bytes
from tests.live import Server, until

from .grammar import check_turn
from .raw import Door, response_of

pytestmark = pytest.mark.conformance

FILES = 128
HOUR = 3600


@pytest.fixture
def confined(database: Path) -> Iterator[Server]:
    """A server that may open so many files."""
    wrapper = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh")
    with Server(directory=database, name="confined", wrapper=wrapper) as running:
        yield running
        assert not running.trouble(), running.output()


async def test_without_files_for_more_it_refuses_politely_idles_and_recovers(confined: Server, key: str) -> None:
    door = Door(confined, key)
    assert confined.process is not None
    pid = confined.process.pid
    port = int(confined.url.rpartition(":")[2])
    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(door.socket()) for _ in range(FILES - SPARE_FILES - 2 * FRONT_FILES)]
        with pytest.raises(InvalidStatus) as refused:
            await stack.enter_async_context(door.socket())
        # Connections that ask nothing take the files that are left for others, and then those that are left for none.
        before = files_of(pid)
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(FRONT_FILES)]
        await asyncio.to_thread(until, lambda: files_of(pid) >= before + len(silent), "them to be accepted")
        async with aiohttp.ClientSession(confined.url) as client, client.get("/healthz") as answer:
            status, headers = answer.status, answer.headers
        silent += [socket.create_connection(("127.0.0.1", port)) for _ in range(FILES)]
        used = cpu_seconds(pid)
        turn = await sockets[0].turn(input="!tokens 20 !rate 20", store=False)
        used = cpu_seconds(pid) - used
        for connection in silent:
            connection.close()
    await asyncio.to_thread(until, confined.answers, "it to have files again")
    async with door.socket() as one:
        again = await one.turn(input="hello")

    assert (refused.value.response.status_code, refused.value.response.headers["Retry-After"]) == (503, "1")
    assert (status, headers["Retry-After"]) == (503, "1")
    assert check_turn(turn)["status"] == "completed"
    # A loop that asks again and again whether there is a file now takes all of that second.
    assert used < 0.8
    assert response_of(again)


def files_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far. Source: proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.chaos
async def test_a_worker_that_holds_too_much_is_replaced_and_its_turns_end(database: Path, key: str) -> None:
    engines = {"rude": {"ENGINE": "tests.fakes.rude_engine.Rude"}}
    with Server(directory=database, name="greedy", arguments=("--max-memory", "500"), engines=engines) as server:
        door = Door(server, key)
        (old,) = children_of(server)
        async with door.socket() as one:
            await one.create(stream_id="long", input="!tokens 60 !rate 20", store=False)
            await one.create("rude", stream_id="greedy", input="!hold 500", store=False)
            events = [await one.receive()]
            while events[-1]["type"] != "error":
                events.append(await one.receive())
            code = await one.close_code()
        async with door.socket() as other:
            again = await other.turn(input="hello")
        await asyncio.to_thread(until, lambda: old not in children_of(server), "the old worker to go", seconds=20.0)

        (new,) = children_of(server)
        trouble = server.trouble()
    long = [event for event in events if event.get("stream_id") == "long"]
    assert check_turn(long, stream_id="long")["status"] == "completed"
    assert (events[-1]["error"]["code"], code) == ("websocket_connection_limit_reached", 1012)
    assert response_of(again)
    assert new != old
    assert not trouble


def children_of(server: Server) -> set[int]:
    assert server.process is not None
    pid = server.process.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_the_memory_of_a_process_is_known() -> None:
    kept = bytearray(b"x") * (50 * 1024 * 1024)

    assert len(kept) < resident_bytes(os.getpid()) < 100 * len(kept)
    assert resident_bytes(2**22 + 1) == 0


async def test_a_clock_that_is_set_closes_no_sockets_and_doubles_no_bill(
    database: Path, key: str, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """Sockets are pinged all the while; their age and every wait are of the monotonic clock."""
    library = pytest.importorskip("libfaketime")
    clock = tmp_path / "clock"
    clock.write_text("+0")
    wrapper = (
        "env",
        f"LD_PRELOAD={Path(library.__file__).parent / 'vendor/libfaketime/src/libfaketime.so.1'}",
        f"FAKETIME_TIMESTAMP_FILE={clock}",
        "FAKETIME_NO_CACHE=1",
        "DONT_FAKE_MONOTONIC=1",
    )
    limits = {"ping_seconds": 0.1, "pong_seconds": 2.0}
    responses: list[str] = []
    with Server(directory=database, name="clock", wrapper=wrapper, limits=limits) as server:
        async with Door(server, key).socket() as idle, Door(server, key).socket() as one:
            for seconds in (HOUR, -HOUR, 24 * HOUR, -24 * HOUR):
                await one.create(input="!tokens 10 !rate 20", store=False)
                await one.wait_for("response.output_text.delta")
                clock.write_text(f"{seconds:+d}")
                last = await one.wait_for("response.completed")
                responses.append(last["response"]["id"])
                record = server.usage(last["response"]["id"])
                assert record["status"] == "completed"
                assert 0 <= record["duration_ms"] < 20_000
            assert response_of(await idle.turn(input="hello", store=False))
        assert not server.trouble(), server.output()
    marks = ", ".join("?" * len(responses))
    sql = f"SELECT started_at FROM responses_ws_usagerecord WHERE response_id IN ({marks})"
    assert len({row["started_at"][:10] for row in server.rows(sql, *responses)}) > 1, "its clock was set"
    server.manage("shell", "-c", "from responses_ws.billing import ledger; ledger.bill_all(); ledger.bill_all()")
    sql = (
        "SELECT usage_id FROM responses_ws_journal JOIN responses_ws_usagerecord AS usage ON usage_id = usage.id"
        f" WHERE response_id IN ({marks})"
    )
    assert len(server.rows(sql, *responses)) == len(responses)
    figure(25, "clock set by 1 h and 24 h, both ways", target="0 sockets closed, 0 double bills", measured="0, 0")
