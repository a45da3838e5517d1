"""The model that comes along, through a socket: shapes and counts of real turns, never what the model says."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.test import override_settings

from responses_ws.engines.embedded import EmbeddedLlama
from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey, UsageRecord
from responses_ws.protocol.json_schema import misfit
from responses_ws.runtime import dbpool
from responses_ws.testing import ResponsesCommunicator

MISSING = EmbeddedLlama.available()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

SECONDS_TO_ANSWER = 120.0
SECONDS_TO_SEE_A_DEPARTURE = 10.0  # a small part of what the answer would take
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

# One for all: its process outlives the loops of the tests, and takes a second to load its model.
SHARED = EmbeddedLlama("embedded", {})


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    yield
    asyncio.run(SHARED.aclose())


@pytest.fixture
async def socket(api_key: ApiKey) -> AsyncIterator[ResponsesCommunicator]:
    with override_settings(RESPONSES_WS={"MODELS": {"smollm2": {"ENGINE": "embedded"}}}):
        registry.install("embedded", SHARED)
        async with ResponsesCommunicator(api_key.secret, seconds_to_answer=SECONDS_TO_ANSWER) as socket:
            yield socket


async def response_of(socket: ResponsesCommunicator, **fields: Any) -> dict[str, Any]:
    """The Response of a turn that has gone well."""
    last = (await socket.turn(model="smollm2", store=False, **fields))[-1]
    assert last["type"] in ("response.completed", "response.incomplete"), last
    response: dict[str, Any] = last["response"]
    return response


async def record_of(response: dict[str, Any]) -> UsageRecord:
    return await dbpool.run(lambda: UsageRecord.objects.get(response_id=response["id"]))


async def assert_only_new(response: dict[str, Any], parent: dict[str, Any]) -> None:
    """Nothing of the parent's turn was rendered again, and the engine had read it."""
    record, before, now = await record_of(response), parent["usage"], response["usage"]
    assert record.render_path == "append"
    assert now["input_tokens"] == before["input_tokens"] + before["output_tokens"] + record.rendered_tokens
    assert now["input_tokens_details"]["cached_tokens"] >= before["input_tokens"]
    assert not record.estimated


async def test_a_turn_costs_what_is_new(socket: ResponsesCommunicator) -> None:
    first = await response_of(socket, input="What is the capital of France? " * 5, max_output_tokens=12)
    second = await response_of(socket, input="And of Spain?", max_output_tokens=12, previous_response_id=first["id"])

    assert (await record_of(first)).render_path == "full"
    await assert_only_new(second, first)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}], ids=["required", "named"])
async def test_a_forced_tool_is_called_and_its_output_read(socket: ResponsesCommunicator, choice: Any) -> None:
    tools = {"tools": [TOOL], "max_output_tokens": 60}
    called = await response_of(socket, input="What is the weather in Paris?", tool_choice=choice, **tools)
    (call,) = called["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12 degrees"}
    answered = await response_of(socket, input=[output], tool_choice="none", previous_response_id=called["id"], **tools)

    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert misfit(TOOL["parameters"], call["arguments"]) is None
    assert [item["type"] for item in answered["output"]] == ["message"]
    assert (await record_of(answered)).render_path == "append"


async def test_an_answer_is_held_to_its_schema(socket: ResponsesCommunicator) -> None:
    wanted = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}

    first = await response_of(socket, input="Who are you?", text=wanted, max_output_tokens=100)
    second = await response_of(
        socket, input="And who am I?", text=wanted, max_output_tokens=100, previous_response_id=first["id"]
    )

    for response in (first, second):
        assert misfit(PERSON, response["output"][0]["content"][0]["text"]) is None
    await assert_only_new(second, first)


async def test_characters_of_several_tokens_come_out_whole(socket: ResponsesCommunicator) -> None:
    wanted = {"format": {"type": "json_schema", "name": "one", "schema": {"const": "é, 漢字 and 😀"}}}

    response = await response_of(socket, input="Go.", text=wanted, max_output_tokens=60)

    assert json.loads(response["output"][0]["content"][0]["text"]) == "é, 漢字 and 😀"


async def test_logprobs_are_one_a_token(socket: ResponsesCommunicator) -> None:
    response = await response_of(
        socket, input="Hi", top_logprobs=2, include=["message.output_text.logprobs"], max_output_tokens=3
    )

    (part,) = response["output"][0]["content"]
    assert "".join(one["token"] for one in part["logprobs"]) == part["text"]
    assert all(len(one["top_logprobs"]) == 2 and one["logprob"] <= 0 for one in part["logprobs"])


async def test_a_warm_up_is_found_in_the_cache(socket: ResponsesCommunicator) -> None:
    text = "Nothing has been said of this before. " * 4
    warm = await response_of(socket, input=text, generate=False)
    response = await response_of(socket, input="Go on.", max_output_tokens=2, previous_response_id=warm["id"])

    assert warm["usage"]["output_tokens"] == 0
    assert response["usage"]["input_tokens_details"]["cached_tokens"] >= warm["usage"]["input_tokens"] // 2


async def test_who_leaves_frees_the_engine(api_key: ApiKey, socket: ResponsesCommunicator) -> None:
    async with ResponsesCommunicator(api_key.secret, seconds_to_answer=SECONDS_TO_ANSWER) as other:
        await other.create(model="smollm2", store=False, input="Tell a very long story.", max_output_tokens=2000)
        while (await other.receive())["type"] != "response.output_text.delta":
            pass

    async with asyncio.timeout(SECONDS_TO_SEE_A_DEPARTURE):
        # It cannot tell; it can only be asked.
        while any(slot["is_processing"] for slot in json.loads(await SHARED._child.get("/slots", seconds=5))):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_prompt_that_the_engine_renders_itself_is_the_same(socket: ResponsesCommunicator) -> None:
    """Its own chat template is the one that it was started with, which is ours."""
    own = await response_of(socket, input="What is the sea?", max_output_tokens=4)
    options = {key: value for key, value in SHARED.renderer_options("smollm2").items() if key != "TEMPLATE"}
    renderer = {"CLASS": "responses_ws.rendering.by_engine.ByEngine", **options}
    with override_settings(RESPONSES_WS={"MODELS": {"smollm2": {"ENGINE": "embedded", "RENDERER": renderer}}}):
        registry.install("embedded", SHARED)

        theirs = await response_of(socket, input="What is the sea?", max_output_tokens=4)

    assert theirs["usage"]["input_tokens"] == own["usage"]["input_tokens"]
    assert (await record_of(theirs)).render_path == "full"
