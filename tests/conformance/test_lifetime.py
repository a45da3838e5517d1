"""What ends a socket, and what outlives it: the age limit, a restart, another process."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.live import ModelServer, Server, until

from .grammar import check_turn
from .raw import TERMINAL, Door, outputs_for, response_of, text_of
from .tools import WEATHER

pytestmark = pytest.mark.conformance

# A turn that takes two seconds begins before the one, and ends before the other, on a busy machine too.
SECONDS = 1.0
GRACE = 4.0


@pytest.fixture(scope="module")
def short(database: Path) -> Iterator[Server]:
    """A server whose sockets live for a moment, not for an hour."""
    limits = {"connection_seconds": SECONDS, "connection_grace_seconds": GRACE}
    with Server(directory=database, name="short", limits=limits) as running:
        yield running
        assert not running.trouble(), running.output()


@pytest.fixture
def own(database: Path, model_server: ModelServer) -> Iterator[Server]:
    """A server for one test alone, which may stop it."""
    with Server(directory=database, name="own", engine_url=model_server.url) as running:
        yield running
        assert not running.trouble(), running.output()


async def test_an_idle_socket_is_told_why_it_closes(short: Server, key: str, figure: Callable[..., None]) -> None:
    async with Door(short, key).socket() as socket:
        opened = time.monotonic()
        await socket.receive()
        age = time.monotonic() - opened
        code = await socket.close_code()

    figure(26, f"limit of {SECONDS} s: seconds to its code", target="the limit +- 1", measured=round(age, 2))
    assert age > SECONDS - 0.2

    (error,) = socket.received
    assert (error["type"], error["status"]) == ("error", 400)
    assert error["error"]["code"] == "websocket_connection_limit_reached"
    assert "stream_id" not in error
    assert code == 1000


async def test_the_server_waits_for_the_client_s_close_frame(short: Server, key: str) -> None:
    """Node's WebSocket reports 1006, and loses what it has not read, where TCP ends right behind the frame."""
    host, port = short.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = [
        "GET /v1/responses HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
        f"Authorization: Bearer {key}",
    ]
    writer.write("\r\n".join([*request, "", ""]).encode())
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(20):
        # A Close frame: final, opcode 8, and the code in its first two bytes.
        await reader.readuntil(b"\x88")
    (length,) = await reader.readexactly(1)
    code = int.from_bytes((await reader.readexactly(length))[:2])

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await reader.read(1)
    # Ours, masked with zeros.
    writer.write(b"\x88\x82\x00\x00\x00\x00" + code.to_bytes(2))

    async with asyncio.timeout(5):
        assert await reader.read() == b""
    assert code == 1000
    writer.close()


async def test_a_running_turn_may_end_and_all_others_are_refused(short: Server, key: str) -> None:
    async with Door(short, key).socket() as socket:
        await socket.create(input="!tokens 30 !rate 15", store=False)
        await socket.create(input="waits", store=False)
        refused = False
        while not refused:
            await socket.create(stream_id="a", input="x", generate=False, store=False)
            while (event := await socket.receive()).get("stream_id") is None or event["type"] not in TERMINAL:
                pass
            refused = event["type"] == "error"
        code = await socket.close_code()

    *turn, waiting = [event for event in socket.received if event.get("stream_id") is None]
    # The token that ends an answer is one.
    assert check_turn(turn)["usage"]["output_tokens"] == 30 + 1
    assert [error["error"]["code"] for error in (event, waiting)] == ["websocket_connection_limit_reached"] * 2
    assert code == 1000


async def test_a_turn_that_outlasts_the_grace_is_ended_and_on_record(short: Server, key: str) -> None:
    async with Door(short, key).socket() as socket:
        await socket.create(input="!tokens 100000 !rate 100", store=False)
        code = await socket.close_code()

    response_id = socket.received[0]["response"]["id"]
    record = await asyncio.to_thread(short.usage, response_id)
    # Not 1000: clients take that for a proper end of the turn.
    assert code == 1011
    assert not [event for event in socket.received if event["type"] in TERMINAL]
    assert record["status"] == "cancelled"
    assert record["output_tokens"] == short.tokens.call(response_id)["output_tokens"]


async def test_a_restart_lets_turns_end_and_finds_chains_again(own: Server, key: str) -> None:
    model = "fake-chat"
    door = Door(own, key)
    async with door.socket() as socket, door.socket() as other:
        first = response_of(await socket.turn(model, input="What is the weather in Paris?", tools=[WEATHER]))
        hidden = response_of(await other.turn(model, input="A secret.", store=False))
        running = {"previous_response_id": first["id"], "input": outputs_for(first)}
        await socket.create(model, stream_id="a", input="!tokens 30 !rate 30", store=True)
        await socket.wait_for("response.output_text.delta")

        own.signal(signal.SIGTERM)

        await asyncio.to_thread(until, lambda: not own.answers(), "the door to close")
        # Idle as it is, it may have been closed already: then it was told the same.
        with contextlib.suppress(ConnectionClosed):
            await other.create(model, input="Too late.", store=False)
        told = len(other.received)
        events = [event for event in socket.received if event.get("stream_id")] + await socket.rest_of_turn()
        codes = [await socket.close_code(), await other.close_code()]
    refused = other.received[told:]
    assert {event["type"] for event in refused} == {"error"}
    assert {event["error"]["code"] for event in refused} == {"websocket_connection_limit_reached"}
    last = check_turn(events, stream_id="a")
    assert last["status"] == "completed"
    assert codes == [1012, 1012]
    assert await asyncio.to_thread(own.stop) == 0

    own.start()

    door = Door(own, key)
    async with door.socket() as socket:
        again = response_of(await socket.turn(model, **running))
        forked = response_of(await socket.turn(model, stream_id="fork", **running))
        gone = await socket.refused(model, previous_response_id=hidden["id"], input="More.")
    status, continued = await door.post(model, previous_response_id=last["id"], input="Go on.")
    assert text_of(again) == text_of(forked) == 'The tool returned "sunny, 21 degrees".'
    assert (status, continued["status"]) == (200, "completed")
    assert gone["error"]["code"] == "previous_response_not_found"
    assert await door.get(first["id"]) == (200, first)
    assert "A secret." not in json.dumps(own.rows("SELECT body FROM responses_ws_storeditem"))


async def test_another_process_continues_a_stored_chain_only(
    door: Door, second: Server, key: str, foreign_key: str, model: str
) -> None:
    elsewhere = Door(second, key)
    async with door.socket() as socket, elsewhere.socket() as other, Door(second, foreign_key).socket() as stranger:
        stored = response_of(await socket.turn(model, input="One."))
        child = response_of(await other.turn(model, previous_response_id=stored["id"], input="Two."))
        grandchild = response_of(await socket.turn(model, previous_response_id=child["id"], input="Three."))
        hidden = response_of(
            await socket.turn(model, previous_response_id=grandchild["id"], input="Four.", store=False)
        )
        refused = [
            await other.refused(model, previous_response_id=hidden["id"], input="Five."),
            await stranger.refused(model, previous_response_id=stored["id"], input="Two."),
        ]

    _, items = await elsewhere.get(f"{grandchild['id']}/input_items?order=asc")
    said = [item["content"][0]["text"] for item in items["data"]]
    assert said == ["One.", text_of(stored), "Two.", text_of(child), "Three."]
    assert [error["error"]["code"] for error in refused] == ["previous_response_not_found"] * 2


async def test_what_one_process_deleted_another_does_not_find(door: Door, second: Server, key: str) -> None:
    other = Door(second, key)
    response_id = (await door.post(input="One."))[1]["id"]

    await door.delete(response_id)

    assert (await other.get(response_id))[0] == 404
    status, body = await other.post(previous_response_id=response_id, input="Two.")
    assert (status, body["error"]["code"]) == (400, "previous_response_not_found")
