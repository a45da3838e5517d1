"""Signs of life: from a server whose limits are scaled down to a moment."""

import asyncio
import json

import pytest

from tests.live import Server

from .grammar import check_turn
from .raw import Door, sse_events

pytestmark = pytest.mark.conformance

SLOW = "!tokens 3 !ttft 600 !stall 1"


def signs_of_life(kinds: list[str]) -> tuple[int, int]:
    """(repeated ``response.in_progress`` before the first delta, and after it)."""
    first = kinds.index("response.output_text.delta")
    repeated = [index for index, kind in enumerate(kinds) if kind == "response.in_progress"][1:]
    before = sum(index < first for index in repeated)
    return before, len(repeated) - before


async def test_a_socket_is_told_while_the_engine_is_silent(restless: Server, key: str) -> None:
    async with Door(restless, key).socket() as socket:
        events = await socket.turn(input=SLOW, store=False)

    check_turn(events)
    before, after = signs_of_life([event["type"] for event in events])
    assert before >= 1
    assert after >= 1


async def test_a_stream_is_told_while_the_engine_is_silent(restless: Server, key: str) -> None:
    async with Door(restless, key).http() as client:
        body = {"model": "scripted", "input": SLOW, "stream": True}
        async with client.post("/v1/responses", json=body) as answer:
            text = await answer.text()

    events = [json.loads(data) for _, data in sse_events(text.split("\n"))[:-1]]
    check_turn(events)
    before, after = signs_of_life([event["type"] for event in events])
    assert before >= 1
    assert after >= 1


async def test_every_waiting_lane_is_told_of_its_own(restless: Server, key: str) -> None:
    async with Door(restless, key).socket() as socket:
        for lane in ("a", "b"):
            await socket.create(stream_id=lane, input=SLOW, store=False)
        ended = 0
        while ended < 2:
            ended += (await socket.receive())["type"] == "response.completed"

    for lane in ("a", "b"):
        events = [event for event in socket.received if event["stream_id"] == lane]
        check_turn(events, stream_id=lane)
        assert signs_of_life([event["type"] for event in events])[0] >= 1


async def test_nothing_is_said_between_turns(restless: Server, key: str) -> None:
    async with Door(restless, key).socket() as socket:
        await socket.turn(input="hello", store=False)
        told = len(socket.received)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await socket.receive()

    assert len(socket.received) == told
