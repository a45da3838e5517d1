"""Whole turns over a real vLLM: what is rendered, what is cached, what a call is held to."""

import os

import pytest
from django.test import override_settings

from responses_ws.engines.embedded import bundled_model
from responses_ws.engines.registry import registry
from responses_ws.models import UsageRecord
from responses_ws.runtime import background, dbpool
from responses_ws.testing import ResponsesCommunicator
from tests.rendering.referees import WEATHER

from .server import MODEL

pytestmark = pytest.mark.vllm

TOOL = {"type": "function", **WEATHER["function"], "strict": True}
SECONDS = 120.0


@pytest.fixture(autouse=True)
async def _vllm():
    renderer = {"TOKENIZER": str(bundled_model()), "TEMPLATE": "hermes", "PARSER": "hermes"}
    engine = {"ENGINE": "responses_ws.engines.vllm.Vllm", "BASE_URL": f"{os.environ['VLLM_URL']}/v1"}
    models = {MODEL: {"ENGINE": "vllm", "RENDERER": renderer, "CONTEXT": 4096}}
    with override_settings(RESPONSES_WS={"ENGINES": {"vllm": engine}, "MODELS": models}):
        yield
        await background.settle()
        await registry.aclose_all()


async def turn(socket, **fields):
    events = await socket.turn(model=MODEL, store=False, temperature=0, **fields)
    response = events[-1]["response"]
    record = await dbpool.run(lambda: UsageRecord.objects.get(response_id=response["id"]))
    return response, record


async def test_a_tool_loop_renders_new_items_only_and_finds_the_rest_cached(api_key):
    question = "Is it warm in Paris? " * 40
    async with ResponsesCommunicator(api_key.secret, seconds_to_answer=SECONDS) as socket:
        first, first_record = await turn(socket, input=question, tools=[TOOL], tool_choice="required")
        (call,) = (item for item in first["output"] if item["type"] == "function_call")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12 degrees"}
        second, second_record = await turn(
            socket, input=[output], tools=[TOOL], tool_choice="none", previous_response_id=first["id"]
        )

    assert (first["status"], call["name"]) == ("completed", "get_weather")
    assert [record.render_path for record in (first_record, second_record)] == ["full", "append"]
    assert second_record.rendered_tokens < 60
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= 256


async def test_an_answer_in_a_format_has_it(api_key):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    format = {
        "type": "json_schema",
        "name": "answer",
        "schema": {**schema, "additionalProperties": False},
        "strict": True,
    }
    async with ResponsesCommunicator(api_key.secret, seconds_to_answer=SECONDS) as socket:
        response, _ = await turn(socket, input="Is it?", text={"format": format}, max_output_tokens=60)

    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"].replace(" ", "").replace("\n", "") in (
        '{"ok":true}',
        '{"ok":false}',
    )


async def test_a_warm_up_is_found_cached(api_key):
    question = "How long is the Rhine? " * 60
    async with ResponsesCommunicator(api_key.secret, seconds_to_answer=SECONDS) as socket:
        warm, _ = await turn(socket, input=question, generate=False)
        response, _ = await turn(socket, input=[], previous_response_id=warm["id"], max_output_tokens=16)

    assert warm["usage"]["output_tokens"] == 0
    assert response["usage"]["input_tokens_details"]["cached_tokens"] >= 256


async def test_logprobs_are_told_with_the_text(api_key):
    async with ResponsesCommunicator(api_key.secret, seconds_to_answer=SECONDS) as socket:
        include = ["message.output_text.logprobs"]
        response, _ = await turn(socket, input="Hi", include=include, top_logprobs=2, max_output_tokens=16)

    part = response["output"][0]["content"][0]
    assert "".join(one["token"] for one in part["logprobs"]).startswith(part["text"][:1])
    assert all(len(one["top_logprobs"]) == 2 for one in part["logprobs"])
