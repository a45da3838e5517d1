"""The conversations endpoints, and conversations on a socket."""

from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient
from openai.types.conversations import Conversation as SdkConversation
from openai.types.conversations import ConversationDeletedResource, ConversationItem, ConversationItemList
from pydantic import TypeAdapter

from responses_ws.models import ApiKey, Project
from responses_ws.models import ConversationItem as ItemRow
from responses_ws.safety.registry import classifiers
from responses_ws.serving.conversations import hold
from responses_ws.testing import ResponsesCommunicator
from tests.safety.spies import Spy

from .test_views import KeyClient

_item = TypeAdapter(ConversationItem)
PNG = "data:image/png;base64,iVBORw0KGgo="
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "message", "role": "assistant", "content": "hello", "phase": "commentary"},
    {"role": "user", "content": [{"type": "input_image", "image_url": PNG, "detail": "auto"}], "id": "mine"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
    {"type": "function_call_output", "call_id": "c", "output": "done", "status": "completed"},
    {"type": "additional_tools", "role": "developer", "tools": []},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
]


@pytest.fixture
def client(api_key: ApiKey) -> AsyncClient:
    return KeyClient(api_key.secret)


async def call(client: AsyncClient, path: str, body: Any, status: int = 200) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    answer = await client.post(f"/v1/{path}", content, content_type="application/json")
    assert answer.status_code == status, answer.content
    told: dict[str, Any] = answer.json()
    return told


async def make(client: AsyncClient, **fields: Any) -> str:
    return str((await call(client, "conversations", fields))["id"])


@pytest.mark.parametrize("body", [b"", b"{}", b'{"items": null, "metadata": null}'], ids=["nothing", "empty", "nulls"])
async def test_a_conversation_may_begin_with_nothing(client: AsyncClient, body: bytes) -> None:
    made = await call(client, "conversations", body)

    SdkConversation.model_validate(made, strict=True)
    assert made["id"].startswith("conv_") and made["metadata"] == {}
    assert (await client.get(f"/v1/conversations/{made['id']}")).json() == made


async def test_metadata_are_replaced(client: AsyncClient) -> None:
    made = await call(client, "conversations", {"metadata": {"a": "1", "b": "2"}})

    changed = await call(client, f"conversations/{made['id']}", {"metadata": {"c": "3"}})
    emptied = await call(client, f"conversations/{made['id']}/", {"metadata": None})

    assert changed == {**made, "metadata": {"c": "3"}}
    assert emptied["metadata"] == {}


async def test_items_are_kept_in_order_and_told_in_full_form(client: AsyncClient) -> None:
    conversation = await make(client, items=ITEMS[:2])

    added = await call(client, f"conversations/{conversation}/items", {"items": ITEMS[2:]})
    listed = (await client.get(f"/v1/conversations/{conversation}/items", {"order": "asc"})).json()
    newest = (await client.get(f"/v1/conversations/{conversation}/items", {"limit": "1"})).json()

    ConversationItemList.model_validate(listed)
    for item in listed["data"]:
        if item["type"] != "configuration_update":
            _item.validate_python(item)
        single = await client.get(f"/v1/conversations/{conversation}/items/{item['id']}")
        assert single.json() == item
    assert added["data"] == listed["data"][2:] and added["has_more"] is False
    assert (added["first_id"], added["last_id"]) == ("mine", listed["last_id"])
    assert listed["data"][1]["phase"] == "commentary"
    assert newest["data"] == [listed["data"][-1]] and newest["has_more"]
    for told, given in zip(listed["data"][2:], ITEMS[2:], strict=True):
        assert {name: value for name, value in told.items() if name in given} == given


async def test_pages_of_items_add_up(client: AsyncClient) -> None:
    texts = [str(number) for number in range(7)]
    conversation = await make(client, items=[{"role": "user", "content": text} for text in texts])
    url = f"/v1/conversations/{conversation}/items"

    for order, expected in (("asc", texts), ("desc", texts[::-1])):
        seen: list[str] = []
        query = {"limit": "3", "order": order}
        while True:
            page = (await client.get(url, query)).json()
            seen += [item["content"][0]["text"] for item in page["data"]]
            if not page["has_more"]:
                break
            query["after"] = page["last_id"]
        assert seen == expected


async def test_paging_ends_where_ids_repeat(client: AsyncClient) -> None:
    items = [{"role": "user", "content": "x", "id": name} for name in ("a", "b", "a", "c")]
    conversation = await make(client, items=items)

    page = (await client.get(f"/v1/conversations/{conversation}/items", {"after": "a", "order": "asc"})).json()
    back = (await client.get(f"/v1/conversations/{conversation}/items", {"after": "a"})).json()

    assert [item["id"] for item in page["data"]] == ["c"]
    assert back["data"] == []


async def test_an_item_is_taken_out(client: AsyncClient) -> None:
    conversation = await make(client, items=ITEMS[:3], metadata={"a": "b"})

    answer = await client.delete(f"/v1/conversations/{conversation}/items/mine")
    again = await client.delete(f"/v1/conversations/{conversation}/items/mine")
    left = (await client.get(f"/v1/conversations/{conversation}/items")).json()

    assert answer.json() == (await client.get(f"/v1/conversations/{conversation}")).json()
    assert again.status_code == 404 and again.json()["error"]["code"] is None
    assert len(left["data"]) == 2


async def test_a_deleted_conversation_is_gone_and_its_items_can_be_referred_to(client: AsyncClient) -> None:
    conversation = await make(client, items=[{"role": "user", "content": "remember me", "id": "msg_kept"}])

    answer = await client.delete(f"/v1/conversations/{conversation}")
    reference = {"type": "item_reference", "id": "msg_kept"}
    response = await call(client, "responses", {"model": "scripted", "input": [reference]})

    ConversationDeletedResource.model_validate(answer.json(), strict=True)
    assert answer.json() == {"id": conversation, "object": "conversation.deleted", "deleted": True}
    assert "remember me" in response["output"][0]["content"][0]["text"]
    for path in ("", "/items", "/items/msg_kept"):
        assert (await client.get(f"/v1/conversations/{conversation}{path}")).status_code == 404
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 404
    await call(client, "responses", {"model": "scripted", "input": "hi", "conversation": conversation}, 404)


BAD: dict[str, tuple[str, Any, str | None]] = {
    "too many at the beginning": ("conversations", {"items": ITEMS * 3}, "items"),
    "no array": ("conversations", {"items": "hi"}, "items"),
    "a bad item": ("conversations", {"items": [ITEMS[0], {"role": "tool", "content": ""}]}, "items[1].role"),
    "metadata no strings": ("conversations", {"metadata": {"a": 1}}, "metadata"),
    "not json": ("conversations", b"{", None),
    "an unknown reference": ("conversations", {"items": [{"type": "item_reference", "id": "msg_x"}]}, "input"),
    "too many added": ("conversations/ID/items", {"items": ITEMS * 3}, "items"),
    "no items": ("conversations/ID/items", {}, "items"),
    "no metadata": ("conversations/ID", {}, "metadata"),
}


@pytest.mark.parametrize(("path", "body", "param"), BAD.values(), ids=BAD)
async def test_a_bad_body_is_400(client: AsyncClient, path: str, body: Any, param: str | None) -> None:
    conversation = await make(client)

    error = (await call(client, path.replace("ID", conversation), body, 400))["error"]

    assert error["param"] == param
    assert await ItemRow.objects.acount() == 0


async def test_foreign_and_unknown_conversations_get_the_same_bytes(client: AsyncClient, project: Project) -> None:
    mine = await make(client, items=ITEMS[:3])
    other = await Project.objects.acreate(organization=project.organization, name="theirs")
    theirs = await sync_to_async(ApiKey.objects.create_with_secret)(project=other, name="theirs")
    stranger = KeyClient(theirs.secret)

    answers = set()
    for name in (mine, "conv_" + "0" * 48, "no-such"):
        url = f"/v1/conversations/{name}"
        for answer in (
            await stranger.get(url),
            await stranger.delete(url),
            await stranger.get(f"{url}/items"),
            await stranger.get(f"{url}/items/mine"),
            await stranger.delete(f"{url}/items/mine"),
            await stranger.post(url, b'{"metadata": {}}', content_type="application/json"),
            await stranger.post(f"{url}/items", b'{"items": []}', content_type="application/json"),
        ):
            answers.add((answer.status_code, answer.content.decode().replace(name, "ID")))

    assert len(answers) == 1
    assert (await client.get(f"/v1/conversations/{mine}/items")).json()["data"]


async def test_what_is_sealed_is_told_to_whoever_asks(client: AsyncClient) -> None:
    conversation = await make(client, metadata={})
    body = {
        "model": "scripted",
        "input": "!reason 5 hi",
        "conversation": conversation,
        "reasoning": {"summary": "auto"},
    }
    await call(client, "responses", body)
    url = f"/v1/conversations/{conversation}/items"

    plain = (await client.get(url)).json()["data"][1]
    asked = (await client.get(url, {"include[]": "reasoning.encrypted_content"})).json()["data"][1]

    assert plain["type"] == "reasoning" and "encrypted_content" not in plain
    assert asked["encrypted_content"]


async def test_lanes_of_a_socket_cannot_write_one_conversation_at_once(client: AsyncClient, api_key: ApiKey) -> None:
    conversation = await make(client)
    create = {"model": "scripted", "conversation": conversation, "store": False}
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**create, input="!tokens 300 !rate 300 hi", stream_id="a")
        first = [await socket.receive() for _ in range(3)]
        await socket.create(**create, input="me too", stream_id="b")
        while (event := await socket.receive())["stream_id"] == "a":
            first.append(event)
        while first[-1]["type"] != "response.completed":
            first.append(await socket.receive())
        after = await socket.turn(**create, input="and now?", stream_id="b")

    assert (event["type"], event["status"], event["stream_id"]) == ("error", 400, "b")
    assert (event["error"]["code"], event["error"]["param"]) == ("conversation_locked", "conversation")
    assert after[-1]["type"] == "response.completed"
    assert after[-1]["response"]["conversation"] == {"id": conversation}


async def test_a_response_on_a_conversation_cannot_be_steered(client: AsyncClient, api_key: ApiKey) -> None:
    conversation = await make(client)
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(model="scripted", conversation=conversation, input="!tokens 300 !rate 300 hi")
        created = await socket.receive()
        await socket.send(
            {"type": "response.steer", "previous_response_id": created["response"]["id"], "input": "stop"}
        )
        events = await socket.receive_turn()

    failed = next(event for event in events if event["type"] == "response.steer.failed")
    assert failed["error"]["code"] == "steering_not_supported"
    assert failed["steer"]["input"] == "stop"
    assert events[-1]["type"] == "response.completed"


async def test_a_conversation_that_is_being_written_cannot_be_edited(client: AsyncClient, api_key: ApiKey) -> None:
    conversation = await make(client, items=ITEMS[:3])
    held = await hold(api_key.project_id, conversation)
    url = f"/v1/conversations/{conversation}"

    answers = [
        await client.post(f"{url}/items", b'{"items": []}', content_type="application/json"),
        await client.delete(f"{url}/items/mine"),
        await client.delete(url),
    ]
    read = await client.get(f"{url}/items")
    await held.release()
    after = await client.delete(f"{url}/items/mine")

    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [
        (400, "conversation_locked")
    ] * 3
    assert len(read.json()["data"]) == 3
    assert after.status_code == 200


@pytest.mark.parametrize("kind", ["compaction", "reasoning"])
async def test_an_item_that_does_not_open_is_not_taken(client: AsyncClient, kind: str) -> None:
    items = [{"role": "user", "content": "hi"}, {"type": kind, "summary": [], "encrypted_content": "of somebody else"}]

    told = await call(client, "conversations", {"items": items}, status=400)

    assert told["error"]["code"] == "invalid_encrypted_content"
    assert told["error"]["param"] == "items[1].encrypted_content"


async def test_a_compaction_goes_on_in_a_conversation(client: AsyncClient) -> None:
    history = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "many words " * 1000}]
    compaction = await call(client, "responses/compact", {"model": "scripted", "input": history})
    conversation = await make(client, items=compaction["output"])

    response = await call(
        client, "responses", {"model": "scripted", "input": "Two", "conversation": conversation, "store": False}
    )

    assert response["status"] == "completed"
    assert response["usage"]["input_tokens"] < 500


async def test_items_that_a_classifier_refuses_are_not_added_and_redacted_ones_are_redacted(
    client: AsyncClient,
) -> None:
    classifiers.install(Spy({"hunter2": "redact", "bomb": "refuse"}, redacts=True))
    try:
        conversation = await make(client, items=[{"role": "user", "content": "it is hunter2"}])
        refused = await call(
            client, f"conversations/{conversation}/items", {"items": [{"role": "user", "content": "a bomb"}]}, 400
        )
        listed = (await client.get(f"/v1/conversations/{conversation}/items")).json()
    finally:
        classifiers.reset()

    assert refused["error"]["code"] == "content_policy_violation"
    assert [item["content"][0]["text"] for item in listed["data"]] == ["it is [redacted]"]
