"""The fifteen things that servers of this protocol get wrong most easily. One test a trap, named after it."""

import asyncio
import json
from typing import Any

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from responses_ws.models import ApiKey
from responses_ws.testing import ResponsesCommunicator
from tests.live import Server

from .grammar import check_turn
from .raw import TERMINAL, Door, calls_in, outputs_for, response_of, text_of
from .test_codex_frames import COMMON, HEADERS
from .tools import WEATHER

pytestmark = pytest.mark.conformance

ORPHAN = [{"type": "function_call_output", "call_id": "call_nobody", "output": ""}]
_event = TypeAdapter(ResponsesServerEvent)


@pytest.mark.parametrize(
    "frame",
    [
        "no JSON",
        '{"type":"no.such.event"}',
        '{"type":"response.create"}',
        '{"type":"response.create","model":"scripted","input":"x","stream_id":""}',
        '{"type":"response.create","model":"scripted","input":"x","previous_response_id":"resp_none"}',
        '{"type":"response.create","model":"nobody","input":"x"}',
        '{"type":"response.create","model":"scripted","input":"!fail rate_limited"}',
        '{"type":"response.create","model":"scripted","input":[{"type":"function_call_output","call_id":"c","output":""}]}',
    ],
    ids=["json", "event", "model", "lane", "parent", "unknown", "limit", "orphan"],
)
async def test_trap_1_error_shape(door: Door, frame: str) -> None:
    """Nested, with an integer status and a string code: a flat error leaves Codex waiting for five minutes."""
    async with door.socket() as socket:
        await socket.connection.send(frame)
        error = await socket.receive()

    _event.validate_python(error)
    assert error["type"] == "error"
    assert type(error["status"]) is int and 400 <= error["status"] < 500
    assert type(error["sequence_number"]) is int
    assert all(isinstance(error["error"][name], str) for name in ("type", "code", "message"))
    assert not {"code", "message", "param"} & error.keys()


async def test_trap_2_one_end_per_request(door: Door) -> None:
    """Before ``response.created`` an error, after it a failed response: never both, and nothing behind either."""
    async with door.socket() as socket:
        refused = await socket.turn(input="!fail overloaded", store=False)
        broken = await socket.turn(input="!tokens 20 !break 10", store=False)
        whole = await socket.turn(input="hello", store=False)
        await (await socket.connection.ping())

    assert [event["type"] for event in refused] == ["error"]
    assert check_turn(broken)["status"] == "failed"
    assert check_turn(whole)["status"] == "completed"
    # Every frame was JSON: no [DONE] among them, and none that belongs to no turn.
    assert socket.received == refused + broken + whole


async def test_trap_3_sequence_numbers_are_per_response(door: Door) -> None:
    """Each response counts from 0: not the connection, and not the lane."""
    async with door.socket() as socket:
        for lane in ("a", "b", "a", None):
            await socket.create(input="!tokens 10 !rate 200", store=False, stream_id=lane)
        ended = 0
        while ended < 4:
            ended += (await socket.receive())["type"] in TERMINAL

    numbers: dict[str, list[int]] = {}
    current: dict[str | None, str] = {}
    for event in socket.received:
        if event["type"] == "response.created":
            current[event.get("stream_id")] = event["response"]["id"]
        numbers.setdefault(current[event.get("stream_id")], []).append(event["sequence_number"])
    assert len(numbers) == 4
    assert all(counted == list(range(len(counted))) for counted in numbers.values())


async def test_trap_4_nothing_before_created(restless: Server, key: str) -> None:
    """No hello and no sign of life before it, whatever the engine does; after it ``response.in_progress`` again."""
    async with Door(restless, key).socket() as socket:
        await (await socket.connection.ping())
        silent_at_first = list(socket.received)
        events = await socket.turn(input="!tokens 2 !ttft 600", store=False)

    kinds = [event["type"] for event in events]
    check_turn(events)
    assert silent_at_first == []
    assert kinds[0] == "response.created"
    assert kinds.index("response.output_item.added") >= 3
    assert set(kinds[1 : kinds.index("response.output_item.added")]) == {"response.in_progress"}


async def test_trap_5_the_slot_is_filled_before_the_terminal_event(door: Door, model: str) -> None:
    """A fast client continues in the same millisecond."""
    async with door.socket() as socket:
        last = response_of(await socket.turn(model, input="zero", store=False))
        for number in range(30):
            last = response_of(
                await socket.turn(model, previous_response_id=last["id"], input=str(number), store=number % 2 == 0)
            )

    assert last["status"] == "completed"


async def test_trap_6_one_response_a_lane_and_eviction(door: Door) -> None:
    """A lane keeps its newest response; its own failure takes that, a failed fork does not; stored ones are found."""
    code = "previous_response_not_found"
    async with door.socket() as socket, door.socket() as other:
        first = response_of(await socket.turn(stream_id="a", input="one", store=False))["id"]
        second = response_of(await socket.turn(stream_id="a", previous_response_id=first, input="two", store=False))
        name = second["id"]
        older = await socket.refused(stream_id="b", previous_response_id=first, input="x", store=False)
        elsewhere = await other.refused(previous_response_id=name, input="x", store=False)
        by_http = (await door.post(previous_response_id=name, input="x"), await door.get(name))
        fork = await socket.refused(stream_id="b", previous_response_id=name, input=ORPHAN, store=False)
        alive = response_of(await socket.turn(stream_id="c", previous_response_id=name, input="x", store=False))
        same = await socket.refused(stream_id="a", previous_response_id=name, input=ORPHAN, store=False)
        gone = await socket.refused(stream_id="a", previous_response_id=name, input="x", store=False)
        stored = response_of(await socket.turn(stream_id="a", input="one", store=True))["id"]
        await socket.refused(stream_id="a", previous_response_id=stored, input=ORPHAN)
        found = response_of(await socket.turn(stream_id="a", previous_response_id=stored, input="x"))

    assert [error["error"]["code"] for error in (older, elsewhere, gone)] == [code] * 3
    assert by_http[0][1]["error"]["code"] == code and by_http[1][0] == 404
    assert [error["status"] for error in (fork, same)] == [400, 400]
    assert (alive["previous_response_id"], found["previous_response_id"]) == (name, stored)


async def test_trap_7_a_fork_binds_its_parent_before_in_progress(door: Door) -> None:
    """Clients advance the source lane as soon as they see the fork's ``response.in_progress``."""
    async with door.socket() as socket:
        parent = response_of(await socket.turn(stream_id="a", input="A long story.", store=False))
        await socket.create(stream_id="b", previous_response_id=parent["id"], input="!tokens 20 !rate 100", store=False)
        while (await socket.receive())["type"] != "response.in_progress":
            pass
        for _ in range(2):
            await socket.create(stream_id="a", input="elsewhere", store=False)
        ends = []
        while len(ends) < 3:
            event = await socket.receive()
            ends += [event] if event["type"] in TERMINAL else []
        fork = next(event["response"] for event in ends if event["stream_id"] == "b")
        after = response_of(
            await socket.turn(stream_id="b", previous_response_id=fork["id"], input="!tokens 1", store=False)
        )
        late = await socket.refused(stream_id="c", previous_response_id=parent["id"], input="x", store=False)

    assert [event["type"] for event in ends] == ["response.completed"] * 3
    assert fork["usage"]["input_tokens"] > parent["usage"]["input_tokens"]
    assert after["usage"]["input_tokens"] > fork["usage"]["input_tokens"]
    assert late["error"]["code"] == "previous_response_not_found"


async def test_trap_8_queue_do_not_refuse(door: Door) -> None:
    """A busy lane and the 17th turn wait; only so many; and no refusal closes the socket."""
    async with door.socket() as socket:
        await socket.create(stream_id="0", input="!tokens 10 !rate 4", store=False)
        for number in range(1, 17):
            await socket.create(stream_id=str(number), input="!tokens 10 !rate 10", store=False)
        for _ in range(33):
            await socket.create(stream_id="0", input="!tokens 1", store=False)
        ends = []
        while len(ends) < 50:
            event = await socket.receive()
            ends += [event] if event["type"] in TERMINAL else []
        after = await socket.turn(input="hello", store=False)

    refused = [event for event in ends if event["type"] == "error"]
    assert [event["type"] for event in ends if event["type"] != "error"] == ["response.completed"] * 49
    assert [(event["status"], event["stream_id"]) for event in refused] == [(429, "0")]
    check_turn(after)


async def test_trap_9_be_liberal_in(door: Door, model: str) -> None:
    """What agents send that no document asks for. Strictness locks them out."""
    nothing = dict.fromkeys(
        ("instructions", "max_output_tokens", "metadata", "temperature", "top_p", "truncation", "user", "text")
        + ("previous_response_id", "conversation", "prompt", "top_logprobs", "safety_identifier", "service_tier")
    )
    items = [
        {"role": "developer", "content": "Be brief.", "id": "msg_00000000-0000-4000-8000-000000000000"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
        {"type": "something_new", "whatever": {"it": "is"}},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}], "status": "completed"},
    ]
    async with door.socket(path="?model=other&api-version=1", headers={**HEADERS, "OpenAI-Beta": "x=y"}) as socket:
        await socket.send({"type": "response.processed", "response_id": "resp_x"})
        request = {**nothing, **COMMON, "tool_choice": "none", "stream_options": {"x": 1}, "unheard_of": [1]}
        first = response_of(await socket.turn(model, **request, input=items))
        for empty in ("", []):
            more = {**request, "previous_response_id": first["id"]}
            first = response_of(await socket.turn(model, **more, input=empty))
        missing = {**request, "previous_response_id": first["id"]}
        last = response_of(await socket.turn(model, **missing))

    assert last["status"] == "completed"


async def test_trap_10_the_warm_up_is_a_full_response(door: Door, model: str) -> None:
    """With an id, an empty output and usage; it takes the lane's slot and is continued, even with nothing new."""
    async with door.socket() as socket:
        before = response_of(await socket.turn(model, input="before", store=False))
        events = await socket.turn(model, input="Weather in Oslo?", tools=[WEATHER], generate=False, store=False)
        warm = check_turn(events)
        evicted = await socket.refused(model, previous_response_id=before["id"], input="x", stream_id="b")
        again = response_of(
            await socket.turn(model, previous_response_id=warm["id"], input=[], tools=[WEATHER], store=False)
        )

    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
    assert warm["usage"]["input_tokens"] == warm["usage"]["total_tokens"] > 0
    assert evicted["error"]["code"] == "previous_response_not_found"
    assert [call["name"] for call in calls_in(again)] == ["get_weather"]


async def test_trap_11_nothing_but_context_is_inherited(door: Door) -> None:
    """Neither instructions, tools nor model; and an unknown parent is a 400."""
    settings = {"instructions": "Be brief.", "tools": [WEATHER], "temperature": 0.5, "metadata": {"a": "b"}}
    async with door.socket() as socket:
        first = response_of(await socket.turn(input="Weather in Oslo?", **settings, store=False))
        second = response_of(await socket.turn(previous_response_id=first["id"], input=outputs_for(first), store=False))
        no_model = {"type": "response.create", "previous_response_id": second["id"], "input": "x", "store": False}
        await socket.send(no_model)
        (refused,) = await socket.rest_of_turn()
        unknown = await socket.refused(previous_response_id="resp_" + "0" * 48, input="x")

    assert (second["instructions"], second["tools"], second["temperature"]) == (None, [], 1.0)
    assert second["metadata"] == {}
    assert "sunny" in text_of(second)
    assert (refused["status"], refused["error"]["param"]) == (400, "model")
    assert (unknown["status"], unknown["error"]["code"]) == (400, "previous_response_not_found")


async def test_trap_12_be_exact_out(door: Door, model: str) -> None:
    """Items are replayed verbatim by those who received them; what is absent is left out, what is promised is there."""
    tool = {"type": "function", "name": "get_weather"}
    async with door.socket() as socket:
        events = await socket.turn(model, input="!reason 3 Weather in Oslo?", tools=[tool], store=False)
        first = check_turn(events)
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        replay = [{"role": "user", "content": "Weather in Oslo?"}, *done, *outputs_for(first)]
        events = await socket.turn(model, input=replay, tools=[tool], store=False)
        second = check_turn(events)

    assert done == first["output"]
    assert first["tools"] == [{**tool, "description": None, "parameters": None, "strict": True}]
    assert type(first["created_at"]) is int
    assert first["text"]["verbosity"] is not None
    assert first["usage"]["input_tokens_details"].keys() >= {"cached_tokens", "cache_write_tokens"}
    assert not {"phase", "encrypted_content"} & {name for item in done for name in item}
    (part,) = second["output"][-1]["content"]
    assert (part["annotations"], part["logprobs"]) == ([], [])
    deltas = [event for event in events if event["type"].startswith("response.output_text.")]
    assert all(event["logprobs"] == [] for event in deltas)


async def test_trap_13_refusals_are_http_and_messages_are_large(
    door: Door, server: Server, api_key: ApiKey, settings: Any
) -> None:
    """401 with a body on the upgrade, 426 where sockets are off, and frames of more than 1 MiB."""
    with pytest.raises(InvalidStatus) as caught:
        async with connect(server.socket_url):
            pass
    async with door.socket() as socket:
        final = check_turn(await socket.turn(input="x" * 3_000_000, store=False))
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "WEBSOCKET": False}
    async with ResponsesCommunicator(api_key.secret) as refused:
        refusal = refused.refusal

    response = caught.value.response
    assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert response.body is not None and json.loads(response.body)["error"]["message"]
    assert final["status"] == "completed"
    assert refusal is not None and refusal[0] == 426


async def chunks_of(door: Door, body: dict[str, Any]) -> tuple[str, list[bytes]]:
    """(head, chunks) of a streamed answer, as they are on the wire."""
    host, port = door.server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    request = [
        "POST /v1/responses HTTP/1.1",
        f"Host: {host}",
        f"Authorization: {door.headers['Authorization']}",
        f"Content-Length: {len(content)}",
    ]
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join([*request, "", ""]).encode() + content)
    chunks: list[bytes] = []
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        while size := int(await reader.readline(), 16):
            chunks.append(await reader.readexactly(size))
            await reader.readline()
    writer.close()
    return head, chunks


async def test_trap_14_sse_framing(door: Door, model: str) -> None:
    """Events whole in their chunks, line feeds only, no ids; a failure before the first event is a status."""
    body = {"model": model, "input": "!tokens 40 !rate 200", "stream": True}
    head, chunks = await chunks_of(door, body)
    async with door.http() as client, client.post("/v1/responses", json={**body, "input": ORPHAN}) as refused:
        error = await refused.json()

    text = b"".join(chunks).decode()
    assert "content-type: text/event-stream" in head.lower()
    assert len(chunks) > 3
    assert all(chunk.startswith((b"event: ", b"data: ")) and chunk.endswith(b"\n\n") for chunk in chunks)
    assert "\r" not in text
    lines = {line.partition(":")[0] for line in text.split("\n")}
    assert lines == {"event", "data", ""}
    assert text.endswith("\n\ndata: [DONE]\n\n")
    assert (refused.status, refused.content_type) == (400, "application/json")
    assert error["error"].keys() == {"message", "type", "param", "code"}


async def test_trap_15_retries_cost_money(door: Door, server: Server) -> None:
    """A permanent fault is a 400 before anything began; who has gone is not generated for; hints say when to return."""
    async with door.socket() as socket:
        assert socket.connection.response is not None
        headers = socket.connection.response.headers
        overlong = await socket.refused(input="!fail context_length", store=False)
        limited = await socket.refused(input="!fail rate_limited", store=False)
        await socket.create(input="!tokens 100000 !rate 200", store=False)
        response_id = (await socket.wait_for("response.created"))["response"]["id"]
        await socket.wait_for("response.output_text.delta")
        await socket.drop()
        made = await asyncio.to_thread(server.tokens.call, response_id)
        record = await asyncio.to_thread(server.usage, response_id)

    assert "openai-model" not in headers
    assert (overlong["status"], overlong["error"]["code"]) == (400, "context_length_exceeded")
    assert (limited["status"], limited["headers"]) == (429, {"retry-after": "1"})
    assert made["outcome"] == "aborted"
    assert (record["status"], record["output_tokens"]) == ("cancelled", made["output_tokens"])
