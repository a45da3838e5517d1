"""An agent's loop through a socket, with a real llama.cpp of random weights: what each turn costs, in tokens."""

from pathlib import Path
from typing import Any

import pytest

from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey, UsageRecord
from responses_ws.runtime import dbpool
from responses_ws.testing import ResponsesCommunicator
from tests.fakes.llama_server import KEY, MODEL, LlamaServer

pytest.importorskip("xllamacpp", reason="pip install xllamacpp==2026.10.11549")

TURNS = 10
OUTPUT = "The file is not what it was: somebody has moved its second line behind its third. "
TOOL = {
    "type": "function",
    "name": "read",
    "parameters": {
        "type": "object",
        "properties": {"path": {"enum": ["a.txt", "b.txt"]}},
        "required": ["path"],
        "additionalProperties": False,
    },
}


@pytest.fixture
async def llama(tmp_path: Path, settings: Any) -> Any:
    with LlamaServer(tmp_path) as server:
        settings.RESPONSES_WS = {
            "ENGINES": {
                "llama": {"ENGINE": "responses_ws.engines.llama_cpp.LlamaCpp", "BASE_URL": server.url, "API_KEY": KEY}
            },
            "MODELS": {
                MODEL: {
                    "ENGINE": "llama",
                    "RENDERER": {"TOKENIZER": str(server.path), "TEMPLATE": "hermes", "PARSER": "hermes"},
                }
            },
        }
        yield server
        await registry.aclose_all()


async def test_a_turn_of_a_long_loop_costs_what_is_new(llama: LlamaServer, api_key: ApiKey) -> None:
    turns: list[dict[str, Any]] = []
    given: Any = "Read the files."
    async with ResponsesCommunicator(api_key.secret, seconds_to_answer=60.0) as socket:
        for _ in range(TURNS):
            chain = {"previous_response_id": turns[-1]["id"]} if turns else {}
            events = await socket.turn(
                model=MODEL, store=False, input=given, tools=[TOOL], tool_choice="required", **chain
            )
            turns.append(events[-1]["response"])
            (call,) = turns[-1]["output"]
            given = [{"type": "function_call_output", "call_id": call["call_id"], "output": OUTPUT}]

    records = await dbpool.run(lambda: list(UsageRecord.objects.order_by("started_at")))
    new = [record.rendered_tokens for record in records]
    read = [turn["usage"]["input_tokens"] - turn["usage"]["input_tokens_details"]["cached_tokens"] for turn in turns]
    assert [record.render_path for record in records] == ["full", *["append"] * (TURNS - 1)]
    assert len(set(new[1:])) == 1
    assert new[1] < new[0]
    # It reads the beginning of the call too, which is said in the model's stead; the rest it has in its cache.
    assert max(read[1:]) - min(read[1:]) <= 2
    assert turns[-1]["usage"]["input_tokens"] > 5 * max(read[1:])
