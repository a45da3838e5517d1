"""Contexts that clients compact and carry themselves: with the official client, and as Codex does."""

from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.live import Server

from .grammar import check_turn
from .raw import Door, Event, response_of, text_of

pytestmark = pytest.mark.conformance

LONG = "many words " * 1000
TRIGGER = {"type": "compaction_trigger"}


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def kinds(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


@pytest.mark.parametrize("answer", ["Yes.", LONG], ids=["short", "long"])
async def test_the_official_client_compacts_and_goes_on_over_a_socket(
    server: Server, key: str, model: str, answer: str
) -> None:
    async with AsyncOpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        history: Any = [said("user", "Remember cobalt."), said("assistant", answer)]
        compacted = await client.responses.compact(model=model, input=history, instructions="Be brief.")
        async with client.responses.connect() as connection:
            # Its types know no user's message in an output.
            output: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
            await connection.response.create(model=model, input=[*output, said("user", "Say yes.")], store=False)
            events: list[Event] = []
            async for event in connection:
                events.append(event.model_dump(exclude_unset=True))
                if event.type == "response.completed":
                    break

    assert compacted.object == "response.compaction"
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    assert text_of(check_turn(events))
    usage = server.usage(compacted.id)
    assert (usage["transport"], usage["status"]) == ("compact", "completed")
    assert usage["input_tokens"] == compacted.usage.input_tokens
    assert (usage["input_tokens"] > 0) == (answer == LONG)


def test_a_stored_response_is_compacted_by_its_id(server: Server, key: str, model: str) -> None:
    with OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        first = client.responses.create(model=model, input="Remember cobalt.")
        compacted = client.responses.compact(model=model, previous_response_id=first.id)

    assert [item.type for item in compacted.output] == ["message", "compaction"]


@pytest.mark.parametrize("text", ["hi", LONG], ids=["short", "long"])
async def test_codex_s_trigger_gives_one_compaction_and_the_socket_goes_on(door: Door, model: str, text: str) -> None:
    """As its built-in provider does: warm-up, a turn, the trigger, then a new history that ends in the compaction."""
    include = {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
    developer, environment = said("developer", "You are an agent."), said("user", "<environment>here</environment>")
    async with door.socket() as socket:
        warm = response_of(await socket.turn(model, input=[developer], generate=False, **include))
        first = response_of(
            await socket.turn(
                model, input=[said("user", f"!reason 3 {text}")], previous_response_id=warm["id"], **include
            )
        )
        events = await socket.turn(model, input=[TRIGGER], previous_response_id=first["id"], **include)
        compaction = check_turn(events)["output"]
        history = [said("user", f"!reason 3 {text}"), developer, environment, *compaction, said("user", "Say yes.")]
        after = check_turn(await socket.turn(model, input=history, **include))

    assert [item["type"] for item in compaction] == ["compaction"]
    assert ("response.compaction.compacting" in kinds(events)) == (text == LONG)
    assert "output_text" not in str(kinds(events))
    assert text_of(after) == 'You said: "Say yes."' if model == "scripted" else text_of(after)
    assert door.server.usage(response_of(events)["id"])["status"] == "completed"


async def test_a_trigger_that_is_not_the_last_is_refused(door: Door, model: str) -> None:
    async with door.socket() as socket:
        refused = await socket.refused(model, input=[TRIGGER, said("user", "hi")], store=False)

    assert (refused["status"], refused["error"]["param"]) == (400, "input[0]")


async def test_a_context_is_compacted_in_time_and_the_chain_goes_on(door: Door, model: str) -> None:
    in_time = {"context_management": [{"type": "compaction", "compact_threshold": 1000}], "store": False}
    history = [said("user", "Remember cobalt."), said("assistant", LONG), said("user", "Say yes.")]
    async with door.socket() as socket:
        first = check_turn(await socket.turn(model, input=history, **in_time))
        second = check_turn(await socket.turn(model, input="Say no.", previous_response_id=first["id"], **in_time))

    assert [item["type"] for item in first["output"]] == ["compaction", "message"]
    assert [item["type"] for item in second["output"]] == ["message"]
    assert second["usage"]["input_tokens"] < 1000 < first["usage"]["input_tokens"]
    assert door.server.usage(first["id"])["output_tokens"] == first["usage"]["output_tokens"]


async def test_a_compaction_opens_for_no_other_project(door: Door, foreign_key: str, model: str) -> None:
    _, compaction = await door.compact(model, input="hello")

    status, body = await Door(door.server, foreign_key).post(model, input=compaction["output"])

    assert status == 400
    assert body["error"]["code"] == "invalid_encrypted_content"


@pytest.mark.parametrize("summary", [None, "auto", "concise"])
async def test_reasoning_comes_back_sealed_and_without_its_text(door: Door, summary: str | None) -> None:
    asked = {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": summary}}
    async with door.socket() as socket:
        first = check_turn(await socket.turn(input=[said("user", "!reason 5 One")], **asked))
        thought, answer = first["output"]
        sealed = {
            "type": "reasoning",
            "summary": [],
            "content": None,
            "encrypted_content": thought["encrypted_content"],
        }
        history = [said("user", "!reason 5 One"), sealed, answer, said("user", "Two")]
        second = check_turn(await socket.turn(input=history, **asked))

    assert bool(thought["summary"]) == (summary is not None)
    assert ("content" in thought) == (summary is None)
    assert text_of(second) == 'You said: "Two"'
