import asyncio
import json
from typing import Any

import pytest
from django.utils import timezone

from responses_ws.models import ApiKey, UsageRecord
from responses_ws.routing import websocket_application
from responses_ws.runtime import background, connections, drain
from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports import authentication

CREATE = {"model": "scripted", "store": False}


def code_of(event: dict[str, Any]) -> tuple[int, str]:
    assert event["type"] == "error"
    return event["status"], event["error"]["code"]


async def test_a_socket_says_nothing_before_it_is_asked(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        assert await socket.is_silent()


async def test_a_chain_lives_in_the_connection(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        first = (await socket.turn(**CREATE, input="one"))[-1]["response"]
        second = (await socket.turn(**CREATE, input="two", previous_response_id=first["id"]))[-1]["response"]
        too_old = await socket.turn(**CREATE, input="three", previous_response_id=first["id"])

    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert code_of(too_old[-1]) == (400, "previous_response_not_found")


async def test_another_socket_of_the_same_key_cannot_continue_it(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket, ResponsesCommunicator(api_key.secret) as other:
        first = (await socket.turn(**CREATE, input="one"))[-1]["response"]
        events = await other.turn(**CREATE, input="two", previous_response_id=first["id"])
        again = await other.turn(**CREATE, input="afresh")

    assert code_of(events[-1]) == (400, "previous_response_not_found")
    assert again[-1]["type"] == "response.completed"


async def test_creates_sent_back_to_back_are_answered_in_order(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        for number in range(5):
            await socket.create(**CREATE, input=f"number {number}")
        turns = [await socket.receive_turn() for _ in range(5)]

    texts = [turn[-1]["response"]["output"][0]["content"][0]["text"] for turn in turns]
    assert texts == [f'You said: "number {number}"' for number in range(5)]
    assert all([event["sequence_number"] for event in turn] == list(range(len(turn))) for turn in turns)


async def test_an_undecodable_create_takes_its_turn_in_the_lane(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 5 !rate 100 slow")
        await socket.create(**CREATE, input=5)
        first, second = await socket.receive_turn(), await socket.receive_turn()

    assert first[-1]["type"] == "response.completed"
    assert code_of(second[0]) == (400, "invalid_type")


async def test_lanes_run_side_by_side_and_are_told_apart(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 50 !rate 25 slow", stream_id="slow")
        await socket.create(**CREATE, input="fast", stream_id="fast")
        first, second = await socket.receive_turn(), await socket.receive_turn()

    assert first[-1]["stream_id"] == "fast"
    assert {event["stream_id"] for event in first + second} == {"fast", "slow"}
    assert "stream_id" not in second[-1]["response"]


@pytest.mark.parametrize(
    ("frame", "answer"),
    [
        pytest.param("{", (400, "invalid_json"), id="not json"),
        pytest.param("[]", (400, "invalid_json"), id="an array"),
        pytest.param('{"type":"session.update"}', (400, "invalid_event"), id="another protocol's event"),
        pytest.param('{"type":"response.create","stream_id":""}', (400, "invalid_stream_id"), id="empty lane"),
        pytest.param('{"type":"response.create"}', (400, "missing_required_parameter"), id="no model"),
        pytest.param(
            '{"type":"response.create","model":"x","input":"hi"}', (404, "model_not_found"), id="unknown model"
        ),
    ],
)
async def test_the_socket_is_usable_after_any_error(api_key: ApiKey, frame: str, answer: tuple[int, str]) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.send(frame)
        error = await socket.receive()
        events = await socket.turn(**CREATE, input="hello")

    assert code_of(error) == answer
    assert events[-1]["type"] == "response.completed"


async def test_a_binary_frame_is_told_and_closed(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.send(b"\x00")

        assert code_of(await socket.receive()) == (400, "invalid_event")
        assert (await socket.receive())["code"] == 1003


async def test_a_frame_over_the_limit_is_closed_with_1009(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"max_frame_bytes": 100}}

    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.send('"' + "x" * 100 + '"')

        assert (await socket.receive())["code"] == 1009


async def test_codex_s_note_gets_no_answer(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.send({"type": "response.processed", "response_id": "resp_x"})

        assert await socket.is_silent()


async def test_a_client_that_leaves_frees_the_engine_and_is_recorded(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 1000 !rate 100 a long answer")
        while (await socket.receive())["type"] != "response.output_text.delta":
            pass
        assert connections.live_sockets() == 1
    await background.settle()

    record = await UsageRecord.objects.aget()
    assert (record.status, record.reason) == ("cancelled", "client_left")
    assert 0 < record.output_tokens < 1000
    assert connections.live_sockets() == 0


async def test_a_turn_that_the_operator_cuts_off_is_recorded_as_such(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 1000 !rate 100 a long answer")
        while (await socket.receive())["type"] != "response.output_text.delta":
            pass

        connections.close(socket.headers["x-request-id"])
        while (await socket.receive())["type"] != "websocket.close":
            pass
    await background.settle()

    record = await UsageRecord.objects.aget()
    assert (record.status, record.reason) == ("cancelled", "closed_by_the_operator")
    assert 0 < record.output_tokens < 1000


async def test_the_age_limit_lets_the_running_turn_finish(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"connection_seconds": 0.7}}

    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 40 !rate 40 slow")
        await socket.create(**CREATE, input="waiting")
        events = [await socket.receive()]
        while events[-1]["type"] != "websocket.close":
            events.append(await socket.receive())

    types = [event["type"] for event in events]
    errors = [code_of(event) for event in events if event["type"] == "error"]
    assert errors == [(400, "websocket_connection_limit_reached")]
    assert types[-3:] == ["response.completed", "error", "websocket.close"]
    assert events[-1]["code"] == 1000


async def test_a_turn_beyond_the_grace_is_cut_off_loudly(api_key: ApiKey, settings: Any) -> None:
    limits = {"connection_seconds": 0.5, "connection_grace_seconds": 0.05}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}

    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 1000 !rate 100 slow")
        events = [await socket.receive()]
        while events[-1]["type"] != "websocket.close":
            events.append(await socket.receive())
    await background.settle()

    assert events[-1]["code"] == 1011
    record = await UsageRecord.objects.aget()
    assert (record.status, record.reason) == ("cancelled", "connection_limit_reached")


async def test_an_idle_socket_is_told_why_it_closes(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"connection_seconds": 0.05}}

    async with ResponsesCommunicator(api_key.secret) as socket:
        assert code_of(await socket.receive()) == (400, "websocket_connection_limit_reached")
        assert (await socket.receive())["code"] == 1000


async def test_a_key_revoked_meanwhile_gets_no_further_turn(api_key: ApiKey, monkeypatch: Any) -> None:
    monkeypatch.setattr(authentication, "SECONDS_CACHED", 0.0)

    async with ResponsesCommunicator(api_key.secret) as socket:
        before = await socket.turn(**CREATE, input="hello")
        await ApiKey.objects.aupdate(revoked_at=timezone.now())
        after = await socket.turn(**CREATE, input="hello")

    assert before[-1]["type"] == "response.completed"
    assert code_of(after[-1]) == (401, "invalid_api_key")


async def test_a_turn_after_the_host_broke_in_our_door_is_a_server_error(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "MODELS": {"broken": {"ENGINE": "nowhere"}}}

    async with ResponsesCommunicator(api_key.secret) as socket:
        events = await socket.turn(model="broken", input="hello")

    assert code_of(events[-1]) == (500, "server_error")
    assert "nowhere" not in events[-1]["error"]["message"]


@pytest.mark.parametrize("frames_taken", [0, 1, 5])
async def test_a_write_after_the_client_has_gone_is_no_fault(
    api_key: ApiKey, caplog: pytest.LogCaptureFixture, frames_taken: int
) -> None:
    """A server's ``send`` may fail before the disconnect has reached us."""
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    failed = asyncio.Event()
    taken: list[str] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "websocket.send":
            if len(taken) == frames_taken:
                failed.set()
                raise OSError("the client has gone")
            taken.append(message["text"])

    headers = [(b"authorization", f"Bearer {api_key.secret}".encode())]
    scope = {"type": "websocket", "path": "/v1/responses", "headers": headers, "subprotocols": []}
    application = asyncio.create_task(websocket_application(scope, incoming.get, send))
    incoming.put_nowait({"type": "websocket.connect"})
    create = {"type": "response.create", **CREATE, "input": "!tokens 1000 !rate 100"}
    incoming.put_nowait({"type": "websocket.receive", "text": json.dumps(create)})
    incoming.put_nowait({"type": "websocket.receive", "text": "not JSON"})
    await failed.wait()
    incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
    await application
    await background.settle()

    assert [record.status async for record in UsageRecord.objects.all()] in ([], ["cancelled"])
    assert len(taken) == frames_taken
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_turn_that_comes_during_a_restart_is_refused_and_its_socket_closes(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.turn(**CREATE, input="one")
        connections.restart()

        refused = await socket.turn(**CREATE, input="two")
        closed = await socket.receive()

    assert [code_of(event) for event in refused] == [(400, "websocket_connection_limit_reached")]
    assert (closed["type"], closed["code"]) == ("websocket.close", 1012)


async def test_an_idle_socket_is_closed_at_its_moment_of_a_restart(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"restart_seconds": 0.05}}
    async with ResponsesCommunicator(api_key.secret) as socket:
        connections.restart()

        told = await socket.receive()
        closed = await socket.receive()

    assert code_of(told) == (400, "websocket_connection_limit_reached")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1012)


async def test_a_running_turn_finishes_during_a_restart_and_then_its_socket_closes(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 10 !rate 50")
        await socket.create(**CREATE, input="waits behind it")
        await socket.receive()
        connections.restart()

        events = await socket.receive_turn()
        refused = await socket.receive()
        closed = await socket.receive()

    assert events[-1]["type"] == "response.completed"
    assert code_of(refused) == (400, "websocket_connection_limit_reached")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1012)


async def test_a_socket_whose_handshake_outlasts_the_beginning_of_a_restart_closes_too(
    api_key: ApiKey, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"restart_seconds": 0.05}}
    monkeypatch.setattr(connections, "is_draining", lambda: True)
    async with ResponsesCommunicator(api_key.secret) as socket:
        told = await socket.receive()
        closed = await socket.receive()

    assert code_of(told) == (400, "websocket_connection_limit_reached")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1012)


async def test_a_draining_server_takes_no_more_sockets(api_key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_is_draining", True)

    async with ResponsesCommunicator(api_key.secret) as socket:
        refused = socket.refusal

    assert refused is not None
    assert (refused[0], refused[1]["error"]["code"]) == (503, "server_is_overloaded")


async def test_a_process_takes_so_many_sockets_and_has_room_again(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"open_sockets": 1}}
    async with ResponsesCommunicator(api_key.secret):
        async with ResponsesCommunicator(api_key.secret) as second:
            refused = second.refusal
    async with ResponsesCommunicator(api_key.secret) as socket:
        events = await socket.turn(**CREATE, input="hello")

    assert refused is not None
    assert (refused[0], refused[1]["error"]["code"]) == (503, "server_is_overloaded")
    assert events[-1]["type"] == "response.completed"


async def test_a_turn_that_is_interrupted_fails_and_is_on_record_as_far_as_it_came(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 1000 !rate 100")
        while (await socket.receive())["type"] != "response.output_text.delta":
            pass

        drain.interrupt_turns()

        events = await socket.receive_turn()

    record = await UsageRecord.objects.aget()
    assert (events[-1]["type"], events[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert (record.status, record.reason) == ("abandoned", "server_restarted")
    assert 0 < record.output_tokens < 1000


async def test_a_drain_waits_until_the_terminal_event_is_out(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 5 !rate 100")
        first = await socket.receive()
        while_running = drain.is_busy()
        await socket.receive_turn()

    assert first["type"] == "response.created"
    assert while_running
    assert not drain.is_busy()
