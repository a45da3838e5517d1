"""Clients that send more than anybody needs, and what their neighbours notice of it: nothing."""

import contextlib
import json

import pytest
from websockets.exceptions import ConnectionClosed

from tests.waiting import until

from .grammar import check_turn
from .raw import Door

pytestmark = pytest.mark.conformance

NOTE = '{"type":"response.processed"}'
# As a client's frame, under a mask of zeros. Source: RFC 6455, section 5.2.
PROCESSED = bytes((0x81, 0x80 | len(NOTE))) + bytes(4) + NOTE.encode()


@pytest.mark.parametrize("count", [5000, 100_000], ids=["many", "very many"])
async def test_a_flood_of_frames_is_told_once_and_closed(door: Door, count: int) -> None:
    async with door.socket() as neighbour, door.socket() as socket:
        if count > 5000:
            # All in one piece: the client library would take its time.
            socket.connection.transport.write(PROCESSED * count)
        else:
            with contextlib.suppress(ConnectionClosed):
                for _ in range(count):
                    await socket.connection.send(NOTE)
        during = await neighbour.turn(input="hello", store=False)

        # For an answer to its Close, which would be behind all the rest, the server waits ten seconds.
        await until(lambda: socket.connection.protocol.close_rcvd, "the server's Close")
        assert socket.connection.protocol.close_rcvd.code == 1008
        with contextlib.suppress(ConnectionClosed):
            await socket.drop()
            while True:
                await socket.receive()
    # Very many at once end it before any of them is looked at.
    assert len(socket.received) == 1 or (count > 5000 and not socket.received)
    for error in socket.received:
        assert (error["type"], error["status"], error["error"]["code"]) == ("error", 429, "rate_limit_exceeded")
    check_turn(during)


async def test_a_flood_of_faults_is_answered_and_closed(door: Door) -> None:
    async with door.socket() as socket:
        with contextlib.suppress(ConnectionClosed):
            for _ in range(60):
                await socket.connection.send("no JSON")

        assert await socket.close_code() == 1008
    codes = [event["error"]["code"] for event in socket.received]
    assert codes == ["invalid_json"] * (len(codes) - 1) + ["rate_limit_exceeded"]
    assert 50 <= len(codes) <= 60


async def test_steers_as_fast_as_a_client_may_are_all_answered(door: Door) -> None:
    steer = {"type": "response.steer", "previous_response_id": "resp_x", "input": "Stop."}
    async with door.socket() as socket:
        for _ in range(150):
            await socket.connection.send(json.dumps(steer))
        answers = [await socket.receive() for _ in range(150)]
        after = await socket.turn(input="hello", store=False)

    assert {event["type"] for event in answers} == {"response.steer.failed"}
    check_turn(after)
