"""Deletions, where Redis is slow or away while they are made, and where somebody still has what was deleted."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from responses_ws.models import Project, StoredItem
from responses_ws.runtime import background, dbpool, redis
from responses_ws.stores import rows
from responses_ws.stores.forgetting import forgetting
from responses_ws.stores.lookup import find_stored, redis_store
from responses_ws.stores.memory import hot_tier
from responses_ws.stores.pruning import prune
from responses_ws.stores.rows import Deleted
from tests.proxy import Proxy
from tests.waiting import until

from .test_rows import save


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def response(project: Project, settings: Any, proxy: Proxy, redis_url: str) -> AsyncIterator[str]:
    """A stored response, which Redis has."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": proxy.url, "LIMITS": {"redis_seconds": 10}}
    await redis.client().flushall()
    await dbpool.run(lambda: save(project, "1", None, "ab", input_end=1))
    await find_stored(project.pk, "resp_1")
    await background.settle()
    assert await redis_store.load(project.pk, "resp_1") is not None
    yield "resp_1"
    proxy.heal()
    await forgetting.stop()
    await background.settle()
    await redis.aclose()


async def delete(project: Project) -> Deleted:
    deleted = await dbpool.run(rows.delete, project.pk, "resp_1")
    assert deleted is not None
    return deleted


async def test_what_only_the_database_had_is_in_redis_afterwards(response: str, project: Project) -> None:
    await StoredItem.objects.all().adelete()

    found = await find_stored(project.pk, response)

    assert found is not None and [item["content"] for item in found.items] == ["a", "b"]


async def test_a_deletion_reaches_a_redis_that_was_away(response: str, project: Project, proxy: Proxy) -> None:
    proxy.refuse()

    await forgetting.tell(project.pk, await delete(project))
    assert len(forgetting) == 1

    proxy.accept()
    await until(lambda: not len(forgetting), "Redis to be told")
    assert await redis_store.load(project.pk, response) is None


async def test_until_then_nobody_here_finds_it(response: str, project: Project, proxy: Proxy) -> None:
    deleted = await delete(project)
    hot_tier.forget(project.pk, deleted.response_ids)

    # It has not been told: the copy is still there.
    assert await redis_store.load(project.pk, response) is not None
    assert await find_stored(project.pk, response) is None


async def test_what_was_read_before_its_deletion_does_not_come_back(response: str, project: Project) -> None:
    read = await dbpool.run(rows.load, project.pk, response)
    assert read is not None
    await forgetting.tell(project.pk, await delete(project))

    await redis_store.put_back(project.pk, read)

    assert await redis_store.load(project.pk, response) is None
    content = await redis.client().keys("*:items:*")
    assert content == []


def test_pruning_tells_redis_of_what_clients_have_deleted(
    project: Project, settings: Any, redis_url: str, transactional_db: None
) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": redis_url, "LIMITS": {"redis_seconds": 10}}
    save(project, "1", None, "ab", input_end=1)
    read = rows.load(project.pk, "resp_1")
    assert read is not None
    run(redis_store.put_back(project.pk, read))
    # Whoever has deleted it has told nobody.
    rows.delete(project.pk, "resp_1")
    assert run(redis_store.load(project.pk, "resp_1")) is not None

    prune()

    assert run(redis_store.load(project.pk, "resp_1")) is None


def run(work: Any) -> Any:
    """In a loop of its own, as a command does."""

    async def whole() -> Any:
        try:
            return await work
        finally:
            await redis.aclose()

    return asyncio.run(whole())


def test_a_deletion_is_told_to_processes_as_json() -> None:
    deleted = Deleted({"resp_1", "resp_2"}, {UUID(int=1): 0, UUID(int=2): 4}, UUID(int=1))

    told = json.loads(json.dumps(msgspec.to_builtins(deleted, str_keys=True)))

    assert msgspec.convert({"project_id": 1, **told}, Deleted, str_keys=True) == deleted
