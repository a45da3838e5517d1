"""Lanes of one socket, frame by frame."""

from typing import Any

import pytest

from .grammar import check_turn
from .raw import TERMINAL, Door, Event, Socket, response_of, text_of

pytestmark = pytest.mark.conformance


async def rest(socket: Socket, turns: int) -> dict[str | None, list[list[Event]]]:
    """Events until so many turns have ended: by lane, then by turn, in order of arrival."""
    lanes: dict[str | None, list[list[Event]]] = {}
    while turns:
        event = await socket.receive()
        lane = lanes.setdefault(event.get("stream_id"), [[]])
        lane[-1].append(event)
        if event["type"] in TERMINAL:
            turns -= 1
            lane.append([])
    return {name: ended[:-1] for name, ended in lanes.items()}


async def test_creates_sent_back_to_back_run_one_after_another(door: Door, model: str) -> None:
    async with door.socket() as socket:
        for number in range(10):
            await socket.create(model, input=f"Number {number}.", store=False)
        lanes = await rest(socket, 10)

    assert list(lanes) == [None]
    finals = [check_turn(events) for events in lanes[None]]
    assert [text_of(final) for final in finals] == [f'You said: "Number {number}."' for number in range(10)]
    assert len({final["id"] for final in finals}) == 10


async def test_an_error_takes_its_turn(door: Door) -> None:
    async with door.socket() as socket:
        await socket.create(input="!tokens 30 !rate 200", store=False)
        await socket.create(input=7)
        await socket.create(previous_response_id="resp_x", input="x")
        await socket.create(input="last", store=False)
        lanes = await rest(socket, 4)

    first, wrong, unknown, last = lanes[None]
    check_turn(first)
    assert [wrong[0]["error"]["code"], unknown[0]["error"]["code"]] == ["invalid_type", "previous_response_not_found"]
    assert text_of(check_turn(last)) == 'You said: "last"'


@pytest.mark.parametrize("model", ["scripted", "fake-chat"])
async def test_seventeen_lanes_run_sixteen_at_once(door: Door, model: str) -> None:
    names = [f"lane.{number}-A_z" for number in range(17)]

    async with door.socket() as socket:
        for name in names:
            # Long enough that on any machine the sixteenth has begun before the first has ended.
            await socket.create(model, stream_id=name, input="!tokens 20 !rate 8", store=False)
        lanes = await rest(socket, 17)

    assert sorted(map(str, lanes)) == sorted(names)
    for name, turns in lanes.items():
        (events,) = turns
        assert check_turn(events, stream_id=name)["usage"]["output_tokens"] == 20 + (model == "scripted")
    running: set[str] = set()
    most = 0
    for event in socket.received:
        running |= {event["stream_id"]} if event["type"] == "response.created" else set()
        most = max(most, len(running))
        running -= {event["stream_id"]} if event["type"] in TERMINAL else set()
    assert most == 16


async def test_the_default_lane_runs_beside_named_ones(door: Door) -> None:
    async with door.socket() as socket:
        await socket.create(stream_id="slow", input="!tokens 40 !rate 20", store=False)
        await socket.wait_for("response.output_text.delta")
        await socket.create(input="quick", store=False)
        first = await rest(socket, 1)
        second = await rest(socket, 1)

    assert text_of(check_turn(first[None][0])) == 'You said: "quick"'
    assert second["slow"][0][-1]["type"] == "response.completed"


@pytest.mark.parametrize("stream_id", ["", "x" * 257, "a b", "ä", "a/b", 7, [], {}], ids=repr)
async def test_a_bad_lane_name_is_not_echoed(door: Door, stream_id: Any) -> None:
    async with door.socket() as socket:
        refused = await socket.refused(stream_id=stream_id, input="x")
        after = await socket.turn(stream_id="x" * 256, input="x", store=False)

    assert (refused["status"], refused["error"]["code"], refused["error"]["param"]) == (
        400,
        "invalid_stream_id",
        "stream_id",
    )
    assert "stream_id" not in refused
    check_turn(after, stream_id="x" * 256)


async def test_the_33rd_name_is_refused_and_the_others_go_on(door: Door) -> None:
    async with door.socket() as socket:
        for number in range(32):
            check_turn(
                await socket.turn(stream_id=str(number), input="x", store=False, generate=False), stream_id=str(number)
            )
        refused = await socket.refused(stream_id="one-more", input="x")
        again = await socket.turn(stream_id="31", input="x", store=False)
        default = await socket.turn(input="x", store=False)

    assert (refused["status"], refused["error"]["code"]) == (400, "websocket_stream_limit_reached")
    assert refused["stream_id"] == "one-more"
    check_turn(again, stream_id="31")
    check_turn(default)


async def test_too_many_waiting_creates_are_refused_for_now(door: Door) -> None:
    async with door.socket() as socket:
        first = response_of(await socket.turn(input="x", store=False))
        await socket.create(previous_response_id=first["id"], input="!tokens 20 !rate 10", store=False)
        for _ in range(33):
            await socket.create(input="x", generate=False, store=False)
        refused = await socket.wait_for("error")
        lanes = await rest(socket, 33)

    assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
    assert [check_turn(events)["status"] for events in lanes[None][1:]] == ["completed"] * 32


async def test_a_lane_keeps_its_newest_response_only(door: Door) -> None:
    async with door.socket() as socket:
        first = response_of(await socket.turn(stream_id="a", input="one", store=False))
        second = response_of(
            await socket.turn(stream_id="a", previous_response_id=first["id"], input="two", store=False)
        )
        refused = await socket.refused(stream_id="b", previous_response_id=first["id"], input="x", store=False)
        fork = response_of(
            await socket.turn(stream_id="b", previous_response_id=second["id"], input="three", store=False)
        )

    assert refused["error"]["code"] == "previous_response_not_found"
    assert refused["stream_id"] == "b"
    assert fork["usage"]["input_tokens"] > second["usage"]["input_tokens"]


async def test_a_failed_continuation_takes_its_parent_a_failed_fork_does_not(door: Door, model: str) -> None:
    orphan = [{"type": "function_call_output", "call_id": "call_nobody", "output": ""}]

    async with door.socket() as socket:
        parent = response_of(await socket.turn(model, stream_id="a", input="one", store=False))
        name = parent["id"]
        fork = await socket.refused(model, stream_id="b", previous_response_id=name, input=orphan, store=False)
        alive = response_of(await socket.turn(model, stream_id="c", previous_response_id=name, input="x", store=False))
        same = await socket.refused(model, stream_id="a", previous_response_id=name, input=orphan, store=False)
        gone = await socket.refused(model, stream_id="a", previous_response_id=name, input="two", store=False)

    assert [fork["error"]["code"], same["error"]["code"]] == ["invalid_request_error"] * 2
    assert alive["previous_response_id"] == name
    assert gone["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    "words",
    ["!fail overloaded", "!tokens 20 !break 10"],
    ids=["refused", "broken"],
)
async def test_an_engine_that_fails_takes_an_unstored_parent_not_a_stored_one(
    door: Door, model: str, words: str
) -> None:
    async with door.socket() as socket:
        for store, code in ((False, "previous_response_not_found"), (True, None)):
            parent = response_of(await socket.turn(model, input="one", store=store))
            failed = await socket.turn(model, previous_response_id=parent["id"], input=words, store=store)
            again = await socket.turn(model, previous_response_id=parent["id"], input="two", store=store)

            assert failed[-1]["type"] in ("error", "response.failed")
            assert again[-1].get("error", {}).get("code") == code


async def test_a_response_that_still_runs_cannot_be_continued(door: Door) -> None:
    async with door.socket() as socket:
        await socket.create(stream_id="a", input="!tokens 40 !rate 20", store=True)
        running = (await socket.receive())["response"]["id"]
        await socket.create(stream_id="b", previous_response_id=running, input="x")
        refused = await socket.wait_for("error")
        await rest(socket, 1)
        after = response_of(await socket.turn(stream_id="b", previous_response_id=running, input="x"))

    assert refused["error"]["code"] == "previous_response_not_found"
    assert after["previous_response_id"] == running
