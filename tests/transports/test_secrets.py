"""What only we may say stays ours: names of inner fields, keys, and ids that nobody can guess."""

import logging
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.test import AsyncClient

from responses_ws.connection.chain import Link
from responses_ws.models import ApiKey, Project, StoredResponse, UsageRecord
from responses_ws.protocol.client_events import ResponseCreate
from responses_ws.runtime.ids import new_id
from responses_ws.serving.admission import Principal
from responses_ws.serving.context import Asked, Context
from responses_ws.stores.base import Place, StoredChain
from responses_ws.testing import ResponsesCommunicator

from .test_views import KeyClient, create, post

WORDS = {
    "tenant",
    "tenant_id",
    "owner",
    "user_id",
    "team_id",
    "litellm_metadata",
    "api_key",
    "is_admin",
    "model_output",
}
INNER = sorted(
    WORDS
    | {name for struct in (Asked, Context, Link, Principal, Place, StoredChain) for name in struct.__struct_fields__}
    | {
        field.attname
        for table in (StoredResponse, UsageRecord, ApiKey, Project)
        for field in table._meta.concrete_fields
    }
)
PUBLIC = {*ResponseCreate.__struct_fields__, "id", "status", "name", "role", "response"}
"""Names that mean something in a request or in an item of its input."""


@pytest.fixture
def client(api_key: ApiKey) -> AsyncClient:
    return KeyClient(api_key.secret)


async def test_no_inner_name_in_a_request_means_anything(client: AsyncClient, project: Project) -> None:
    """A forged field has let tenants past an ownership check elsewhere."""
    other = await Project.objects.acreate(organization=project.organization, name="other")
    forged: dict[str, Any] = {name: other.pk for name in INNER if name not in PUBLIC}

    plain = await create(client, "Hello.")
    told = await create(client, [{"role": "user", "content": "Hello.", **forged}], **forged)
    within = await post(client, {"model": "scripted", "input": "Hello.", "metadata": {"project_id": str(other.pk)}})

    # In their parameters a response says no more than a request of the same words would have it say.
    assert told.keys() == plain.keys()
    assert not {key for key, value in told.items() if value == other.pk}
    assert within.status_code == 200
    owners = {row["project_id"] async for row in UsageRecord.objects.values("project_id")}
    assert owners == {row["project_id"] async for row in StoredResponse.objects.values("project_id")} == {project.pk}


async def test_no_inner_name_on_a_socket_means_anything(api_key: ApiKey, project: Project) -> None:
    other = await Project.objects.acreate(organization=project.organization, name="other")
    forged: dict[str, Any] = {name: other.pk for name in INNER if name not in PUBLIC}
    async with ResponsesCommunicator(api_key.secret) as socket:
        events = await socket.turn(model="scripted", input="Hello.", **forged)

    assert events[-1]["type"] == "response.completed"
    assert {row["project_id"] async for row in UsageRecord.objects.values("project_id")} == {project.pk}


def test_ids_are_random_and_carry_no_time() -> None:
    ids = [new_id("resp") for _ in range(50_000)]

    assert len(set(ids)) == len(ids)
    digits = [name.removeprefix("resp_") for name in ids]
    assert {len(name) for name in digits} == {48}
    # Every place takes every digit about as often: none counts, and none is a clock.
    for place in range(48):
        counts = [sum(name[place] == digit for name in digits[:4000]) for digit in "0123456789abcdef"]
        assert min(counts) > 150 and max(counts) < 350


async def test_a_key_is_in_no_dump_and_no_log(
    client: AsyncClient, api_key: ApiKey, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    assert api_key.secret is not None
    caplog.set_level(logging.DEBUG)
    await create(client, "Hello.")
    await create(client, "!tokens 3", stream=False)
    await post(client, b"no JSON")
    for key in (api_key.secret, api_key.secret + "x"):
        async with ResponsesCommunicator(key, headers={"Authorization": f"Bearer {key}"}) as socket:
            if socket.refusal is None:
                await socket.turn(model="scripted", input="!fail overloaded")

    await sync_to_async(call_command)("dumpdata", "responses_ws")
    dumped = capsys.readouterr().out
    logged = caplog.text + "".join(str(record.__dict__) for record in caplog.records)

    assert api_key.prefix in dumped
    assert api_key.secret not in dumped
    assert api_key.secret not in logged


def test_a_principal_says_nothing_of_its_key(api_key: ApiKey, principal: Principal) -> None:
    assert api_key.secret is not None
    assert api_key.secret not in repr(principal) + repr(api_key) + msgspec.json.encode(principal).decode()


async def test_a_key_in_a_url_opens_nothing(api_key: ApiKey) -> None:
    """It would be in every access log on the way."""
    async with ResponsesCommunicator(None, path=f"/v1/responses?api_key={api_key.secret}") as socket:
        assert socket.refusal is not None and socket.refusal[0] in (401, 404)
    answer = await AsyncClient().get(f"/v1/models?api_key={api_key.secret}&key={api_key.secret}")
    assert answer.status_code == 401


async def test_a_cookie_opens_nothing(api_key: ApiKey, django_user_model: Any) -> None:
    """A page of another site can make a browser send these, and an evil Origin tells."""
    user = await sync_to_async(django_user_model.objects.create_superuser)("boss")
    client = AsyncClient()
    await sync_to_async(client.force_login)(user)
    cookie = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())

    by_http = await client.get("/v1/models")
    async with ResponsesCommunicator(None, headers={"Cookie": cookie}) as socket:
        by_socket = socket.refusal
    async with ResponsesCommunicator(
        api_key.secret, headers={"Cookie": cookie, "Origin": "https://evil.example"}
    ) as socket:
        from_elsewhere = socket.refusal

    assert by_http.status_code == 401
    assert by_socket is not None and by_socket[0] == 401
    assert from_elsewhere is not None and from_elsewhere[0] == 403
