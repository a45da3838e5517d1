"""What the Open Responses specification asks of a server."""

import asyncio
import json
import struct
import zlib
from base64 import b64encode
from typing import Any

import pytest

from .grammar import REQUIRED, check_response, check_turn
from .raw import Door, Event, calls_in, response_of, sse_events
from .tools import WEATHER

pytestmark = pytest.mark.conformance

TOOL = {name: value for name, value in WEATHER.items() if name != "strict"}
OPTIONAL_BUT_NEVER_NULL = {"message": ("phase",), "reasoning": ("content", "encrypted_content")}


def check_strictly(response: dict[str, Any]) -> None:
    """The shape that the specification's schema wants, where it wants more than the official types."""
    check_response(response)
    assert response.keys() >= REQUIRED
    for name in ("created_at", "completed_at"):
        assert isinstance(response[name], int)
    assert response["instructions"] is None or isinstance(response["instructions"], str)
    for item in response["output"]:
        assert item["id"]
        if item["type"] not in ("reasoning", "compaction"):
            assert item["status"] == "completed"
        for name in OPTIONAL_BUT_NEVER_NULL.get(item["type"], ()):
            assert item.get(name, "") is not None
        for part in item.get("content") or ():
            assert part["type"] != "output_text" or part["annotations"] == []


def picture() -> str:
    """A red pixel as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\x00\xff\x00\x00")) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{b64encode(png).decode()}"


def said(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text, **more}


REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"input": [said("user", "Say hello in exactly 3 words.")]},
    "phases": {
        "input": [
            said("user", "Look into it."),
            said("assistant", "Looking.", phase="commentary"),
            said("assistant", "Found it.", phase="final_answer"),
            said("user", "Thanks."),
        ]
    },
    "system": {"input": [said("system", "Talk like a pirate."), said("user", "Say hello.")]},
    "image": {
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is in this picture?"},
                    {"type": "input_image", "image_url": picture()},
                ],
            }
        ]
    },
    "history": {"input": [said("user", "I am Ann."), said("assistant", "Hello Ann."), said("user", "Who am I?")]},
}


@pytest.mark.parametrize("request_body", REQUESTS.values(), ids=REQUESTS)
async def test_requests_that_are_answered(door: Door, model: str, request_body: dict[str, Any]) -> None:
    status, response = await door.post(model, **request_body)

    assert status == 200, response
    assert response["status"] == "completed"
    assert response["output"]
    check_strictly(response)


async def test_a_tool_is_called(door: Door, model: str) -> None:
    status, response = await door.post(model, input=[said("user", "The weather in Paris?")], tools=[TOOL])

    assert status == 200
    assert [call["name"] for call in calls_in(response)] == ["get_weather"]
    assert response["tools"] == [{**TOOL, "strict": True}]
    check_strictly(response)


@pytest.mark.parametrize("mode", ["required", "auto"])
async def test_only_allowed_tools_are_called(door: Door, model: str, mode: str) -> None:
    time = {**TOOL, "name": "get_time", "description": "The time in a city."}
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "get_time"}]}

    _, response = await door.post(model, input="The weather in Paris?", tools=[TOOL, time], tool_choice=choice)

    assert [call["name"] for call in calls_in(response)] == ["get_time"]
    assert response["tool_choice"] == choice
    assert [tool["name"] for tool in response["tools"]] == ["get_weather", "get_time"]


async def test_no_tool_is_called_where_none_is_allowed(door: Door, model: str) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": []}

    _, response = await door.post(model, input="The weather in Paris?", tools=[TOOL], tool_choice=choice)

    assert calls_in(response) == []
    assert response["status"] == "completed"


async def test_a_stream_names_its_events_and_ends_with_done(door: Door, model: str) -> None:
    async with door.http() as client:
        body = {"model": model, "input": [said("user", "Count from 1 to 5.")], "stream": True}
        async with client.post("/v1/responses", json=body) as answer:
            text = await answer.text()

    *events, done = sse_events(text.split("\n"))
    check_strictly(check_turn([json.loads(data) for _, data in events]))
    assert done == ("", "[DONE]")


async def test_a_phase_is_kept_and_never_null(door: Door, model: str) -> None:
    """On what is replayed. Where a message has none, the key is absent."""
    _, response = await door.post(model, **REQUESTS["phases"])

    _, listed = await door.get(f"{response['id']}/input_items?order=asc")

    phases = [item.get("phase", "absent") for item in [*listed["data"], *response["output"]]]
    assert phases == ["absent", "commentary", "final_answer", "absent", "absent"]


async def test_a_socket_says_what_a_stream_would(door: Door, model: str) -> None:
    async with door.socket() as socket:
        events = await socket.turn(model, input=[said("user", "Count from 1 to 3.")])

    check_strictly(check_turn(events))


async def test_turns_follow_each_other_on_one_socket(door: Door, model: str) -> None:
    async with door.socket() as socket:
        turns = [await socket.turn(model, input=f"Count from 1 to {number}.", store=False) for number in (3, 4)]

    for events in turns:
        check_strictly(check_turn(events))
    assert len({response_of(events)["id"] for events in turns}) == 2


async def test_a_continuation_on_the_same_socket(door: Door, model: str) -> None:
    async with door.socket() as socket:
        first = response_of(await socket.turn(model, input="Remember the word cobalt.", store=False))
        second = response_of(
            await socket.turn(model, previous_response_id=first["id"], input="What was it?", store=False)
        )

    check_strictly(second)
    assert second["previous_response_id"] == first["id"]


async def test_an_unstored_response_does_not_outlive_its_socket(door: Door, model: str) -> None:
    async with door.socket() as socket:
        first = response_of(await socket.turn(model, input="hello", store=False))

    async with door.socket() as socket:
        refused = await socket.refused(model, previous_response_id=first["id"], input="more", store=False)
        afresh = check_turn(await socket.turn(model, input="hello", store=False))

    assert refused["error"]["code"] == "previous_response_not_found"
    assert afresh["status"] == "completed"


async def test_a_response_that_never_was_is_not_found(door: Door, model: str) -> None:
    async with door.socket() as socket:
        refused = await socket.refused(model, previous_response_id="resp_no_such_1", input="more", store=False)

    assert (refused["status"], refused["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_failed_continuation_evicts_what_it_continued(door: Door, model: str) -> None:
    orphan = [{"type": "function_call_output", "call_id": "call_nobody", "output": "x"}]

    async with door.socket() as socket:
        first = response_of(await socket.turn(model, input="hello", store=False))
        failed = await socket.turn(model, previous_response_id=first["id"], input=orphan, store=False)
        gone = await socket.refused(model, previous_response_id=first["id"], input="more", store=False)

    assert failed[-1]["type"] in ("error", "response.failed")
    assert gone["error"]["code"] == "previous_response_not_found"
    assert isinstance(gone["status"], int)


async def test_a_call_left_without_its_output_is_refused(door: Door, model: str) -> None:
    async with door.socket() as socket:
        first = response_of(await socket.turn(model, input="The weather in Paris?", tools=[TOOL], store=False))
        refused = await socket.refused(model, previous_response_id=first["id"], input="Never mind.", store=False)

    assert refused["error"]["param"] == "input"
    assert calls_in(first)[0]["call_id"] in refused["error"]["message"]


async def test_a_compacted_context_begins_a_new_chain(door: Door, model: str) -> None:
    history = [said("user", "Remember the word cobalt."), said("assistant", "I will."), said("user", "Good.")]

    status, compaction = await door.compact(model, input=history, prompt_cache_key="a-key")
    async with door.socket() as socket:
        given = [*compaction["output"], said("user", "What was it?")]
        response = check_turn(await socket.turn(model, input=given, store=False, tools=[]))

    assert status == 200
    assert compaction["object"] == "response.compaction"
    assert [item["type"] for item in compaction["output"]] == ["message", "message", "compaction"]
    assert isinstance(compaction["created_at"], int)
    assert compaction["usage"]["total_tokens"] >= 0
    check_strictly(response)


async def test_a_compaction_has_its_own_object(door: Door, model: str) -> None:
    history = [said("user", "I am Ann."), said("assistant", "Hi.")]

    status, compaction = await door.compact(model, input=history, prompt_cache_key="ann")

    assert status == 200
    assert compaction.keys() == {"id", "object", "created_at", "output", "usage"}
    assert (compaction["object"], type(compaction["created_at"])) == ("response.compaction", int)
    *messages, item = compaction["output"]
    assert [message["content"][0]["text"] for message in messages] == ["I am Ann."]
    assert item.keys() == {"id", "type", "encrypted_content"}
    assert compaction["usage"]["total_tokens"] >= 0


async def test_a_compaction_needs_a_model(door: Door) -> None:
    status, body = await door.compact(None, input="hello")

    assert status == 400
    assert body["error"]["param"] == "model"


async def test_everything_at_once(door: Door, model: str) -> None:
    """The specification's own suite starts all its requests together: here, 17 and seven sockets."""

    async def by_socket(number: int) -> list[Event]:
        async with door.socket() as socket:
            return await socket.turn(model, input=f"Socket {number}.", store=False)

    async def by_stream(number: int) -> Event:
        status, body = await door.post(model, input=f"Request {number}.")
        assert status == 200
        return body

    sockets = asyncio.gather(*(by_socket(number) for number in range(7)))
    requests = asyncio.gather(*(by_stream(number) for number in range(17)))
    turns, bodies = await sockets, await requests

    ids = {check_turn(events)["id"] for events in turns} | {body["id"] for body in bodies}
    assert len(ids) == 24
