"""Clients that leave in the middle: the engine is freed, and what it made is on record."""

import asyncio
import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.live import ModelServer, Server, TokenLog, until

from .raw import Door, Event

pytestmark = pytest.mark.conformance

ENDLESS = "!tokens 100000 !rate 200"
FLOOD = "!tokens 3000000"
"""More than the kernel's buffers between engine, server and client can hold, so the engine is still at it."""


@pytest.fixture
def tokens(model: str, server: Server, model_server: ModelServer) -> TokenLog:
    """What the engine behind ``model`` says it has made."""
    return server.tokens if model == "scripted" else model_server.tokens


def check_cancelled(
    server: Server, tokens: TokenLog, model: str, response_id: str, seen: int, reason: str = "client_left"
) -> None:
    """The engine was told to stop, and the record holds what it made."""
    call = tokens.call(response_id)
    record = server.usage(response_id)
    assert call["outcome"] == "aborted"
    assert (record["status"], record["reason"]) == ("cancelled", reason)
    assert record["output_tokens"] >= seen
    if model == "scripted":
        assert not record["estimated"]
        assert record["output_tokens"] == call["output_tokens"]
        assert record["input_tokens"] == call["prompt_tokens"]
    else:
        # Chat engines tell their count at the end, which never came; some tokens were still under way.
        assert record["estimated"]
        assert record["output_tokens"] <= call["output_tokens"]


@pytest.mark.parametrize("store", [False, True], ids=["unstored", "stored"])
@pytest.mark.parametrize("farewell", ["reset", "close"])
async def test_a_socket_that_goes_mid_stream(
    door: Door, server: Server, tokens: TokenLog, model: str, farewell: str, store: bool
) -> None:
    async with door.socket() as client:
        await client.create(model, input=ENDLESS, store=store)
        response_id = (await client.receive())["response"]["id"]
        for _ in range(5):
            await client.wait_for("response.output_text.delta")

        if farewell == "reset":
            await client.drop()
        else:
            await client.connection.close()

        check_cancelled(server, tokens, model, response_id, seen=5)
    assert (await door.get(response_id))[0] == 404
    status, body = await door.post(model, previous_response_id=response_id, input="go on")
    assert (status, body["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_stream_that_goes_midway(door: Door, server: Server, tokens: TokenLog, model: str) -> None:
    async with door.http() as client:
        body = {"model": model, "input": ENDLESS, "stream": True}
        async with client.post("/v1/responses", json=body) as answer:
            seen: list[Event] = []
            while len(seen) < 9:
                line = (await answer.content.readline()).decode()
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
            answer.close()

    check_cancelled(server, tokens, model, seen[0]["response"]["id"], seen=5)


async def test_a_client_that_waits_for_json_and_goes(door: Door, server: Server, tokens: TokenLog, model: str) -> None:
    before = {row["response_id"] for row in server.rows("SELECT response_id FROM responses_ws_usagerecord")}
    sql = "SELECT response_id FROM responses_ws_usagerecord WHERE transport = 'http' AND status = 'in_progress'"
    async with door.http() as client:
        request = asyncio.create_task(
            client.post("/v1/responses", json={"model": model, "input": ENDLESS}).__aenter__()
        )
        running = await asyncio.to_thread(
            until, lambda: [row for row in server.rows(sql) if row["response_id"] not in before], "the turn to start"
        )

        request.cancel()
        await asyncio.gather(request, return_exceptions=True)

    check_cancelled(server, tokens, model, running[0]["response_id"], seen=0)


async def test_what_waits_behind_a_running_turn_never_starts(door: Door, server: Server) -> None:
    async with door.socket() as client:
        await client.create(input=ENDLESS, store=False)
        await client.create(input="next", store=False)
        response_id = (await client.receive())["response"]["id"]

        await client.drop()

        record = server.usage(response_id)
    assert server.rows("SELECT id FROM responses_ws_usagerecord WHERE id > ?", record["id"]) == []


async def test_all_lanes_of_a_socket_that_goes_are_freed(door: Door, server: Server) -> None:
    ids: set[str] = set()
    async with door.socket() as client:
        for number in range(16):
            await client.create(stream_id=f"lane-{number}", input=ENDLESS, store=False)
        while len(ids) < 16:
            event = await client.receive()
            ids |= {event["response"]["id"]} if event["type"] == "response.created" else set()

        await client.drop()

    assert {server.usage(response_id)["status"] for response_id in ids} == {"cancelled"}
    assert {server.tokens.call(response_id)["outcome"] for response_id in ids} == {"aborted"}


async def test_a_reader_that_stops_reading_and_goes(door: Door, server: Server, tokens: TokenLog, model: str) -> None:
    """The engine waits for the reader; when the reader goes, the write that waits fails."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.setblocking(False)
        async with door.socket(sock=narrow, max_queue=1) as deaf:
            await deaf.create(model, input=FLOOD, store=False)
            response_id = (await deaf.receive())["response"]["id"]
            # A checkpoint comes after a second, when an engine that nobody holds back would have finished.
            sql = "SELECT id FROM responses_ws_usagerecord WHERE response_id = ? AND output_tokens > 0"
            await asyncio.to_thread(until, lambda: server.rows(sql, response_id), "a checkpoint")

            await deaf.drop()

    check_cancelled(server, tokens, model, response_id, seen=1)


@pytest.mark.parametrize("question", [ENDLESS, FLOOD], ids=["paced", "fast"])
async def test_a_socket_that_the_server_closes_under_a_running_turn(
    door: Door, server: Server, tokens: TokenLog, model: str, question: str
) -> None:
    """The fast turn is in the middle of writing when the socket closes under it."""
    async with door.socket() as client:
        await client.create(model, input=question, store=False)
        response_id = (await client.receive())["response"]["id"]
        await client.wait_for("response.output_text.delta")

        await client.connection.send(b"binary")

        assert await client.close_code() == 1003
    check_cancelled(server, tokens, model, response_id, seen=1, reason="text_frames_only")


async def test_a_socket_that_goes_at_once(door: Door, server: Server) -> None:
    """Twenty times: what is too short for a turn must not leave a record open, nor a traceback behind."""
    for _ in range(20):
        async with door.socket() as client:
            await client.create(input="hello", store=False)
            await client.drop()

    async with door.socket() as client:
        await client.turn(input="hello", store=False)
    until(lambda: not server.rows("SELECT id FROM responses_ws_usagerecord WHERE status = 'in_progress'"), "all to end")
