"""Unstored chains that are found again after their socket, by who has the key, and by nobody else."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from responses_ws.models import ApiKey, StoredItem, StoredResponse
from responses_ws.runtime import background, dbpool, metrics, redis
from responses_ws.stores.fallback import SealedFallback
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports.consumers import FALLBACK_HEADER

CREATE = {"model": "scripted", "store": False}
SECRET = "a secret of the canary kind"


@pytest.fixture
async def server(settings: Any, redis_url: str) -> AsyncIterator[Any]:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": redis_url, "LIMITS": {"redis_seconds": 10}}
    client = redis.client()
    assert client is not None
    await client.flushall()
    yield client
    await background.settle()
    await redis.aclose()


@pytest.fixture
async def key(server: Any, api_key: ApiKey) -> ApiKey:
    """Of a project that wants it."""
    api_key.project.sealed_fallback = True
    await dbpool.run(api_key.project.save)
    return api_key


def socket_of(key: ApiKey, fallback: str | None = None) -> ResponsesCommunicator:
    return ResponsesCommunicator(key.secret, headers={} if fallback is None else {FALLBACK_HEADER: fallback})


async def told(socket: ResponsesCommunicator, said: str, previous: str | None = None, **more: Any) -> dict[str, Any]:
    """The last event of a turn."""
    event: dict[str, Any] = (await socket.turn(**{**CREATE, "input": said, "previous_response_id": previous, **more}))[
        -1
    ]
    await background.settle()
    return event


async def begun(key: ApiKey) -> tuple[str, str]:
    """A response on a socket that has gone, and the key that came with it."""
    async with socket_of(key) as socket:
        first = (await told(socket, f"Remember: {SECRET}"))["response"]["id"]
        second = (await told(socket, "And that.", first))["response"]["id"]
        fallback = socket.headers[FALLBACK_HEADER]
    return second, fallback


async def refused(socket: ResponsesCommunicator, previous: str) -> bool:
    event = await told(socket, "Go on.", previous)
    return event["type"] == "error" and event["error"]["code"] == "previous_response_not_found"


async def test_a_client_that_brings_its_key_goes_on_where_it_was(key: ApiKey) -> None:
    last, fallback = await begun(key)

    async with socket_of(key, fallback) as socket:
        assert socket.headers[FALLBACK_HEADER] == fallback
        third = await told(socket, "!echo-context", last)
        fourth = await told(socket, "Go on.", third["response"]["id"])
    async with socket_of(key, fallback) as socket:
        fifth = await told(socket, "Once more.", fourth["response"]["id"])
        # The way back is as good as the way on.
        fork = await told(socket, "Or so.", last)

    assert [event["type"] for event in (third, fourth, fifth, fork)] == ["response.completed"] * 4
    assert metrics.lookups.value("sealed") == 3
    usages = [event["response"]["usage"]["input_tokens"] for event in (third, fourth, fifth)]
    assert usages == sorted(usages) and usages[0] > 8
    # Of all that nothing is anywhere else.
    assert not await StoredResponse.objects.aexists() and not await StoredItem.objects.aexists()
    assert len(hot_tier) == 0


async def test_nobody_else_goes_on(key: ApiKey) -> None:
    last, fallback = await begun(key)
    other = await dbpool.run(ApiKey.objects.create_with_secret, project=key.project, name="other")
    elsewhere = await dbpool.run(_of_another_project, key)

    for who, presented in [
        (key, None),
        (key, SealedFallback(None).key),
        (key, fallback[:-1]),
        (key, "no key at all"),
        (other, None),
        (elsewhere, fallback),
    ]:
        async with socket_of(who, presented) as socket:
            assert await refused(socket, last)


def _of_another_project(key: ApiKey) -> ApiKey:
    project = type(key.project).objects.create(
        organization=key.project.organization, name="elsewhere", sealed_fallback=True
    )
    return ApiKey.objects.create_with_secret(project=project, name="elsewhere")


async def test_redis_can_read_nothing_of_it(key: ApiKey, server: Any) -> None:
    _last, fallback = await begun(key)

    names = await server.keys()
    values = [await _values(server, name) for name in names]
    seen = b"".join([*names, *values])
    assert len(names) == 6
    for canary in (SECRET, "Remember", fallback, "scripted", "input_text"):
        assert canary.encode() not in seen
    assert {await server.ttl(name) for name in await server.keys()} <= set(range(590, 601))


async def _values(server: Any, name: bytes) -> bytes:
    if await server.type(name) == b"list":
        return b"".join(await server.lrange(name, 0, -1))
    value: bytes = await server.get(name)
    return value


@pytest.mark.parametrize("where", ["project", "key", "off"])
async def test_it_is_for_those_who_want_it_and_may(key: ApiKey, server: Any, where: str) -> None:
    if where == "project":
        key.project.zero_retention = True
    elif where == "key":
        key.zero_retention = True
    else:
        key.project.sealed_fallback = False
    await dbpool.run(key.project.save)
    await dbpool.run(key.save)

    async with socket_of(key, SealedFallback(None).key) as socket:
        assert FALLBACK_HEADER not in socket.headers
        assert (await told(socket, "Hello"))["type"] == "response.completed"

    assert await server.dbsize() == 0


async def test_what_is_stored_is_not_sealed_beside(key: ApiKey, server: Any) -> None:
    async with socket_of(key) as socket:
        await told(socket, "Hello", store=True)

    assert [name for name in await server.keys() if b"sealed" in name] == []


async def test_a_stored_turn_behind_an_unstored_one_is_found_by_everybody(key: ApiKey) -> None:
    last, fallback = await begun(key)
    async with socket_of(key, fallback) as socket:
        stored = (await told(socket, "Keep this.", last, store=True))["response"]["id"]
    hot_tier.clear()

    async with socket_of(key) as socket:
        assert (await told(socket, "And?", stored))["type"] == "response.completed"
        assert await refused(socket, last)


async def test_a_turn_writes_what_is_new(key: ApiKey, server: Any) -> None:
    async with socket_of(key) as socket:
        event = await told(socket, "x" * 50_000)
        before = (await server.info("stats"))["total_net_input_bytes"]
        await told(socket, "y", event["response"]["id"])
        written = (await server.info("stats"))["total_net_input_bytes"] - before

    assert written < 10_000


async def test_without_redis_there_is_none(key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": ""}

    async with socket_of(key) as socket:
        assert FALLBACK_HEADER not in socket.headers
