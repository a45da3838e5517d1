"""Two hops: a server whose engine is another of our servers, over HTTP, over HTTP with stored responses, and over
WebSockets. The one at the back is reached through a proxy for each way."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.live import Server, until
from tests.proxy import Proxy

from .raw import Door, calls_in, outputs_for, response_of, text_of
from .test_openai_socket import outputs, turn
from .tools import WEATHER

pytestmark = pytest.mark.conformance

WAYS: dict[str, dict[str, Any]] = {
    "http": {},
    "stored": {"STORE": True},
    "websocket": {"TRANSPORT": "websocket", "SUPPORTS": ["tools", "tool_choice", "custom_tools", "images"]},
}
INCREMENTAL = ("stored", "websocket")
EDIT = {"type": "custom", "name": "edit", "description": "Edits a file."}


@pytest.fixture(scope="module")
def proxies(server: Server) -> Iterator[dict[str, Proxy]]:
    with Proxy(server.base_url) as http, Proxy(server.base_url) as stored, Proxy(server.base_url) as websocket:
        yield {"http": http, "stored": stored, "websocket": websocket}


@pytest.fixture(scope="module")
def front(database: Path, proxies: dict[str, Proxy], foreign_key: str) -> Iterator[Server]:
    engines = {
        way: {
            "ENGINE": "responses_ws.engines.responses.Responses",
            "BASE_URL": proxies[way].url,
            "API_KEY": foreign_key,
            **options,
        }
        for way, options in WAYS.items()
    }
    # Patient: a refusal of the upstream comes before the client is told anything, however slow the machine.
    limits = {"created_seconds": 10.0}
    with Server(directory=database, name="front", engines=engines, limits=limits) as running:
        yield running
        assert not running.trouble(), running.output()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """The model at the front that is asked so."""
    return request.param


@pytest.fixture
def proxy(proxies: dict[str, Proxy], way: str) -> Proxy:
    return proxies[way]


@pytest.fixture
def front_door(front: Server, key: str) -> Door:
    return Door(front, key)


def calls_made(server: Server) -> int:
    """How often the engine at the very back has been called, and has ended."""
    return len(server.tokens.calls())


def test_a_tool_loop_of_20_turns(front: Server, server: Server, key: str, way: str, proxy: Proxy) -> None:
    request: dict[str, Any] = {"model": way, "store": False, "tools": [WEATHER], "instructions": "Use the tool."}
    new: Any = [{"role": "user", "content": "!rounds 20 What is the weather in Paris?"}]
    before, responses, sent = calls_made(server), [], []

    with OpenAI(base_url=front.base_url, api_key=key, max_retries=0) as client, client.responses.connect() as socket:
        while new:
            already = proxy.up.passed
            previous = responses[-1].id if responses else None
            ended = turn(socket, **request, previous_response_id=previous, input=new)
            assert ended.type == "response.completed", ended
            responses.append(ended.response)
            sent.append(proxy.up.passed - already)
            new = outputs(ended.response)

    assert len(responses) == calls_made(server) - before == 21
    assert responses[-1].output_text.startswith("The tool returned")
    tokens = [response.usage.input_tokens for response in responses]
    assert tokens == sorted(set(tokens)), "the upstream has the whole context, each time"
    cached = [response.usage.input_tokens_details.cached_tokens for response in responses]
    if way in INCREMENTAL:
        assert all(cached[1:]), "to the upstream it is one chain"
        assert max(sent[2:]) <= 1.05 * min(sent[2:]), sent
    else:
        assert all(later > earlier for earlier, later in zip(sent[1:], sent[2:], strict=False)), sent


async def test_calls_of_custom_tools_and_side_by_side(front_door: Door, way: str) -> None:
    async with front_door.socket() as socket:
        first = response_of(await socket.turn(way, input="!calls 2 Edit a file", tools=[EDIT], store=False))
        again = {"previous_response_id": first["id"], "tools": [EDIT], "store": False}
        second = response_of(await socket.turn(way, input=outputs_for(first, "done"), **again))

    assert [call["type"] for call in calls_in(first)] == ["custom_tool_call"] * 2
    assert all(call["name"] == "edit" and not call["input"].startswith("{") for call in calls_in(first))
    assert "done" in text_of(second)


async def test_a_fork_goes_on_from_the_same_parent(front_door: Door, server: Server, way: str, proxy: Proxy) -> None:
    long = "word " * 4000
    before = calls_made(server)
    async with front_door.socket() as socket:
        parent = response_of(await socket.turn(way, input=long, store=False))["id"]
        already, texts = proxy.up.passed, []
        for lane in ("a", "b"):
            newest = parent
            for said in (f"{lane} one", f"{lane} two"):
                fields = {"stream_id": lane, "previous_response_id": newest, "store": False}
                ended = response_of(await socket.turn(way, input=said, **fields))
                newest = ended["id"]
                texts.append(text_of(ended))
    whole_sends = (proxy.up.passed - already) // len(long)

    assert texts == [f'You said: "{lane} {said}"' for lane in "ab" for said in ("one", "two")]
    assert calls_made(server) - before == 5
    # On a socket only one of two forks can go on; the other is sent whole, once.
    assert whole_sends == {"http": 4, "stored": 0, "websocket": 1}[way]


async def test_what_is_cut_between_two_turns_is_sent_whole_once(
    front_door: Door, server: Server, way: str, proxy: Proxy
) -> None:
    long = "word " * 4000
    before = calls_made(server)
    async with front_door.socket() as socket:
        newest = response_of(await socket.turn(way, input=long, store=False))["id"]
        proxy.cut()
        already = proxy.up.passed
        for said in ("one", "two", "three"):
            ended = response_of(await socket.turn(way, input=said, previous_response_id=newest, store=False))
            newest = ended["id"]
    whole_sends = (proxy.up.passed - already) // len(long)

    assert text_of(ended) == 'You said: "three"'
    assert ended["usage"]["input_tokens"] > 4000
    assert calls_made(server) - before == 4
    assert whole_sends == {"http": 3, "stored": 0, "websocket": 1}[way]


async def test_what_is_cut_in_the_middle_of_an_answer_fails(
    front_door: Door, server: Server, way: str, proxy: Proxy
) -> None:
    before = calls_made(server)
    async with front_door.socket() as socket:
        await socket.create(way, input="!tokens 10000 !rate 200", store=False)
        await socket.wait_for("response.output_text.delta")
        proxy.cut()
        events = await socket.rest_of_turn()
        after = response_of(await socket.turn(way, input="Hi", store=False))

    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert text_of(after) == 'You said: "Hi"'
    until(lambda: calls_made(server) == before + 2, "both calls to end")


async def test_a_steer_stops_the_upstream_and_its_successor_knows_the_context(
    front_door: Door, server: Server, way: str
) -> None:
    before = calls_made(server)
    async with front_door.socket() as socket:
        first = response_of(await socket.turn(way, input="word " * 500, store=False))["id"]
        await socket.create(way, input="!tokens 10000 !rate 200", previous_response_id=first, store=False)
        running = (await socket.wait_for("response.created"))["response"]["id"]
        await socket.wait_for("response.output_text.delta")
        await socket.send({"type": "response.steer", "previous_response_id": running, "input": "stop it"})
        steered = (await socket.rest_of_turn())[-1]["response"]
        follower = response_of(await socket.rest_of_turn())
        last = response_of(await socket.turn(way, input="on", previous_response_id=follower["id"], store=False))

    assert steered["incomplete_details"] == {"reason": "steered"}
    assert text_of(follower) == 'You said: "stop it"'
    assert text_of(last) == 'You said: "on"'
    assert last["usage"]["input_tokens"] > follower["usage"]["input_tokens"] > 500
    calls = until(lambda: server.tokens.calls()[before + 3 :] and server.tokens.calls()[before:], "all calls to end")
    assert [call["outcome"] for call in calls].count("aborted") == 1


async def test_the_upstream_sees_that_a_client_has_left(front_door: Door, server: Server, way: str) -> None:
    before = calls_made(server)
    async with front_door.socket() as socket:
        await socket.create(way, input="!tokens 100000 !rate 100", store=False)
        await socket.wait_for("response.output_text.delta")
        await socket.drop()

        call = until(lambda: server.tokens.calls()[before:], "the engine at the back to be told")[0]

    assert call["outcome"] == "aborted"


async def test_one_long_response(front_door: Door, server: Server, way: str, proxy: Proxy) -> None:
    before, sent = calls_made(server), []
    async with front_door.socket(headers={"OpenAI-Beta": "responses_rollout=v1"}) as socket:
        already = proxy.up.passed
        await socket.create(way, input="!rounds 6 Weather in Oslo?", tools=[WEATHER], store=False)
        response_id = (await socket.receive())["response"]["id"]
        while (event := await socket.receive())["type"] not in ("response.completed", "response.failed"):
            if event["type"] == "response.done":
                sent.append(proxy.up.passed - already)
                already = proxy.up.passed
                made = [
                    {"type": one["type"], "call_id": one["call_id"], "output": "sunny"} for one in event["required"]
                ]
                await socket.send({"type": "response.append", "response_id": response_id, "input": made})

    assert event["type"] == "response.completed", event
    assert len(sent) == 6
    assert calls_made(server) - before == 7
    if way in INCREMENTAL:
        assert max(sent[2:]) <= 1.05 * min(sent[2:]), sent


async def test_no_id_of_the_upstream_is_told(front_door: Door, server: Server, way: str) -> None:
    async with front_door.socket() as socket:
        first = response_of(await socket.turn(way, input="!calls 1 !reason 5 Weather?", tools=[WEATHER], store=False))
        again = {"previous_response_id": first["id"], "tools": [WEATHER], "store": False}
        await socket.turn(way, input=outputs_for(first), **again)
    told = json.dumps(socket.received)
    sql = "SELECT response_id FROM responses_ws_usagerecord ORDER BY id DESC LIMIT 4"
    made = [row["response_id"] for row in server.rows(sql)]

    assert len(made) == 4
    assert [response_id in told for response_id in made].count(True) == 2


async def test_a_refusal_of_the_upstream_is_told_as_ours(front_door: Door, way: str) -> None:
    async with front_door.socket() as socket:
        busy = await socket.turn(way, input="!fail overloaded", store=False)
        too_long = await socket.turn(way, input="!fail context_length", store=False)

    assert (busy[-1]["type"], busy[-1]["error"]["code"]) == ("error", "server_is_overloaded")
    assert (too_long[-1]["type"], too_long[-1]["error"]["code"]) == ("error", "context_length_exceeded")


async def test_a_compacted_chain_is_sent_anew(front_door: Door, way: str) -> None:
    async with front_door.socket() as socket:
        first = response_of(await socket.turn(way, input="word " * 3000, store=False))
        trigger = [{"type": "compaction_trigger"}]
        compacted = response_of(await socket.turn(way, input=trigger, previous_response_id=first["id"], store=False))
        after = response_of(await socket.turn(way, input="on", previous_response_id=compacted["id"], store=False))

    assert [item["type"] for item in compacted["output"]] == ["compaction"]
    assert text_of(after) == 'You said: "on"'


async def test_the_upstream_counts_the_input(front_door: Door, door: Door, way: str) -> None:
    counts = []
    for one, model in ((front_door, way), (door, "scripted")):
        async with one.http() as client:
            body = {"model": model, "input": "word " * 100, "instructions": "Be brief."}
            async with client.post("/v1/responses/input_tokens", json=body) as answer:
                counts.append((await answer.json())["input_tokens"])

    assert counts[0] == counts[1] > 50


@pytest.mark.parametrize("kept_as", ["stored responses", "a conversation"])
async def test_over_http_only_what_is_new_is_sent_too(front_door: Door, way: str, proxy: Proxy, kept_as: str) -> None:
    long = "word " * 4000
    link: dict[str, Any] = {}
    if kept_as == "a conversation":
        async with front_door.http() as client, client.post("/v1/conversations", json={}) as answer:
            link = {"conversation": (await answer.json())["id"]}
    status, response = await front_door.post(way, input=long, **link)
    assert status == 200, response
    already = proxy.up.passed
    for said in ("one", "two", "three"):
        if kept_as == "stored responses":
            link = {"previous_response_id": response["id"]}
        status, response = await front_door.post(way, input=said, **link)
        assert status == 200, response

    assert text_of(response) == 'You said: "three"'
    assert response["usage"]["input_tokens"] > 4000
    assert (proxy.up.passed - already) // len(long) == (3 if way == "http" else 0)
