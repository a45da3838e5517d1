"""What happens here when another process has changed something: it is only seen in the tables."""

import asyncio
from typing import Any

import msgspec

from responses_ws.models import ApiKey, ControlMessage
from responses_ws.runtime import dbpool
from responses_ws.stores import rows
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import ResponsesCommunicator
from tests.waiting import until

CREATE = {"model": "scripted"}


async def revoke(key: ApiKey) -> None:
    assert await dbpool.run(ApiKey.objects.filter(pk=key.pk).revoke) == 1


async def test_an_idle_socket_of_a_revoked_key_is_closed(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.turn(**CREATE, input="Hello")

        await revoke(api_key)

        closed = await socket.receive()
        assert (closed["type"], closed["code"]) == ("websocket.close", 1008)


async def test_a_running_turn_of_a_revoked_key_finishes_first(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 100 !rate 100 slow")
        assert (await socket.receive())["type"] == "response.created"

        await revoke(api_key)

        assert (await socket.receive_turn())[-1]["type"] == "response.completed"
        assert (await socket.receive())["code"] == 1008


async def test_a_running_turn_can_be_cut_with_its_key(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "CUT_REVOKED": True}
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 1000 !rate 50 slow")
        assert (await socket.receive())["type"] == "response.created"

        await revoke(api_key)

        while (event := await socket.receive())["type"] != "websocket.close":
            assert event["type"] != "response.completed"
        assert event["code"] == 1008


async def test_a_turn_on_a_revoked_key_is_refused_before_its_cache_lapses(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 200 !rate 100 slow", stream_id="long")
        await socket.receive()
        await revoke(api_key)
        async with asyncio.timeout(10):
            while True:
                await socket.create(**CREATE, input="Hello", stream_id="short")
                while (event := await socket.receive()).get("stream_id") != "short":
                    pass
                if event["type"] == "error":
                    break
                while event["type"] != "response.completed" or event["stream_id"] != "short":
                    event = await socket.receive()

    assert event["status"] == 401


async def test_other_sockets_stay_when_a_key_goes(api_key: ApiKey) -> None:
    other = await dbpool.run(ApiKey.objects.create_with_secret, project=api_key.project, name="other")
    async with ResponsesCommunicator(api_key.secret) as socket, ResponsesCommunicator(other.secret) as kept:
        await revoke(api_key)
        assert (await socket.receive())["code"] == 1008

        assert (await kept.turn(**CREATE, input="Hello"))[-1]["type"] == "response.completed"


async def delete_elsewhere(project_id: int, response_id: str) -> None:
    """As another process does; returns when this one has heard of it."""
    deleted = await dbpool.run(rows.delete, project_id, response_id)
    told = msgspec.to_builtins(deleted, str_keys=True)
    await dbpool.run(ControlMessage.objects.tell, "responses_deleted", project_id=project_id, **told)
    await until(lambda: hot_tier.has_forgotten(project_id, response_id), "the deletion to be heard of")


async def test_what_another_process_deletes_cannot_be_continued_here(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        first = (await socket.turn(**CREATE, input="Hello", store=True))[-1]["response"]
        assert hot_tier.get(api_key.project_id, first["id"]) is not None

        await delete_elsewhere(api_key.project_id, first["id"])

        refused = (await socket.turn(**CREATE, input="And?", previous_response_id=first["id"], store=False))[-1]
        assert hot_tier.get(api_key.project_id, first["id"]) is None

    assert refused["error"]["code"] == "previous_response_not_found"


async def test_nor_can_what_continues_it_unstored(api_key: ApiKey) -> None:
    unstored = {**CREATE, "store": False}
    async with ResponsesCommunicator(api_key.secret) as socket:
        first = (await socket.turn(**CREATE, input="Hello", store=True))[-1]["response"]
        second = (await socket.turn(**unstored, input="And?", previous_response_id=first["id"]))[-1]["response"]
        third = (await socket.turn(**unstored, input="And?", previous_response_id=second["id"]))[-1]["response"]
        await socket.create(
            **unstored, input="!tokens 200 !rate 400", previous_response_id=third["id"], stream_id="running"
        )
        assert (await socket.receive())["type"] == "response.created"

        await delete_elsewhere(api_key.project_id, first["id"])

        fourth = (await socket.receive_turn())[-1]["response"]
        refused = [
            (await socket.turn(**unstored, input="And?", previous_response_id=previous["id"]))[-1]["error"]["code"]
            for previous in (third, fourth)
        ]

    assert fourth["status"] == "completed"
    assert refused == ["previous_response_not_found"] * 2


async def test_rights_that_change_count_from_the_next_turn(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.turn(**CREATE, input="Hello")
        api_key.allowed_models = ["another"]
        await dbpool.run(api_key.save)
        async with asyncio.timeout(10):
            while (event := (await socket.turn(**CREATE, input="Hello"))[-1])["type"] != "error":
                pass

    assert event["error"]["code"] == "model_not_found"
