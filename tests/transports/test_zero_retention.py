"""Projects and keys for which nothing is kept, whatever their requests say."""

import asyncio
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient

from responses_ws.models import ApiKey, Conversation, Project, StoredItem, StoredResponse
from responses_ws.testing import ResponsesCommunicator

from .test_views import KeyClient, create, post


@pytest.fixture(params=["key", "project"])
def zdr_key(request: pytest.FixtureRequest, api_key: ApiKey) -> ApiKey:
    marked = api_key if request.param == "key" else api_key.project
    marked.zero_retention = True
    marked.save()
    return api_key


@pytest.fixture
def client(zdr_key: ApiKey) -> AsyncClient:
    return KeyClient(zdr_key.secret)


async def is_nothing_kept() -> bool:
    return not (await StoredResponse.objects.aexists() or await StoredItem.objects.aexists())


async def test_a_request_that_asks_to_be_stored_is_not(client: AsyncClient) -> None:
    response = await create(client, "A secret.", store=True)
    gone = await client.get(f"/v1/responses/{response['id']}")
    onward = await post(client, {"model": "scripted", "input": "More.", "previous_response_id": response["id"]})

    assert response["store"] is False
    assert gone.status_code == 404
    assert onward.json()["error"]["code"] == "previous_response_not_found"
    assert await is_nothing_kept()


async def test_a_socket_goes_on_from_its_own_memory(zdr_key: ApiKey) -> None:
    async with ResponsesCommunicator(zdr_key.secret) as socket:
        first = (await socket.turn(model="scripted", input="A secret."))[-1]["response"]
        second = (await socket.turn(model="scripted", input="More.", previous_response_id=first["id"]))[-1]["response"]

    assert (first["store"], second["store"], second["status"]) == (False, False, "completed")
    assert await is_nothing_kept()


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"background": True}, "background"), ({"conversation": "conv_x"}, "conversation")],
    ids=["background", "conversation"],
)
async def test_what_has_to_be_kept_is_refused(client: AsyncClient, fields: dict[str, Any], param: str) -> None:
    answer = await post(client, {"model": "scripted", "input": "A secret.", **fields})

    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("zero_retention", param)
    assert await is_nothing_kept()


async def test_conversations_are_read_and_deleted_but_not_written(client: AsyncClient, project: Project) -> None:
    made = await Conversation.objects.acreate(id="conv_before", project=project)
    body = msgspec.json.encode({"items": [{"role": "user", "content": "A secret."}], "metadata": {"a": "A secret."}})

    refused = [
        await client.post(f"/v1/conversations{path}", body, content_type="application/json")
        for path in ("", "/conv_before", "/conv_before/items")
    ]
    read = await client.get("/v1/conversations/conv_before")
    deleted = await client.delete("/v1/conversations/conv_before")

    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {(400, "zero_retention")}
    assert (read.status_code, deleted.status_code) == (200, 200)
    await sync_to_async(made.refresh_from_db)()
    assert made.metadata == {}


async def test_the_mark_counts_on_the_next_turn_of_an_open_socket(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        before = (await socket.turn(model="scripted", input="Hello."))[-1]["response"]
        api_key.zero_retention = True
        await api_key.asave()
        after = before
        async with asyncio.timeout(20):
            while after["store"]:
                after = (await socket.turn(model="scripted", input="Hello."))[-1]["response"]

    assert before["store"] is True
