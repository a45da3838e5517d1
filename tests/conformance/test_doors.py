"""The two doors say the same; stored chains are found from either."""

import asyncio
import io
import json
import re
from typing import Any

import pytest

from tests.live import ModelServer, Server

from .grammar import check_turn
from .raw import Door, Event, calls_in, outputs_for, response_of, sse_events, text_of
from .tools import WEATHER

pytestmark = pytest.mark.conformance

QUESTIONS: list[dict[str, Any]] = [
    {"input": "Say hello."},
    {"input": "The weather in Rome?", "tools": [WEATHER], "instructions": "Be brief."},
    {"input": "!calls 2 The weather in Rome?", "tools": [WEATHER], "temperature": 0.5, "metadata": {"a": "b"}},
    {"input": "!reason 5 Say hello.", "reasoning": {"effort": "low"}},
    {"input": "!refuse"},
    {"input": "!tokens 60", "max_output_tokens": 20},
    {"input": "!tokens 60 !filter"},
    {"input": "!tokens 60 !break 30"},
    {"input": "Oslo", "text": {"format": {"type": "json_object"}}},
]
NAMES = ["text", "call", "calls", "reasoning", "refusal", "cut", "filtered", "broken", "json"]


def without_chance(events: list[Event]) -> list[Event]:
    """Events with ids replaced by their order of appearance, and without times and what was cached by chance."""
    text = json.dumps(events)
    names: dict[str, str] = {}

    def name(match: "re.Match[str]") -> str:
        return names.setdefault(match[0], f"{match[1]}_{len(names)}")

    text = re.sub(r"\b(resp|msg|fc|call|rs|ctc)_[0-9a-f]{20,}\b", name, text)
    text = re.sub(r'"(created_at|completed_at|cached_tokens)": \d+', r'"\1": 0', text)
    return json.loads(text)


async def stream(door: Door, **body: Any) -> tuple[list[Event], str]:
    """(events of an SSE stream, the whole body)."""
    async with door.http() as client:
        async with client.post("/v1/responses", json={"model": "scripted", "stream": True, **body}) as answer:
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            assert answer.headers["Cache-Control"].startswith("no-cache")
            assert answer.headers["x-request-id"]
            text = await answer.text()
    events = sse_events(text.split("\n"))
    assert events[-1] == ("", "[DONE]")
    decoded = [json.loads(data) for _, data in events[:-1]]
    assert [name for name, _ in events[:-1]] == [event["type"] for event in decoded]
    return decoded, text


@pytest.mark.parametrize("question", QUESTIONS, ids=NAMES)
async def test_a_stream_says_what_a_socket_says(door: Door, question: dict[str, Any]) -> None:
    async with door.socket() as socket:
        by_socket = await socket.turn(**question)

    by_stream, text = await stream(door, **question)

    check_turn(by_socket)
    check_turn(by_stream)
    assert without_chance(by_stream) == without_chance(by_socket)
    assert "\r" not in text


@pytest.mark.parametrize("question", QUESTIONS, ids=NAMES)
async def test_json_is_the_response_of_the_terminal_event(door: Door, question: dict[str, Any]) -> None:
    by_stream, _ = await stream(door, **question)

    status, whole = await door.post(**question)

    assert status == 200
    assert without_chance([whole]) == without_chance([by_stream[-1]["response"]])


@pytest.mark.parametrize("question", QUESTIONS, ids=NAMES)
async def test_the_record_holds_what_the_wire_said(
    door: Door, server: Server, model_server: ModelServer, model: str, question: dict[str, Any]
) -> None:
    async with door.socket() as socket:
        final = check_turn(await socket.turn(model, **question))

    record = await asyncio.to_thread(server.usage, final["id"])
    tokens = server.tokens if model == "scripted" else model_server.tokens
    made = await asyncio.to_thread(tokens.call, final["id"])
    assert record["status"] == final["status"]
    assert record["transport"] == "websocket"
    if final["status"] == "failed":
        # The engine made it, nobody is billed, and it is noted all the same.
        assert final["usage"] is None
        assert record["output_tokens"] == made["output_tokens"] == 30
        return
    assert not record["estimated"]
    usage = final["usage"]
    assert record["input_tokens"] == usage["input_tokens"] == made["prompt_tokens"]
    assert record["cached_tokens"] == usage["input_tokens_details"]["cached_tokens"] == made["cached_tokens"]
    assert record["output_tokens"] == usage["output_tokens"] == made["output_tokens"]
    assert record["reasoning_tokens"] == usage["output_tokens_details"]["reasoning_tokens"] == made["reasoning_tokens"]


async def test_forks_made_at_once_do_not_mix(door: Door, model: str) -> None:
    """Eight continuations of one stored response, from sockets, lanes and HTTP together."""
    first = (await door.post(model, input="One."))[1]

    async def by_http(words: str) -> dict[str, Any]:
        return (await door.post(model, previous_response_id=first["id"], input=words))[1]

    async def by_socket(words: str) -> dict[str, Any]:
        async with door.socket() as socket:
            return response_of(await socket.turn(model, previous_response_id=first["id"], input=words))

    words = [f"Fork {number}." for number in range(8)]
    ways = [by_http, by_socket] * 4
    forks = await asyncio.gather(*(way(text) for way, text in zip(ways, words, strict=True)))

    assert [text_of(fork) for fork in forks] == [f'You said: "{text}"' for text in words]
    for fork, text in zip(forks, words, strict=True):
        further = (await door.post(model, previous_response_id=fork["id"], input="Last."))[1]
        _, items = await door.get(f"{further['id']}/input_items?order=asc")
        said = [item["content"][0]["text"] for item in items["data"]]
        assert said == ["One.", text_of(first), text, text_of(fork), "Last."]


async def test_a_body_over_the_limit_is_too_large(door: Door) -> None:
    text = json.dumps({"model": "scripted", "input": "x" * (16 * 1024 * 1024)})
    async with door.http() as client, client.post("/v1/responses", data=io.BytesIO(text.encode())) as answer:
        body = await answer.json()

    assert (answer.status, body["error"]["code"]) == (413, "payload_too_large")


async def test_a_refusal_before_the_stream_is_a_status(door: Door) -> None:
    async with door.http() as client:
        for body, status, code in (
            ({"stream": True}, 400, "missing_required_parameter"),
            ({"model": "gpt-nobody", "input": "x", "stream": True}, 404, "model_not_found"),
            ({"model": "scripted", "input": "!fail overloaded", "stream": True}, 503, "server_is_overloaded"),
            ({"model": "scripted", "input": "x", "previous_response_id": "resp_x"}, 400, "previous_response_not_found"),
            ({"model": "scripted", "input": [{"type": "message"}]}, 400, "missing_required_parameter"),
        ):
            async with client.post("/v1/responses", json=body) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"]) == (status, code)
                assert error.keys() == {"message", "type", "param", "code"}


async def test_a_plain_get_of_the_collection_is_not_allowed(door: Door) -> None:
    async with door.http() as client, client.get("/v1/responses") as answer:
        body = await answer.json()

    assert answer.status == 405
    assert body["error"]["type"] == "invalid_request_error"


async def test_a_chain_goes_from_door_to_door(door: Door, model: str) -> None:
    async with door.socket() as socket:
        first = response_of(await socket.turn(model, input="What is the weather in Paris?", tools=[WEATHER]))
    status, second = await door.post(model, previous_response_id=first["id"], input=outputs_for(first))
    assert status == 200, second
    async with door.socket() as socket:
        third = response_of(await socket.turn(model, previous_response_id=second["id"], input="Thanks."))
    async with door.http() as client:
        body = {"model": model, "previous_response_id": third["id"], "input": "Bye.", "stream": True}
        async with client.post("/v1/responses", json=body) as answer:
            events = sse_events((await answer.text()).split("\n"))
    fourth = json.loads(events[-2][1])["response"]

    assert text_of(second) == 'The tool returned "sunny, 21 degrees".'
    used = [response["usage"]["input_tokens"] for response in (first, second, third, fourth)]
    assert used[1:] == sorted(set(used[1:]))
    _, items = await door.get(f"{fourth['id']}/input_items?order=asc")
    kinds = [item["type"] for item in items["data"]]
    assert kinds == ["message", "function_call", "function_call_output", *["message"] * 4]
    assert items["data"][1] == calls_in(first)[0]
    for response in (first, second, third, fourth):
        assert await door.get(response["id"]) == (200, response)


async def test_a_stored_child_of_an_unstored_parent_keeps_the_whole_context(door: Door, model: str) -> None:
    async with door.socket() as socket:
        hidden = response_of(await socket.turn(model, input="One.", store=False))
        kept = response_of(await socket.turn(model, previous_response_id=hidden["id"], input="Two.", store=True))

    _, items = await door.get(f"{kept['id']}/input_items?order=asc")
    status, answer = await door.post(model, previous_response_id=kept["id"], input="Three.")

    assert [item["content"][0]["text"] for item in items["data"]] == ["One.", text_of(hidden), "Two."]
    assert (status, text_of(answer)) == (200, 'You said: "Three."')
    assert (await door.get(hidden["id"]))[0] == 404


async def test_an_unstored_response_is_found_nowhere_else(door: Door, model: str) -> None:
    async with door.socket() as socket, door.socket() as other:
        hidden = response_of(await socket.turn(model, input="A secret.", store=False))

        refused = await other.refused(model, previous_response_id=hidden["id"], input="More.", store=False)
        status, body = await door.post(model, previous_response_id=hidden["id"], input="More.")
        found = [await door.get(hidden["id"]), await door.get(f"{hidden['id']}/input_items")]
        deleted = await door.delete(hidden["id"])
        here = response_of(await socket.turn(model, previous_response_id=hidden["id"], input="More.", store=False))

    assert refused["error"]["code"] == body["error"]["code"] == "previous_response_not_found"
    assert status == 400
    assert [status for status, _ in (*found, deleted)] == [404, 404, 404]
    assert here["previous_response_id"] == hidden["id"]
    assert "A secret." not in json.dumps([refused, body, found, deleted])


async def test_a_deleted_response_is_gone_for_every_door(door: Door, model: str) -> None:
    async with door.socket() as socket:
        first = response_of(await socket.turn(model, input="One."))
        second = response_of(await socket.turn(model, previous_response_id=first["id"], input="Two."))

        assert await door.delete(first["id"]) == (
            200,
            {"id": first["id"], "object": "response", "deleted": True},
        )

        # What was continued from it holds its words, and goes with it.
        own = await socket.refused(model, previous_response_id=second["id"], input="Three.")
        status, body = await door.post(model, previous_response_id=first["id"], input="Three.")
    found = [await door.get(response["id"]) for response in (first, second)]

    assert own["error"]["code"] == body["error"]["code"] == "previous_response_not_found"
    assert [status for status, _ in found] == [404, 404]
    assert (await door.delete(first["id"]))[0] == 404


async def test_a_foreign_id_gets_the_bytes_of_an_unknown_one(door: Door, foreign_key: str) -> None:
    stranger = Door(door.server, foreign_key)
    mine = (await door.post(input="Mine."))[1]["id"]
    unknown = "resp_" + "0" * (len(mine) - 5)
    malformed = "not-an-id"

    answers: dict[str, list[str]] = {}
    async with stranger.http() as client, stranger.socket() as socket:
        for name in (mine, unknown, malformed):
            told: list[str] = []
            for call in (
                client.get(f"/v1/responses/{name}"),
                client.get(f"/v1/responses/{name}/input_items"),
                client.delete(f"/v1/responses/{name}"),
                client.post(
                    "/v1/responses", json={"model": "scripted", "previous_response_id": name, "input": "More."}
                ),
            ):
                async with call as answer:
                    told.append(f"{answer.status} {await answer.text()}")
            told.append(json.dumps(await socket.refused(previous_response_id=name, input="More.")))
            answers[name] = [text.replace(name, "ID") for text in told]

    assert answers[mine] == answers[unknown] == answers[malformed]
    assert (await door.get(mine))[0] == 200


async def test_headers_that_clients_read(door: Door) -> None:
    async with door.http() as client:
        body = {"model": "scripted", "input": "hello"}
        async with client.post("/v1/responses", json=body, headers={"OpenAI-Beta": "x=1"}) as answer:
            await answer.read()

    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.content_type == "application/json"
    assert "openai-model" not in answer.headers
