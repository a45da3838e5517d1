from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from responses_ws.runtime import redis
from responses_ws.stores.base import Place
from responses_ws.stores.redis import RedisStore

A, B = UUID(int=1), UUID(int=2)
ROOT = Place(A, A, (), 2)
TIP = Place(A, A, (), 4)
FORK = Place(B, A, ((A, 2),), 4)


@pytest.fixture
async def store(settings: Any, redis_url: str) -> AsyncIterator[RedisStore]:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": redis_url}
    await redis.client().flushall()
    yield RedisStore()
    await redis.aclose()


def items(letters: str) -> list[dict[str, Any]]:
    return [{"type": "message", "role": "user", "content": letter, "id": letter} for letter in letters]


async def save(store: RedisStore, name: str, place: Place, letters: str) -> None:
    await store.save(1, {"id": name}, place, items(letters), input_end=place.end - 1)


async def letters(store: RedisStore, name: str, *, project_id: int = 1) -> str | None:
    stored = await store.load(project_id, name)
    return None if stored is None else "".join(entry["content"] for entry in stored.items)


async def test_a_chain_and_its_fork_are_found_again(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")
    await save(store, "tip", TIP, "cd")
    await save(store, "fork", FORK, "ef")

    assert [await letters(store, name) for name in ("root", "tip", "fork")] == ["ab", "abcd", "abef"]
    stored = await store.load(1, "tip")
    assert stored is not None
    assert (stored.place, stored.response["output"]) == (TIP, items("d"))


async def test_loading_takes_two_round_trips_whatever_the_length(store: RedisStore) -> None:
    place = ROOT
    await save(store, "0", place, "ab")
    for number in range(1, 30):
        place = Place(A, A, (), place.end + 2)
        await save(store, str(number), place, "ab")
    await redis.client().config_resetstat()

    loaded = await letters(store, "29")

    stats = await redis.client().info("commandstats")
    assert loaded == "ab" * 30
    assert (stats["cmdstat_get"]["calls"], stats["cmdstat_lrange"]["calls"]) == (1, 1)


async def test_a_gap_is_a_miss_and_is_never_filled_wrongly(store: RedisStore) -> None:
    await save(store, "tip", TIP, "cd")

    assert await letters(store, "tip") is None


async def test_an_evicted_chain_is_a_miss(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")
    await redis.client().delete(f"responses_ws:1:1:chain:{A.hex}")

    assert await letters(store, "root") is None


async def test_another_project_finds_nothing(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")

    assert await letters(store, "root", project_id=2) is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"\x80\x04.", id="a pickle"),
        pytest.param(msgspec.msgpack.encode({"project_id": 2, "place": None}), id="another shape"),
        pytest.param(
            msgspec.msgpack.encode({"project_id": 2, "place": ROOT, "input_end": 1, "response": {"id": "root"}}),
            id="another owner's value under our key",
        ),
    ],
)
async def test_a_strange_value_is_a_miss(store: RedisStore, value: bytes) -> None:
    await save(store, "root", ROOT, "ab")
    await redis.client().set("responses_ws:1:1:response:root", value)

    assert await letters(store, "root") is None


async def test_a_forgotten_response_is_gone(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")

    await store.forget(1, {"root"}, {A: 0})

    assert await letters(store, "root") is None
    assert await redis.client().dbsize() == 0


async def test_of_a_chain_whose_end_was_deleted_the_beginning_stays(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")
    await save(store, "tip", TIP, "cd")

    await store.forget(1, {"tip"}, {A: 2})

    assert (await letters(store, "root"), await letters(store, "tip")) == ("ab", None)


async def test_a_dead_redis_is_a_miss(store: RedisStore, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": "redis://127.0.0.1:1/0"}

    await save(store, "root", ROOT, "ab")

    assert await letters(store, "root") is None


async def test_without_redis_nothing_is_looked_up(settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": ""}

    assert await RedisStore().load(1, "root") is None
