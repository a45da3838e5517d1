"""Stored chains that another process continues: Redis gives it what was said, and the token ids of it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from responses_ws.engines.registry import registry
from responses_ws.models import StoredItem, UsageRecord
from responses_ws.runtime import background, metrics, redis
from responses_ws.serving.admission import Principal
from responses_ws.stores.memory import hot_tier

from .bytes_model import BytesEngine, spelled
from .turns import Chains, asked, response_of

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
ANSWERS = ['Wait<call>weather:{ "city": "Oslo" }<end>', "Cold.<end>", "  Odd \n spaces<end>", "Bye<end>"]


@pytest.fixture(autouse=True)
async def _shared(settings: Any, redis_url: str) -> AsyncIterator[None]:
    settings.RESPONSES_WS = {
        "REDIS_URL": redis_url,
        "LIMITS": {"redis_seconds": 10, "redis_ids_from": 1},
        "MODELS": {"bytes": {"ENGINE": "bytes"}},
    }
    client = redis.client()
    assert client is not None
    await client.flushall()
    yield
    await background.settle()
    await redis.aclose()


async def moved() -> None:
    """The next turn comes to a process that has nothing of it in memory."""
    await background.settle()
    hot_tier.clear()


async def conversation(principal: Principal, *, moves: bool) -> tuple[list[str], list[dict[str, Any]]]:
    """What the engine was sent, and what was answered."""
    engine = BytesEngine(*ANSWERS, "Fork<end>")
    registry.install("bytes", engine)
    chains = None if moves else Chains()
    same: dict[str, Any] = {"model": "bytes", "tools": [TOOL], "instructions": "Be brief.", "chains": chains}
    responses = [await response_of(asked(principal, "Oslo?", **same))]
    call = responses[0]["output"][1]["call_id"]
    for said in ([{"type": "function_call_output", "call_id": call, "output": "-3"}], "And?", "Thanks."):
        if moves:
            await moved()
        responses.append(await response_of(asked(principal, said, previous_response_id=responses[-1]["id"], **same)))
    if moves:
        await moved()
    fork = asked(principal, "Or?", previous_response_id=responses[1]["id"], **same)
    responses.append(await response_of(fork))
    return [spelled(prompt) for prompt in engine.prompts], responses


async def test_a_chain_that_moves_each_turn_is_told_as_one_that_stays(principal: Principal) -> None:
    stays, _ = await conversation(principal, moves=False)
    metrics.clear()
    moves, responses = await conversation(principal, moves=True)

    assert moves == stays
    assert metrics.lookups.value("redis") == 4 and metrics.lookups.value("database") == 0
    paths = {row.response_id: row.render_path async for row in UsageRecord.objects.all()}
    assert [paths[response["id"]] for response in responses] == ["full", "append", "append", "append", "append"]


async def test_a_chain_that_redis_has_lost_is_put_back_without_its_ids_and_gets_them_again(
    principal: Principal,
) -> None:
    engine = BytesEngine("A<end>", "B<end>", "C<end>", "D<end>")
    registry.install("bytes", engine)
    same: dict[str, Any] = {"model": "bytes", "instructions": "Be brief."}
    responses = [await response_of(asked(principal, "1", **same))]
    await background.settle()
    client = redis.client()
    assert client is not None
    await client.flushall()
    for said in ("2", "3", "4"):
        await moved()
        responses.append(await response_of(asked(principal, said, previous_response_id=responses[-1]["id"], **same)))

    paths = {row.response_id: row.render_path async for row in UsageRecord.objects.all()}
    assert [paths[response["id"]] for response in responses] == ["full", "full", "append", "append"]
    assert (metrics.lookups.value("database"), metrics.lookups.value("redis")) == (1, 2)


async def test_ids_of_another_renderer_are_not_used(principal: Principal) -> None:
    engine = BytesEngine("A<end>", "B<end>")
    registry.install("bytes", engine)
    first = await response_of(asked(principal, "1", model="bytes", instructions="Be brief."))
    await moved()

    # With other instructions it is another prompt.
    second = asked(principal, "2", model="bytes", instructions="Be kind.", previous_response_id=first["id"])
    await response_of(second)

    assert spelled(engine.prompts[1]).startswith("<system>Be kind.<end><user>1<end><assistant>A<end>")


async def test_without_redis_the_database_continues_it(principal: Principal, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": "redis://127.0.0.1:1/0"}
    registry.install("bytes", BytesEngine("A<end>", "B<end>"))
    first = await response_of(asked(principal, "1", model="bytes"))
    await moved()

    second = await response_of(asked(principal, "2", model="bytes", previous_response_id=first["id"]))

    assert second["status"] == "completed"
    assert await StoredItem.objects.acount() == 4
