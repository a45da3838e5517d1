"""User input for a response that is already running."""

import base64
from typing import Any

import pytest

from responses_ws.models import ApiKey, UsageRecord
from responses_ws.runtime import background
from responses_ws.testing import ResponsesCommunicator

CREATE = {"model": "scripted", "store": False}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def until(socket: ResponsesCommunicator, kind: str) -> list[dict[str, Any]]:
    events = [await socket.receive()]
    while events[-1]["type"] != kind:
        events.append(await socket.receive())
    return events


async def steer(socket: ResponsesCommunicator, response_id: str, given: Any) -> None:
    await socket.send({"type": "response.steer", "previous_response_id": response_id, "input": given})


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


@pytest.mark.parametrize("lane", [{}, {"stream_id": "main"}], ids=["default lane", "named lane"])
async def test_a_steer_stops_a_running_text_and_a_successor_follows(api_key: ApiKey, lane: dict[str, str]) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, **lane, input="!tokens 5000 !rate 200 a long answer", instructions="Be nice.")
        first = await until(socket, "response.output_text.delta")
        response_id = first[0]["response"]["id"]
        await steer(socket, response_id, "stop it")
        first += await socket.receive_turn()
        second = await socket.receive_turn()
        third = await socket.turn(**CREATE, **lane, input="on", previous_response_id=second[-1]["response"]["id"])
    await background.settle()

    accepted = next(event for event in first if event["type"] == "response.steer.accepted")
    ended, follower = first[-1]["response"], second[-1]["response"]
    assert accepted["steer"]["id"].startswith("steer_")
    assert [event["sequence_number"] for event in first] == list(range(len(first)))
    assert [event["sequence_number"] for event in second] == list(range(len(second)))
    assert all(event.get("stream_id") == lane.get("stream_id") for event in first + second)
    assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "steered"})
    assert ended["output"][0]["status"] == "incomplete"
    assert follower["previous_response_id"] == response_id
    assert (follower["instructions"], text_of(follower)) == ("Be nice.", 'You said: "stop it"')
    assert third[-1]["type"] == "response.completed"
    records = [record async for record in UsageRecord.objects.order_by("id")]
    assert [(record.status, record.reason) for record in records] == [
        ("incomplete", "steered"),
        ("completed", ""),
        ("completed", ""),
    ]
    for record, response in zip(records, (ended, follower, third[-1]["response"]), strict=True):
        assert record.output_tokens == response["usage"]["output_tokens"] > 0


async def test_several_steers_become_one_successor(api_key: ApiKey) -> None:
    """A call is not cut in half: both steers come while it is said."""
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input='!rate 20 !call get_weather {"city": "Oslo"}', tools=[WEATHER])
        first = await until(socket, "response.function_call_arguments.delta")
        response_id = first[0]["response"]["id"]
        await steer(socket, response_id, "rather Rome")
        await steer(socket, response_id, [{"role": "user", "content": "or Bergen"}])
        first += await until(socket, "response.completed")
        pending = [await socket.receive() for _ in range(2)]
        call = first[-1]["response"]["output"][0]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        second = await socket.turn(**CREATE, input=[output], previous_response_id=response_id)

    assert call["status"] == "completed"
    assert [event["type"] for event in pending] == ["response.steer.pending"] * 2
    assert pending[0]["reason"] == "waiting_for_required_input"
    assert pending[0]["required_input"] == [
        {"type": "function_call_output", "call_id": call["call_id"], "name": "get_weather"}
    ]
    accepted = [event["steer"]["id"] for event in first if event["type"] == "response.steer.accepted"]
    assert [event["steer"]["id"] for event in pending] == accepted
    # The steers stand behind the output, so that the output follows its call.
    assert text_of(second[-1]["response"]) == 'You said: "or Bergen"'


async def test_a_pending_steer_is_lost_with_its_connection(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket, ResponsesCommunicator(api_key.secret) as other:
        asked = {"model": "scripted", "input": '!rate 20 !call get_weather {"city": "Oslo"}', "tools": [WEATHER]}
        await socket.create(**asked)
        first = await until(socket, "response.function_call_arguments.delta")
        await steer(socket, first[0]["response"]["id"], "rather Rome")
        first += await until(socket, "response.steer.pending")
        parent = first[-2]["response"]
        output = {"type": "function_call_output", "call_id": parent["output"][0]["call_id"], "output": "sunny"}
        more = {"model": "scripted", "input": [output], "previous_response_id": parent["id"]}
        elsewhere = (await other.turn(**more))[-1]["response"]
        here = (await socket.turn(**more))[-1]["response"]

    assert text_of(elsewhere) == 'The tool returned "sunny".'
    assert text_of(here) == 'You said: "rather Rome"'


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(292)).decode()
IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param(
            [{"type": "function_call_output", "call_id": "call_x", "output": "no"}],
            "A steer is a string or a non-empty list of user messages. (input)",
            id="an output",
        ),
        pytest.param([], "A steer is a string or a non-empty list of user messages. (input)", id="nothing"),
        pytest.param(
            [{"type": "message", "role": "user", "content": [IMAGE]}],
            "An image of 300 bytes is too large: at most 200 are allowed. (input[0].content[0].image_url)",
            id="a large image",
        ),
    ],
)
async def test_a_steer_that_would_be_refused_comes_back_and_stops_nothing(
    api_key: ApiKey, settings: Any, given: list[dict[str, Any]], why: str
) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"max_image_bytes": 200}}
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 60 !rate 200 hello")
        created = await socket.receive()
        await steer(socket, created["response"]["id"], given)
        events = await socket.receive_turn()

    failed = next(event for event in events if event["type"] == "response.steer.failed")
    assert failed["error"] == {"type": "invalid_request_error", "code": "invalid_input", "message": why}
    assert failed["steer"]["input"] == given
    assert events[-1]["type"] == "response.completed"


async def test_a_steer_after_the_end_comes_back(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        ended = (await socket.turn(**CREATE, input="hello"))[-1]["response"]
        await steer(socket, ended["id"], "too late")
        failed = await socket.receive()

    assert failed["error"]["code"] == "response_already_completed"
    assert failed["steer"] == {"previous_response_id": ended["id"], "input": "too late"}


async def test_too_many_steers_come_back(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input='!rate 10 !call get_weather {"city": "Oslo"}', tools=[WEATHER])
        first = await until(socket, "response.function_call_arguments.delta")
        for number in range(17):
            await steer(socket, first[0]["response"]["id"], f"number {number}")
        events = await until(socket, "response.completed")

    kinds = [event["type"] for event in events if event["type"].startswith("response.steer")]
    assert kinds == ["response.steer.accepted"] * 16 + ["response.steer.failed"]


async def test_the_steers_of_a_response_that_fails_come_back(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(
            **CREATE, input='!rate 20 !break 7 !call get_weather {"city": "a b c d e f g h i"}', tools=[WEATHER]
        )
        first = await until(socket, "response.output_item.added")
        await steer(socket, first[0]["response"]["id"], "hurry")
        events = await until(socket, "response.steer.failed")

    assert events[-2]["type"] == "response.failed"
    assert (events[-1]["error"]["code"], events[-1]["steer"]["input"]) == ("successor_creation_failed", "hurry")
