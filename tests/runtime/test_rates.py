"""The same promises where Redis counts, and where this process does."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from responses_ws.connection.rates import Allowance
from responses_ws.runtime import background, rates, redis
from responses_ws.runtime.rates import Entry, enter
from tests.conftest import redis_server

THREE = Allowance(requests=3)
HUNDRED = Allowance(tokens=100)
TWO_AT_ONCE = Allowance(slots=2)
HASH = "responses_ws:rates:1:{me}"


async def clear() -> None:
    client = redis.client()
    if client is not None:
        await client.flushall()


@pytest.fixture(params=["redis", "process"])
async def counted(request: pytest.FixtureRequest, settings: Any) -> AsyncIterator[str]:
    """Where it is counted."""
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": url}
    await clear()
    yield request.param
    await background.settle()
    await redis.aclose()


@pytest.fixture
async def shared(settings: Any, redis_url: str) -> AsyncIterator[Any]:
    """Redis, where it counts."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": redis_url}
    await clear()
    yield redis.client()
    await background.settle()
    await redis.aclose()


async def refusals(allowance: Allowance, times: int, owner: str = "me") -> list[str | None]:
    return [(await enter(owner, allowance)).standing.refused for _ in range(times)]


async def used(entry: Entry, tokens: int) -> None:
    entry.charge(tokens)
    await background.settle()


async def leave(entry: Entry) -> None:
    entry.leave()
    await background.settle()


@pytest.mark.usefixtures("counted")
async def test_as_many_requests_as_the_limit_and_no_more() -> None:
    assert await refusals(THREE, 4) == [None, None, None, "requests"]
    assert await refusals(THREE, 1, owner="another") == [None]


@pytest.mark.usefixtures("counted")
async def test_what_is_used_stands_in_the_answer() -> None:
    first, second = await enter("me", THREE), await enter("me", THREE)

    assert first.standing.requests == pytest.approx(1, abs=0.01)
    # The first has begun to drain.
    assert 1 < second.standing.requests <= 2


@pytest.mark.usefixtures("counted")
async def test_tokens_beyond_the_limit_close_the_door() -> None:
    entry = await enter("me", HUNDRED)
    await used(entry, 98)
    assert await refusals(HUNDRED, 1) == [None]

    await used(entry, 500)

    assert await refusals(HUNDRED, 1) == ["tokens"]


@pytest.mark.usefixtures("counted")
async def test_tokens_that_were_not_used_open_it_again() -> None:
    entry = await enter("me", HUNDRED)
    await used(entry, 500)

    await used(entry, -500)

    assert await refusals(HUNDRED, 1) == [None]


@pytest.mark.usefixtures("counted")
async def test_a_slot_is_free_again_when_its_holder_leaves_and_only_once() -> None:
    first, second = await enter("me", TWO_AT_ONCE), await enter("me", TWO_AT_ONCE)
    assert await refusals(TWO_AT_ONCE, 1) == ["slots"]

    await leave(first)
    await leave(first)

    assert await refusals(TWO_AT_ONCE, 2) == [None, "slots"]
    await leave(second)


async def test_what_drains_makes_room_in_redis_too(shared: Any) -> None:
    await refusals(THREE, 3)
    at = float(await shared.hget(HASH, "at"))

    await shared.hset(HASH, "at", at - 19)
    assert await refusals(THREE, 1) == ["requests"]
    await shared.hset(HASH, "at", at - 20)
    assert await refusals(THREE, 2) == [None, "requests"]


async def test_redis_forgets_a_key_that_has_nothing_to_wait_for(shared: Any) -> None:
    await refusals(THREE, 3)

    assert 60 <= await shared.ttl(HASH) <= 61


async def test_a_slot_of_a_process_that_died_is_free_after_its_time(shared: Any) -> None:
    await refusals(TWO_AT_ONCE, 2)
    slots = f"{HASH}:slots"
    assert 30 <= await shared.ttl(slots) <= 31
    (member, score), *_ = await shared.zrange(slots, 0, -1, withscores=True)

    await shared.zadd(slots, {member: score - 31})

    assert await refusals(TWO_AT_ONCE, 2) == [None, "slots"]


async def test_a_slot_of_a_process_that_lives_is_kept(shared: Any) -> None:
    await refusals(TWO_AT_ONCE, 2)
    slots = f"{HASH}:slots"
    (member, score), *_ = await shared.zrange(slots, 0, -1, withscores=True)
    await shared.zadd(slots, {member: score - 29})
    await shared.expire(slots, 5)

    await rates.renew()

    assert await shared.zscore(slots, member) >= int(score)
    assert await shared.ttl(slots) >= 30


async def test_who_leaves_at_the_door_holds_no_slot(shared: Any) -> None:
    for ticks in range(30):
        coming = asyncio.create_task(enter("me", TWO_AT_ONCE))
        for _ in range(ticks):
            await asyncio.sleep(0)
        if coming.done():
            # Already in.
            await leave(coming.result())
        coming.cancel()
        await asyncio.wait({coming})
        await background.settle()

        assert await shared.exists(f"{HASH}:slots") == 0, f"after {ticks} ticks"


async def test_renewing_does_not_take_a_slot_again_that_was_given_back(shared: Any) -> None:
    entry = await enter("me", TWO_AT_ONCE)
    await shared.flushall()

    await rates.renew()

    assert await shared.exists(f"{HASH}:slots") == 0
    await leave(entry)


async def test_where_redis_is_gone_each_process_counts_for_itself(settings: Any, tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, server):
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": url}
        earlier = await enter("me", Allowance(requests=3, tokens=100, slots=3))
        assert await refusals(THREE, 1) == [None]

        server.kill()
        server.wait()

        assert await refusals(THREE, 4) == [None, None, None, "requests"]
        # Who came in by Redis leaves without it, too.
        earlier.charge(50)
        await leave(earlier)
        await rates.renew()
        await redis.aclose()


async def test_a_redis_that_does_not_answer_is_not_waited_for(settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url, limits = f"redis://127.0.0.1:{silent.getsockname()[1]}/0", {"redis_seconds": 0.05}
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": url, "LIMITS": limits}

        assert await refusals(THREE, 4) == [None, None, None, "requests"]
        await redis.aclose()


async def test_counts_that_nobody_asks_for_are_forgotten_first(settings: Any, monkeypatch: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": ""}
    monkeypatch.setattr(rates, "_MAX_COUNTS", 2)
    for owner in ("a", "a", "b", "a", "c"):
        await enter(owner, THREE)

    assert await refusals(THREE, 1, owner="a") == ["requests"]
    assert await refusals(THREE, 3, owner="b") == [None] * 3
