"""The launcher: drains, and ends in time."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import websockets
from websockets.exceptions import ConnectionClosed

from responses_ws.runtime.launcher import Server, listen, server_config

DEADLINE = 10.0

Served = tuple[Server, str, "asyncio.Task[None]"]


class Work:
    """What a process has to finish."""

    def __init__(self) -> None:
        self.is_running = False
        self.is_interrupted = False
        self.draining = asyncio.Event()
        self.sends: set[Callable[[Any], Any]] = set()
        self.closing: list[asyncio.Future[Any]] = []

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """A socket that answers every frame; ``flood`` sends without end."""
        if scope["type"] != "websocket":
            raise ValueError(scope["type"])
        await send({"type": "websocket.accept"})
        self.sends.add(send)
        while (message := await receive())["type"] != "websocket.disconnect":
            if message.get("text") == "flood":
                while True:
                    await send({"type": "websocket.send", "text": "x" * 100_000})
            if message["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": message["text"]})
        self.sends.discard(send)

    def begin_drain(self) -> None:
        self.draining.set()

    def is_busy(self) -> bool:
        return self.is_running and not self.is_interrupted

    def has_sockets(self) -> bool:
        return False

    def interrupt(self) -> None:
        self.is_interrupted = True

    def close_sockets(self) -> None:
        for send in self.sends:
            close = send({"type": "websocket.close", "code": 1012})
            self.closing.append(asyncio.gather(close, return_exceptions=True))


@asynccontextmanager
async def served(
    work: Work, *, drain_seconds: float = DEADLINE
) -> AsyncIterator[tuple[Server, str, asyncio.Task[None]]]:
    """A server on a port of its own, its address, and the task that ends with it."""
    listener = listen("127.0.0.1", 0)
    config = server_config(work, log_level="warning")
    config.timeout_graceful_shutdown = 1
    server = Server(config, drain_seconds=drain_seconds, work=work)
    task = asyncio.create_task(server.serve([listener]))
    async with asyncio.timeout(DEADLINE):
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    port = listener.getsockname()[1]
    try:
        yield server, f"ws://127.0.0.1:{port}", task
    finally:
        server.handle_exit(signal.SIGINT, None)
        server.handle_exit(signal.SIGINT, None)
        await task
        listener.close()


async def test_sockets_stay_open_while_a_turn_runs_and_then_get_1012() -> None:
    work = Work()
    work.is_running = True
    async with served(work) as (server, url, task), websockets.connect(url) as client:
        await client.send("before")
        await client.recv()

        server.handle_exit(signal.SIGTERM, None)
        await asyncio.wait_for(work.draining.wait(), DEADLINE)
        await client.send("meanwhile")
        answer = await client.recv()
        work.is_running = False
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        await asyncio.wait_for(task, DEADLINE)

    assert answer == "meanwhile"
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012


async def test_a_peer_that_takes_its_time_still_gets_a_whole_close_handshake() -> None:
    """Node's WebSocket reports 1006 and loses what it has not read where TCP ends right behind the Close frame."""
    work = Work()
    async with served(work) as (server, url, task), websockets.connect(url) as client:
        await client.send("hello")
        await client.recv()
        client.transport.pause_reading()

        server.handle_exit(signal.SIGTERM, None)
        async with asyncio.timeout(DEADLINE):
            while not server.shakes_hands():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        is_waiting = not task.done()
        client.transport.resume_reading()
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        await asyncio.wait_for(task, DEADLINE)

    assert is_waiting
    assert closed.value.rcvd is not None and closed.value.sent is not None
    assert (closed.value.rcvd.code, closed.value.sent.code) == (1012, 1012)


async def test_peers_are_pinged_and_those_that_do_not_answer_are_dropped(settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"ping_seconds": 0.05, "pong_seconds": 0.3}}
    async with (
        served(Work()) as (server, url, _task),
        websockets.connect(url, ping_interval=None) as alive,
        websockets.connect(url, ping_interval=None) as deaf,
    ):
        deaf.transport.pause_reading()
        async with asyncio.timeout(DEADLINE):
            while len(server.server_state.connections) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await alive.send("still here")
        answer = await alive.recv()
        deaf.transport.resume_reading()
        with pytest.raises(ConnectionClosed) as closed:
            await deaf.recv()

    assert answer == "still here"
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011


async def test_nobody_is_let_in_during_the_drain() -> None:
    work = Work()
    work.is_running = True
    async with served(work) as (server, url, _task):
        server.handle_exit(signal.SIGTERM, None)
        await asyncio.wait_for(work.draining.wait(), DEADLINE)
        async with asyncio.timeout(DEADLINE):
            while server.is_listening:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        with pytest.raises(OSError):
            await websockets.connect(url, open_timeout=1)


async def test_a_signal_that_comes_while_it_starts_ends_it_when_it_has_started() -> None:
    is_starting, may_start = asyncio.Event(), asyncio.Event()

    async def application(_scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await receive()
        is_starting.set()
        await may_start.wait()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    work = Work()
    server = Server(server_config(application, log_level="warning"), drain_seconds=DEADLINE, work=work)
    with listen("127.0.0.1", 0) as listener:
        task = asyncio.create_task(server.serve([listener]))
        await asyncio.wait_for(is_starting.wait(), DEADLINE)

        server.handle_exit(signal.SIGTERM, None)
        await asyncio.sleep(0)
        may_start.set()
        await asyncio.wait_for(task, DEADLINE)

    assert work.draining.is_set()
    assert not faults


async def test_the_drain_has_a_deadline() -> None:
    work = Work()
    work.is_running = True
    async with served(work, drain_seconds=0.1) as (server, _url, task):
        server.handle_exit(signal.SIGTERM, None)

        await asyncio.wait_for(task, DEADLINE)

    assert work.is_interrupted


@pytest.mark.parametrize(
    ("second", "ends"),
    [
        pytest.param(signal.SIGINT, True, id="ctrl-c ends it"),
        pytest.param(signal.SIGTERM, False, id="sigterm does not"),
    ],
)
async def test_a_second_signal(second: int, ends: bool) -> None:
    work = Work()
    work.is_running = True
    async with served(work) as (server, _url, task):
        server.handle_exit(signal.SIGTERM, None)
        await asyncio.wait_for(work.draining.wait(), DEADLINE)

        server.handle_exit(second, None)
        done, _ = await asyncio.wait({task}, timeout=DEADLINE if ends else 0.5)

    assert bool(done) is ends


async def test_a_peer_that_does_not_read_does_not_hold_the_exit() -> None:
    async with served(Work()) as (server, url, task), websockets.connect(url, max_queue=1, close_timeout=0.1) as client:
        await client.send("flood")
        await client.recv()

        server.handle_exit(signal.SIGTERM, None)

        # Left alone, uvicorn waits for this peer for ever.
        await asyncio.wait_for(task, DEADLINE)


async def test_a_frame_of_16_mib_comes_in_whole() -> None:
    frame = "x" * (16 * 1024 * 1024)
    async with served(Work()) as (_server, url, _task):
        async with websockets.connect(url, max_size=None) as client:
            await client.send(frame)

            answer = await client.recv()

    assert answer == frame
