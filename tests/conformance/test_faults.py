"""Model servers that go wrong: the client gets one end per turn, and its socket goes on."""

import asyncio

import pytest

from tests.fakes.faults import FAULTS
from tests.live import Server

from .grammar import check_turn
from .raw import Door

pytestmark = pytest.mark.conformance

# A refusal that came with these says when to come back, or that the request is at fault; all else is the server's.
REFUSED = {
    "overloaded": (503, "server_is_overloaded"),
    "rate-limited": (429, "rate_limit_exceeded"),
    "overlong": (400, "context_length_exceeded"),
}
GOOD = ("interleaved", "no-usage")
TOOLS = [{"type": "function", "name": name} for name in ("first", "second")]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_turn_has_one_end_whatever_the_engine_does(second: Server, key: str, fault: str) -> None:
    async with Door(second, key).socket() as socket:
        events = await socket.turn(f"fault:{fault}", input="hello", tools=TOOLS, store=False)
        after = await socket.turn(input="hello", store=False)

    check_turn(after)
    last = events[-1]
    if last["type"] == "error":
        assert len(events) == 1
        assert (last["status"], last["error"]["code"]) == REFUSED.get(fault, (last["status"], last["error"]["code"]))
        assert last["status"] in (400, 429, 500, 502, 503)
        return
    final = check_turn(events)
    assert fault not in REFUSED
    record = await asyncio.to_thread(second.usage, final["id"])
    assert record["status"] == final["status"] == ("completed" if fault in GOOD else "failed")


async def test_a_slow_engine_does_not_hold_back_the_beginning(restless: Server, key: str) -> None:
    async with Door(restless, key).socket() as socket:
        await socket.create("fault:slow-head", input="hello", store=False)
        events = [await socket.receive() for _ in range(2)]

    assert [event["type"] for event in events] == ["response.created", "response.in_progress"]


async def test_retry_hints_are_handed_on(second: Server, key: str) -> None:
    async with Door(second, key).socket() as socket:
        refused = await socket.refused("fault:rate-limited", input="hello", store=False)
    async with Door(second, key).http() as client:
        body = {"model": "fault:overloaded", "input": "hello", "stream": True}
        async with client.post("/v1/responses", json=body) as answer:
            await answer.read()

    assert refused["headers"]["retry-after"] == "3"
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
