"""One long response: it waits at its calls, and goes on when the client appends their outputs."""

from typing import Any

import pytest
from django.utils import timezone

from responses_ws.engines.script import pieces_of
from responses_ws.models import ApiKey, StoredResponse, UsageRecord
from responses_ws.runtime import background
from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports import authentication

CREATE = {"model": "scripted", "store": False}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASK = {"input": "!rounds 2 Weather in Oslo?", "tools": [WEATHER]}


def opted_in(api_key: ApiKey) -> ResponsesCommunicator:
    return ResponsesCommunicator(api_key.secret, headers={"OpenAI-Beta": "responses_rollout=v1"})


async def until_it_waits(socket: ResponsesCommunicator) -> list[dict[str, Any]]:
    events = [await socket.receive()]
    while events[-1]["type"] not in ("response.done", "response.completed", "error"):
        events.append(await socket.receive())
    return events


def outputs(done: dict[str, Any], said: str = "sunny") -> list[dict[str, Any]]:
    return [{"type": stub["type"], "call_id": stub["call_id"], "output": said} for stub in done["required"]]


async def append(socket: ResponsesCommunicator, response_id: str, items: list[dict[str, Any]]) -> None:
    await socket.send({"type": "response.append", "response_id": response_id, "input": items})


async def test_an_agent_run_is_one_response(api_key: ApiKey) -> None:
    async with opted_in(api_key) as socket:
        await socket.create(**CREATE, **ASK)
        events = await until_it_waits(socket)
        response_id = events[0]["response"]["id"]
        waits = []
        while events[-1]["type"] == "response.done":
            waits.append(events[-1])
            await append(socket, response_id, outputs(events[-1]))
            events += await until_it_waits(socket)
        after = await socket.turn(**CREATE, input="thanks", previous_response_id=response_id)
    await background.settle()

    response = events[-1]["response"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events].count("response.created") == 1
    assert [wait["required"][0]["name"] for wait in waits] == ["get_weather", "get_weather"]
    assert all(wait["response_id"] == response_id for wait in waits)
    assert [item["type"] for item in response["output"]] == [
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
        "message",
    ]
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [0, 2, 4]
    assert after[-1]["type"] == "response.completed"
    records = [record async for record in UsageRecord.objects.order_by("id")]
    assert [record.status for record in records] == ["completed", "completed"]
    assert records[0].input_tokens == response["usage"]["input_tokens"]
    assert records[0].output_tokens == response["usage"]["output_tokens"]


async def test_it_is_stored_whole_and_continued_from_anywhere(api_key: ApiKey) -> None:
    async with opted_in(api_key) as socket:
        await socket.create(model="scripted", **ASK)
        events = await until_it_waits(socket)
        response_id = events[0]["response"]["id"]
        while events[-1]["type"] == "response.done":
            await append(socket, response_id, outputs(events[-1]))
            events += await until_it_waits(socket)
    async with ResponsesCommunicator(api_key.secret) as other:
        after = await other.turn(model="scripted", input="thanks", previous_response_id=response_id)

    stored = await StoredResponse.objects.aget(id=response_id)
    assert (stored.input_end, stored.end) == (1, 6)
    assert after[-1]["type"] == "response.completed"


async def test_a_forced_call_is_forced_once_so_that_the_run_can_end(api_key: ApiKey) -> None:
    """A client that forced the first call was made to answer calls until it left: no step was free to say anything."""
    async with opted_in(api_key) as socket:
        await socket.create(**CREATE, input="Weather in Oslo?", tools=[WEATHER], tool_choice="required")
        events = await until_it_waits(socket)
        await append(socket, events[0]["response"]["id"], outputs(events[-1]))
        events += await until_it_waits(socket)

    assert events[-1]["type"] == "response.completed"
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "function_call",
        "function_call_output",
        "message",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([], id="missing"),
        pytest.param([{"type": "function_call_output", "call_id": "call_x", "output": ""}], id="of another call"),
        pytest.param([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}], id="a call"),
        pytest.param([{"type": "function_call_output"}], id="malformed"),
    ],
)
async def test_wrong_outputs_are_refused_and_it_goes_on_waiting(api_key: ApiKey, wrong: list[Any]) -> None:
    async with opted_in(api_key) as socket:
        await socket.create(**CREATE, input="Weather in Oslo?", tools=[WEATHER])
        events = await until_it_waits(socket)
        response_id = events[0]["response"]["id"]
        await append(socket, response_id, wrong)
        refused = await socket.receive()
        await append(socket, response_id, outputs(events[-1]) + [{"role": "user", "content": "!tokens 3 and be brief"}])
        events = await until_it_waits(socket)

    assert (refused["type"], refused["status"]) == ("error", 400)
    assert refused["error"]["param"].startswith("input")
    assert events[-1]["type"] == "response.completed"
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]


async def test_surplus_outputs_are_refused(api_key: ApiKey) -> None:
    async with opted_in(api_key) as socket:
        await socket.create(**CREATE, input="Weather in Oslo?", tools=[WEATHER])
        events = await until_it_waits(socket)
        given = outputs(events[-1])
        await append(socket, events[0]["response"]["id"], given + given)
        refused = await socket.receive()

    assert refused["error"]["message"].startswith("No tool call found")


async def test_a_response_that_waits_too_long_ends_incomplete_and_is_billable(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"append_seconds": 0.05}}

    async with opted_in(api_key) as socket:
        await socket.create(**CREATE, input="Weather in Oslo?", tools=[WEATHER])
        events = await socket.receive_turn()

    response = events[-1]["response"]
    record = await UsageRecord.objects.aget()
    assert response["incomplete_details"] == {"reason": "append_timeout"}
    assert (record.status, record.reason) == ("incomplete", "append_timeout")
    assert record.input_tokens == response["usage"]["input_tokens"] > 0


async def test_leaving_while_it_waits_records_what_was_made_once(api_key: ApiKey) -> None:
    async with opted_in(api_key) as socket:
        await socket.create(**CREATE, input="Weather in Oslo?", tools=[WEATHER])
        await until_it_waits(socket)
    await background.settle()

    record = await UsageRecord.objects.aget()
    assert record.status == "cancelled"
    assert record.input_tokens > 0 and record.output_tokens > 0


async def test_a_revoked_key_cannot_go_on(api_key: ApiKey, monkeypatch: Any) -> None:
    monkeypatch.setattr(authentication, "SECONDS_CACHED", 0.0)

    async with opted_in(api_key) as socket:
        await socket.create(**CREATE, input="Weather in Oslo?", tools=[WEATHER])
        events = await until_it_waits(socket)
        await ApiKey.objects.aupdate(revoked_at=timezone.now())
        await append(socket, events[0]["response"]["id"], outputs(events[-1]))
        refused = await socket.receive()

    assert (refused["status"], refused["error"]["code"]) == (401, "invalid_api_key")


async def test_stock_clients_never_see_it(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        events = await socket.turn(**CREATE, input="Weather in Oslo?", tools=[WEATHER])
        await append(socket, events[0]["response"]["id"], [])
        refused = await socket.receive()

    assert events[-1]["type"] == "response.completed"
    assert "response.done" not in [event["type"] for event in events]
    assert refused["error"]["code"] == "invalid_event"


async def test_the_token_limit_is_for_all_steps_together(api_key: ApiKey) -> None:
    spent = len(pieces_of('{"city":"Oslo"}'))

    async with opted_in(api_key) as socket:
        await socket.create(**CREATE, **ASK, max_output_tokens=spent)
        events = await until_it_waits(socket)
        await append(socket, events[0]["response"]["id"], outputs(events[-1]))
        end = await socket.receive()

    assert end["type"] == "response.incomplete"
    assert end["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert end["response"]["usage"]["output_tokens"] == spent
