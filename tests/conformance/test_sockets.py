"""A socket's manners: handshakes, odd frames, and what closes it."""

import contextlib
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.live import Server

from .grammar import check_turn
from .raw import Door, text_of

pytestmark = pytest.mark.conformance


@pytest.mark.parametrize(
    ("path", "headers", "options"),
    [
        ("", {}, {}),
        ("/", {}, {}),
        ("?model=gpt-x&api-version=2026-01-01", {}, {}),
        ("/?x=%00%ff", {}, {}),
        ("", {"OpenAI-Beta": "responses_websockets=2026-02-04,responses_multi_agent=v1"}, {}),
        ("", {"Content-Type": "application/json", "Accept": "application/json", "OpenAI-Organization": "o"}, {}),
        ("", {}, {"compression": "deflate"}),
        ("", {}, {"user_agent_header": None}),
    ],
    ids=["plain", "slash", "query", "odd-query", "beta", "headers", "deflate", "no-agent"],
)
async def test_handshakes_that_are_accepted(
    door: Door, path: str, headers: dict[str, str], options: dict[str, Any]
) -> None:
    async with door.socket(path=path, headers=headers, **options) as socket:
        final = check_turn(await socket.turn(input="hello", store=False))

    assert text_of(final) == 'You said: "hello"'


async def test_a_subprotocol_is_not_chosen(door: Door) -> None:
    async with door.socket(subprotocols=["realtime", "openai-insecure-api-key.x"]) as socket:
        check_turn(await socket.turn(input="hello", store=False))

    assert socket.connection.subprotocol is None
    assert socket.connection.response is not None
    assert "openai-model" not in socket.connection.response.headers


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "invalid_api_key"),
        ({"Authorization": "Bearer sk-nobody"}, 401, "invalid_api_key"),
        ({"Authorization": "Basic c2s6"}, 401, "invalid_api_key"),
        ({"Authorization": "Bearer \xff"}, 401, "invalid_api_key"),
        ({"Authorization": "Bearer sk-nobody", "Origin": "https://elsewhere.example"}, 403, "origin_not_allowed"),
    ],
    ids=["none", "wrong", "basic", "odd", "origin"],
)
async def test_handshakes_that_are_refused(server: Server, headers: dict[str, str], status: int, code: str) -> None:
    logged = len(server.output())

    with pytest.raises(InvalidStatus) as caught:
        async with connect(server.socket_url, additional_headers=headers):
            pass

    response = caught.value.response
    assert response.status_code == status
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.body is not None
    error = json.loads(response.body)["error"]
    assert error["code"] == code
    assert error.keys() == {"message", "type", "param", "code"}
    assert " ERROR " not in server.output()[logged:]


@pytest.mark.parametrize("path", ["/x", "//", "/../models"])
async def test_other_paths_are_not_found(door: Door, server: Server, path: str) -> None:
    logged = len(server.output())

    with pytest.raises(InvalidStatus) as caught:
        async with door.socket(path=path):
            pass

    response = caught.value.response
    assert response.status_code == 404
    assert response.body is not None
    assert json.loads(response.body)["error"]["code"] == "not_found"
    assert " ERROR " not in server.output()[logged:]


FRAMES = {
    "empty": ("", "invalid_json"),
    "text": ("hello", "invalid_json"),
    "cut": ('{"type":"response.create"', "invalid_json"),
    "array": ('[{"type":"response.create"}]', "invalid_json"),
    "string": ('"response.create"', "invalid_json"),
    "null": ("null", "invalid_json"),
    "deep": ('{"type":"response.create","input":' + "[" * 100_000 + "]" * 100_000 + "}", "invalid_json"),
    "no-type": ("{}", "invalid_event"),
    "unknown-type": ('{"type":"session.update","session":{}}', "invalid_event"),
    "number-type": ('{"type":7}', "invalid_event"),
    "cancel": ('{"type":"response.cancel"}', "invalid_event"),
    "nested": ('{"type":"response.create","response":{"model":"scripted","input":"x"}}', "missing_required_parameter"),
    "no-model": ('{"type":"response.create","input":"x"}', "missing_required_parameter"),
    "no-input": ('{"type":"response.create","model":"scripted"}', "missing_required_parameter"),
    "wrong-type": ('{"type":"response.create","model":"scripted","input":7}', "invalid_type"),
    "background": (
        '{"type":"response.create","model":"scripted","input":"x","background":true}',
        "unsupported_parameter",
    ),
    "not-a-number": ('{"type":"response.create","model":"scripted","input":"x","temperature":NaN}', "invalid_json"),
    "surrogate": ('{"type":"response.create","model":"scripted","input":"\\ud800"}', "invalid_json"),
    "orphan": (
        '{"type":"response.create","model":"scripted","input":[{"type":"function_call_output","call_id":"c","output":""}]}',
        "invalid_request_error",
    ),
}


@pytest.mark.parametrize(("frame", "code"), FRAMES.values(), ids=FRAMES)
async def test_a_frame_that_is_wrong_is_answered_by_one_error(door: Door, frame: str, code: str) -> None:
    async with door.socket() as socket:
        await socket.connection.send(frame)
        error = await socket.receive()
        after = await socket.turn(input="hello", store=False)

    assert (error["type"], error["status"]) == ("error", 400)
    assert error["error"]["code"] == code
    assert error["error"].keys() >= {"type", "code", "message", "param"}
    assert isinstance(error["sequence_number"], int)
    assert "stream_id" not in error
    check_turn(after)


async def test_a_message_in_fragments_is_one_frame(door: Door) -> None:
    text = json.dumps({"type": "response.create", "model": "scripted", "input": "grüße", "store": False})

    async with door.socket() as socket:
        await socket.connection.send(text)
        whole = check_turn(await socket.rest_of_turn())
        await socket.connection.send([text[index : index + 7] for index in range(0, len(text), 7)])
        pieces = check_turn(await socket.rest_of_turn())

    assert text_of(whole) == text_of(pieces) == 'You said: "grüße"'


async def test_type_may_come_last(door: Door) -> None:
    async with door.socket() as socket:
        await socket.send({"model": "scripted", "input": "hello", "store": False, "type": "response.create"})
        check_turn(await socket.rest_of_turn())


async def test_a_binary_frame_is_told_off_and_closes(door: Door) -> None:
    async with door.socket() as socket:
        await socket.connection.send(b'{"type":"response.create"}')
        error = await socket.receive()

        assert await socket.close_code() == 1003
    assert (error["type"], error["status"], error["error"]["code"]) == ("error", 400, "invalid_event")


async def test_text_that_is_not_utf8_closes_with_1007(door: Door) -> None:
    async with door.socket() as socket:
        await socket.connection.send(b'{"type":"response.create","input":"\xff"}', text=True)

        assert await socket.close_code() == 1007


async def test_a_message_as_large_as_the_limit_is_read(door: Door) -> None:
    async with door.socket() as socket:
        frame = {"type": "response.create", "model": "fake-chat", "input": [], "store": False}
        room = 16 * 1024 * 1024 - len(json.dumps(frame)) - 100
        half = {"role": "user", "content": "x" * (room // 2 - 100)}
        # In messages: to make four million ids of it takes the scripted model seconds.
        final = check_turn(await socket.turn("fake-chat", input=[half, half], store=False))

    assert final["status"] == "completed"
    assert final["usage"]["input_tokens"] > 4_000_000


@pytest.mark.parametrize("size", [16 * 1024 * 1024 + 1, 40 * 1024 * 1024], ids=["just", "far"])
async def test_a_message_over_the_limit_closes_with_1009(door: Door, size: int) -> None:
    async with door.socket() as socket:
        # The rest of the message is not read any more.
        with contextlib.suppress(ConnectionClosed):
            await socket.connection.send("x" * size)

        assert await socket.close_code() == 1009
    assert socket.received == []


async def test_a_steer_of_nothing_comes_back_with_its_input(door: Door) -> None:
    given = [{"type": "message", "role": "user", "content": "Stop."}]

    async with door.socket() as socket:
        await socket.send({"type": "response.steer", "previous_response_id": "resp_x", "input": given})
        event = await socket.receive()

    assert event["type"] == "response.steer.failed"
    assert event["error"]["code"] == "response_not_found"
    assert event["steer"] == {"previous_response_id": "resp_x", "input": given}
    assert event["sequence_number"] == 0


async def test_the_server_says_nothing_first(door: Door) -> None:
    async with door.socket() as socket:
        pong = await socket.connection.ping()
        await pong

        final = await socket.turn(input="hello", store=False)

    assert socket.received == final
    assert final[0]["type"] == "response.created"


async def test_a_client_that_closes_is_answered(door: Door) -> None:
    async with door.socket() as socket:
        await socket.turn(input="hello", store=False)

        await socket.connection.close(1000)

    assert socket.connection.close_code == 1000


async def test_a_long_history_comes_in_one_request(door: Door, model: str) -> None:
    """2,000 items in one request, each replayed as it came."""
    items = [{"type": "message", "role": "user", "content": f"Line {number}."} for number in range(1999)]

    async with door.socket() as socket:
        final = check_turn(await socket.turn(model, input=[*items, {"role": "user", "content": "Last."}]))
        refused = await socket.refused(model, input=[*items, *items[:2]])

    assert text_of(final) == 'You said: "Last."'
    assert refused["error"]["param"] == "input"
