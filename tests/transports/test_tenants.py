"""Ids that are not yours: whatever is behind them, the answer and the work for it are the same, byte for byte."""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.db.backends.signals import connection_created
from django.test import AsyncClient
from django.utils import timezone

from responses_ws.models import (
    ApiKey,
    Chain,
    Conversation,
    ConversationItem,
    Organization,
    Project,
    StoredItem,
    StoredResponse,
)
from responses_ws.runtime.writer import writer
from responses_ws.stores import conversations, rows
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import ResponsesCommunicator

from .test_views import KeyClient, create

Call = Callable[[AsyncClient, str], Awaitable[Any]]

KINDS = ("foreign", "of another project", "unknown", "expired", "deleted", "without an owner", "wrong prefix")
"""The database has to be asked about these. Whoever sends a malformed one knows by itself that it is."""
MALFORMED = "not.an.id"
OF_THE_PROCESS = (
    "controlmessage",
    "websocketshare",
    'FROM "responses_ws_budget"',
    'WHERE "responses_ws_organization"."is_prepaid"',
)
"""What a process asks every few seconds belongs to nobody's question."""
NOBODY = 10**9
"""No project has this id."""


def body_of(fields: dict[str, Any]) -> Call:
    """A call that names the id as these fields say, in the place of ``ID``."""

    async def call(client: AsyncClient, name: str) -> Any:
        body = msgspec.json.encode({"model": "scripted", "input": "More.", **fields}).replace(b"ID", name.encode())
        return await client.post("/v1/responses", body, content_type="application/json")

    return call


def request(method: str, path: str, body: Any = None) -> Call:
    async def call(client: AsyncClient, name: str) -> Any:
        content = msgspec.json.encode(body).replace(b"ID", name.encode()) if body is not None else b""
        return await client.generic(method, f"/v1/{path}".replace("ID", name), content, "application/json")

    return call


ITEM = {"type": "message", "role": "user", "content": "More."}
REFERENCE = {"type": "item_reference", "id": "ID"}
PREVIOUS = {"model": "scripted", "input": "More.", "previous_response_id": "ID"}

RESPONSES: dict[str, Call] = {
    "continue": body_of({"previous_response_id": "ID"}),
    "continue without keeping": body_of({"previous_response_id": "ID", "store": False}),
    "continue as a stream": body_of({"previous_response_id": "ID", "stream": True}),
    "continue in the background": body_of({"previous_response_id": "ID", "background": True}),
    "compact": request("POST", "responses/compact", PREVIOUS),
    "count": request("POST", "responses/input_tokens", PREVIOUS),
    "get": request("GET", "responses/ID"),
    "tail": request("GET", "responses/ID?stream=true&starting_after=0"),
    "list its input": request("GET", "responses/ID/input_items"),
    "cancel": request("POST", "responses/ID/cancel"),
    "delete": request("DELETE", "responses/ID"),
}
CONVERSATIONS: dict[str, Call] = {
    "go on": body_of({"conversation": "ID"}),
    "go on, by an object": body_of({"conversation": {"id": "ID"}}),
    "count": request("POST", "responses/input_tokens", {"model": "scripted", "input": "x", "conversation": "ID"}),
    "get": request("GET", "conversations/ID"),
    "name": request("POST", "conversations/ID", {"metadata": {"a": "b"}}),
    "delete": request("DELETE", "conversations/ID"),
    "list": request("GET", "conversations/ID/items"),
    "add": request("POST", "conversations/ID/items", {"items": [ITEM]}),
    "get an item": request("GET", "conversations/ID/items/msg_1"),
    "delete an item": request("DELETE", "conversations/ID/items/msg_1"),
}
ITEMS: dict[str, Call] = {
    "refer to it": body_of({"input": [REFERENCE]}),
    "refer to it and count": request("POST", "responses/input_tokens", {"model": "scripted", "input": [REFERENCE]}),
    "refer to it in a new conversation": request("POST", "conversations", {"items": [REFERENCE]}),
    "refer to it in one's own": request("POST", "conversations/conv_mine/items", {"items": [REFERENCE]}),
    "get from one's own": request("GET", "conversations/conv_mine/items/ID"),
    "delete from one's own": request("DELETE", "conversations/conv_mine/items/ID"),
    "page behind it": request("GET", "conversations/conv_mine/items?after=ID"),
}


@contextmanager
def counted() -> Iterator[list[str]]:
    """The SQL of all threads meanwhile."""
    statements: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if not any(one in sql for one in OF_THE_PROCESS):
            statements.append(sql)
        return execute(sql, params, many, context)

    def wrap(sender: Any, connection: Any, **_kwargs: Any) -> None:
        if note not in connection.execute_wrappers:
            connection.execute_wrappers.append(note)

    connection_created.connect(wrap)
    # Its thread has a connection already; the next one has a new one.
    writer.stop()
    try:
        yield statements
    finally:
        connection_created.disconnect(wrap)


@contextmanager
def constraints_off() -> Iterator[None]:
    """Rows may belong to nobody, which no program of ours could bring about."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            yield
            cursor.execute("SET session_replication_role = DEFAULT")
        return
    with connection.constraint_checks_disabled():
        yield


@pytest.fixture
def client(api_key: ApiKey) -> AsyncClient:
    return KeyClient(api_key.secret)


@pytest.fixture
def ids(project: Project) -> dict[str, dict[str, str]]:
    """By what it is an id of, and by kind; all of them were made by asking, and in one's own sight would be found."""
    sibling = Project.objects.create(organization=project.organization, name="other")
    stranger = Project.objects.create(organization=Organization.objects.create(name="Rivals"), name="agents")
    Conversation.objects.create(id="conv_mine", project=project)
    owners = {
        "foreign": stranger,
        "of another project": sibling,
        "expired": project,
        "deleted": project,
        "without an owner": project,
    }
    made: dict[str, dict[str, str]] = {"resp": {}, "conv": {}, "msg": {}}
    for number, (kind, owner) in enumerate(owners.items()):
        name = f"{number:048x}"
        chain = Chain.objects.create(id=f"{number:032x}", project=owner, root=f"{number:032x}", length=1)
        item = {"type": "message", "id": f"msg_{name}", "role": "user", "content": []}
        StoredItem.objects.create(chain=chain, position=0, item_id=item["id"], body=msgspec.json.encode(item).decode())
        now = timezone.now()
        StoredResponse.objects.create(
            id=f"resp_{name}",
            project=owner,
            chain=chain,
            input_end=1,
            end=1,
            model="scripted",
            status="completed",
            body='{"id": "x", "status": "completed", "background": true, "error": null, "model": "scripted"}',
            expires_at=now - timedelta(days=1) if kind == "expired" else now + timedelta(days=1),
            deleted_at=now if kind == "deleted" else None,
        )
        # Conversations do not expire: that kind of theirs is a deleted one, too.
        is_gone = kind in ("deleted", "expired")
        conversation = Conversation.objects.create(
            id=f"conv_{name}", project=owner, length=1, deleted_at=now if is_gone else None
        )
        if not is_gone:
            # The items of a deleted one may still be referred to.
            ConversationItem.objects.create(
                conversation=conversation, position=0, item_id=f"msg_{name}c", body=msgspec.json.encode(item).decode()
            )
        for prefix in made:
            made[prefix][kind] = f"{prefix}_{name}"
    with constraints_off():
        name = made["resp"]["without an owner"].removeprefix("resp_")
        for rows in (
            StoredResponse.objects.filter(id=f"resp_{name}"),
            Chain.objects.filter(responses__id=f"resp_{name}"),
            Conversation.objects.filter(id=f"conv_{name}"),
        ):
            rows.update(project_id=NOBODY)
    for prefix in made:
        made[prefix] |= {"unknown": f"{prefix}_{'f' * 48}", "wrong prefix": f"zzzz_{'0' * 48}", "malformed": MALFORMED}
    return made


@pytest.fixture(autouse=True)
def rows_without_an_owner_go(transactional_db: None) -> Iterator[None]:
    yield
    with constraints_off():
        for model in (StoredResponse, ConversationItem, Conversation, StoredItem, Chain):
            model.objects.all().delete()


def told(answer: Any, name: str) -> tuple[int, str, list[tuple[str, str]]]:
    """Status, body and headers, but for the id itself and what differs with every answer."""
    varying = ("x-request-id", "openai-processing-ms", "server-timing", "content-length")
    headers = sorted((key, value) for key, value in answer.headers.items() if key.lower() not in varying)
    assert not answer.streaming
    return answer.status_code, answer.content.decode().replace(name, "ID"), headers


async def compare(client: AsyncClient, call: Call, names: dict[str, str]) -> tuple[int, str]:
    """Ask for each kind; gives the status and body that all had."""
    answers: dict[str, Any] = {}
    works: dict[str, int] = {}
    # The first question of all warms up what a process looks up once.
    await call(client, names["unknown"])
    for kind, name in names.items():
        with counted() as statements:
            answers[kind] = told(await call(client, name), name)
        works[kind] = len(statements)
    assert answers == dict.fromkeys(answers, answers["unknown"])
    assert {kind: works[kind] for kind in KINDS} == dict.fromkeys(KINDS, works["unknown"])
    assert works["malformed"] <= works["unknown"]
    status, body, _ = answers["unknown"]
    return status, body


@pytest.mark.parametrize("call", RESPONSES.values(), ids=RESPONSES)
async def test_a_response_that_is_not_yours(client: AsyncClient, ids: dict[str, dict[str, str]], call: Call) -> None:
    status, body = await compare(client, call, ids["resp"])

    assert status in (400, 404)
    assert "not found" in body


@pytest.mark.parametrize("call", CONVERSATIONS.values(), ids=CONVERSATIONS)
async def test_a_conversation_that_is_not_yours(
    client: AsyncClient, ids: dict[str, dict[str, str]], call: Call
) -> None:
    status, body = await compare(client, call, ids["conv"])

    assert status == 404
    assert "not found" in body


@pytest.mark.parametrize("call", ITEMS.values(), ids=ITEMS)
async def test_an_item_that_is_not_yours(client: AsyncClient, ids: dict[str, dict[str, str]], call: Call) -> None:
    status, body = await compare(client, call, ids["msg"])

    assert status in (400, 404)
    assert re.search("not found|No such", body)


async def test_an_id_that_is_not_yours_on_a_socket(api_key: ApiKey, ids: dict[str, dict[str, str]]) -> None:
    """Creates, steers and appends; an item reference and a conversation travel as over HTTP."""
    create = {"type": "response.create", "model": "scripted", "input": "More."}
    events: dict[str, Callable[[str], dict[str, Any]]] = {
        "resp create": lambda name: {**create, "previous_response_id": name},
        "resp steer": lambda name: {"type": "response.steer", "previous_response_id": name, "input": "More."},
        "resp append": lambda name: {"type": "response.append", "response_id": name, "input": [ITEM]},
        "conv create": lambda name: {**create, "conversation": name},
        "msg create": lambda name: {**create, "input": [{"type": "item_reference", "id": name}]},
    }
    async with ResponsesCommunicator(api_key.secret, headers={"OpenAI-Beta": "responses_rollout=v1"}) as socket:
        for what, event in events.items():
            answers, works = {}, {}
            names = ids[what.split()[0]]
            await socket.send(event(names["unknown"]))
            await socket.receive()
            for kind, name in names.items():
                with counted() as statements:
                    await socket.send(event(name))
                    answers[kind] = msgspec.json.encode(await socket.receive()).decode().replace(name, "ID")
                works[kind] = len(statements)

            assert len(set(answers.values())) == 1, (what, answers)
            assert {kind: works[kind] for kind in KINDS} == dict.fromkeys(KINDS, works["unknown"]), what
            assert works["malformed"] <= works["unknown"]


async def test_what_is_yours_is_found(client: AsyncClient, ids: dict[str, dict[str, str]]) -> None:
    """The same questions are answered otherwise for one's own: nothing here is refused for another reason."""
    mine = await create(client, "Hello.")
    hot_tier.clear()

    # A stream would have to be read, and goes the way of the first.
    asked = {what: call for what, call in RESPONSES.items() if what != "continue as a stream"}
    statuses = {what: (await call(client, mine["id"])).status_code for what, call in asked.items()}
    there = {what: (await call(client, "conv_mine")).status_code for what, call in list(CONVERSATIONS.items())[:5]}

    # Tails and cancellations are for background responses.
    assert {what for what, status in statuses.items() if status != 200} == {"tail", "cancel"}
    assert set(there.values()) == {200}


async def test_rows_without_an_owner_are_nobodys(ids: dict[str, dict[str, str]]) -> None:
    """Not even a project can come to own them by having no id."""
    for project_id in (None, 0, -1):
        assert await sync_to_async(rows.load)(project_id, ids["resp"]["without an owner"]) is None  # type: ignore[arg-type]
        assert await sync_to_async(conversations.find)(project_id, ids["conv"]["without an owner"]) is None  # type: ignore[arg-type]
