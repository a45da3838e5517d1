"""What a client sees of a budget, at every door."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from responses_ws.models import ApiKey, BackgroundRun, Budget, Price, UsageRecord
from responses_ws.runtime import background, dbpool, holds
from responses_ws.runtime.bus import bus
from responses_ws.serving import background as jobs
from responses_ws.serving import budgets, runner
from responses_ws.testing import ResponsesCommunicator
from tests.waiting import until

from .test_rollout import ASK, CREATE, append, opted_in, outputs, until_it_waits
from .test_views import KeyClient, create, post

HELLO = {"model": "scripted", "input": "Hello", "store": False}


@pytest.fixture(autouse=True)
async def counted(api_key: ApiKey, settings: Any, monkeypatch: Any) -> AsyncIterator[None]:
    """In this process. A nano unit for every token of either kind."""
    monkeypatch.setattr(holds, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(budgets, "SECONDS_BETWEEN_READS", 0.1)
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": "", "BUDGET_OUTPUT_TOKENS": 100}
    await dbpool.run(make_prices)
    yield
    jobs.stop()
    await background.settle()
    await runner.stop()
    await bus.stop()
    await budgets.stop()


def make_prices() -> None:
    for component in ("input", "output"):
        began = timezone.now() - timedelta(days=1)
        Price.objects.create(model="scripted", component=component, nano_per_million=1_000_000, valid_from=began)


async def limited(owner: ApiKey, limit: int) -> Budget:
    fields = {"organization_id": owner.project.organization_id, "limit_nano": limit}
    return await dbpool.run(lambda: Budget.objects.create(**fields))


async def raised(budget: Budget, limit: int) -> None:
    """In the admin of another process: this one hears of it, and needs nobody to connect again."""
    budget.limit_nano = limit
    await dbpool.run(budget.save)

    def is_known() -> bool:
        found = budgets._book.of(budget.organization_id, 0, None, "scripted") if budgets._book is not None else []
        return [one.limit_nano for one in found] == [limit]

    await until(is_known, "the raised limit")


async def held(budget: Budget) -> int:
    share = budgets.rows.rule_of(await dbpool.run(Budget.objects.select_related("organization").get, pk=budget.pk))
    standing = await budgets.holds.standing(share.at(timezone.now()))
    assert standing is not None
    return sum(standing)


async def test_on_a_socket_it_is_an_error_event_and_the_socket_stays_open(api_key: ApiKey) -> None:
    budget = await limited(api_key, 10)
    async with ResponsesCommunicator(api_key.secret) as socket:
        (refused,) = await socket.turn(model="scripted", input="Hello", store=False, stream_id="a")
        await raised(budget, 1_000)
        events = await socket.turn(model="scripted", input="Hello", store=False, stream_id="a")

    assert (refused["type"], refused["status"], refused["stream_id"]) == ("error", 429, "a")
    error = refused["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert error["headers"] == {"x-should-retry": "false"}
    assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_over_http_it_is_a_status_and_clients_do_not_try_again(api_key: ApiKey, stream: bool) -> None:
    await limited(api_key, 10)

    answer = await post(KeyClient(api_key.secret), {**HELLO, "stream": stream})

    assert (answer.status_code, answer["x-should-retry"]) == (429, "false")
    assert "retry-after" not in answer.headers
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("insufficient_quota", "insufficient_quota", None)


async def test_a_compaction_has_to_be_covered_too(api_key: ApiKey) -> None:
    await limited(api_key, 10)

    body = msgspec.json.encode({"model": "scripted", "input": "many words " * 1000})
    client = KeyClient(api_key.secret)
    answer = await client.post("/v1/responses/compact", body, content_type="application/json")

    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")


async def test_a_background_response_is_refused_before_it_is_queued(api_key: ApiKey) -> None:
    budget = await limited(api_key, 10)

    answer = await post(KeyClient(api_key.secret), {**HELLO, "store": True, "background": True})

    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")
    assert not await BackgroundRun.objects.aexists() and not jobs.running
    assert await held(budget) == 0


async def test_a_queued_response_whose_budget_is_used_up_since_ends_incomplete(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "BACKGROUND_RUNNERS": True}
    budget = await limited(api_key, 1_000)
    client = KeyClient(api_key.secret)
    queued = await create(client, "Hello", background=True)
    await until(lambda: not jobs.running, "it to be left to others")
    await raised(budget, 10)
    budgets.holds.reset()

    await runner.take(queued["id"])
    await background.settle()

    ended = (await client.get(f"/v1/responses/{queued['id']}")).json()
    assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "insufficient_quota"})
    record = await UsageRecord.objects.aget()
    assert (record.status, record.output_tokens) == ("incomplete", 0)


async def test_appended_outputs_are_refused_and_taken_when_there_is_more(api_key: ApiKey) -> None:
    budget = await limited(api_key, 200)
    async with opted_in(api_key) as socket:
        await socket.create(**CREATE, **ASK)
        events = await until_it_waits(socket)
        response_id = events[0]["response"]["id"]
        given = outputs(events[-1], "sunny " * 200)
        await append(socket, response_id, given)
        (refused,) = await until_it_waits(socket)
        before = await held(budget)
        await raised(budget, 10_000)
        await append(socket, response_id, given)
        goes_on = await until_it_waits(socket)
        after = await held(budget)
    await background.settle()

    assert (refused["status"], refused["error"]["code"]) == (429, "insufficient_quota")
    assert goes_on[-1]["type"] == "response.done", goes_on[-1]
    assert before <= 200 < after


async def test_what_follows_a_steer_is_asked_about_as_any_turn(api_key: ApiKey) -> None:
    await limited(api_key, 1_000)
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(model="scripted", input="!tokens 2000 !rate 200 Hello", store=False, max_output_tokens=950)
        created = await socket.receive()
        response_id = created["response"]["id"]
        while (await socket.receive())["type"] != "response.output_text.delta":
            pass
        steer = {"type": "response.steer", "previous_response_id": response_id, "input": "long " * 800}
        await socket.send(steer)
        kinds: list[str] = []
        while "response.steer.failed" not in kinds and len(kinds) < 1000:
            kinds.append((event := await socket.receive())["type"])

    assert "budget of organization Acme does not cover" in event["error"]["message"]
    assert "response.incomplete" in kinds
    assert kinds.count("response.created") == 0
