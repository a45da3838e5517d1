"""JSON that breaks readers, at every door that takes JSON: told off by name, never a 500."""

import json

import msgspec
import pytest
from django.test import AsyncClient

from responses_ws.models import ApiKey
from responses_ws.testing import ResponsesCommunicator
from tests.protocol.test_request import HAZARDS

from .test_views import KeyClient, create, post

PATHS = ("responses", "responses/compact", "responses/input_tokens", "conversations", "conversations/conv_x/items")
LONG = "x" * 100_000
ODD_TEXTS = {
    "a nul": "a\0b",
    "a noncharacter": "\uffff",
    "beyond the first plane": "\U0010ffff",
    "written backwards": "\u202egnp.exe",
    "long": LONG,
    "every control character": "".join(map(chr, range(1, 32))),
}


@pytest.fixture
def client(api_key: ApiKey) -> AsyncClient:
    return KeyClient(api_key.secret)


@pytest.mark.parametrize("path", PATHS)
async def test_no_hazard_breaks_an_endpoint(client: AsyncClient, path: str) -> None:
    for name, (body, _) in HAZARDS.items():
        if name in ("nothing", "blanks") and path in ("conversations", "responses/input_tokens"):
            # There no body is a body.
            continue
        answer = await client.post(f"/v1/{path}", body, content_type="application/json")

        # What is wrong in a field that an endpoint does not have is not looked at.
        assert answer.status_code in (400, 404) or (answer.status_code == 200 and path != "responses"), name
        assert answer.status_code == 200 or answer.json()["error"]["message"]


async def test_no_hazard_breaks_a_socket(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        for number, (name, (body, _)) in enumerate(HAZARDS.items()):
            text = body.decode(errors="replace")
            if body.startswith(b"{") and b'"type"' not in body:
                # As far as it goes, an event.
                text = text.replace("{", '{"type":"response.create",', 1)
            if number % 40 == 39:
                break
            await socket.send(text)
            error = await socket.receive()
            assert (error["type"], error["status"]) == ("error", 400), name
        after = await socket.turn(model="scripted", input="Hello.")

    assert after[-1]["type"] == "response.completed"


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
async def test_odd_texts_are_kept_as_they_are(client: AsyncClient, text: str) -> None:
    """In what is said; and a turn goes on from it."""
    first = await create(client, [{"role": "user", "content": text}])
    items = (await client.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
    second = await post(client, {"model": "scripted", "input": "On.", "previous_response_id": first["id"]})
    made = await client.post(
        "/v1/conversations",
        msgspec.json.encode({"items": [{"role": "user", "content": text}]}),
        content_type="application/json",
    )

    assert items[0]["content"][0]["text"] == text
    assert (second.status_code, made.status_code) == (200, 200)


IN_ITEMS = ("id", "call_id", "name", "role", "status", "phase", "encrypted_content", "type")
IN_REQUESTS = ("model", "user", "safety_identifier", "prompt_cache_key", "instructions", "service_tier")


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
async def test_odd_texts_in_other_fields_break_nothing(client: AsyncClient, text: str) -> None:
    for field in IN_ITEMS:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", field: text}
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
        is_of_calls = field in ("call_id", "name")
        items = [call, output] if is_of_calls else [{"type": "message", "role": "user", "content": "Hi.", field: text}]
        content = json.dumps({"items": items})
        for answer in (
            await post(client, {"model": "scripted", "input": items}),
            await client.post("/v1/conversations", content, content_type="application/json"),
        ):
            assert answer.status_code in (200, 400), (field, answer.content)
    for field in (*IN_REQUESTS, "previous_response_id"):
        answer = await post(client, {"model": "scripted", "input": "Hello.", field: text})
        assert answer.status_code in (200, 400, 404), (field, answer.content)


@pytest.mark.parametrize("text", ["a\0b", "\uffff", "x" * 512], ids=["a nul", "a noncharacter", "long"])
async def test_odd_texts_in_metadata_break_nothing(client: AsyncClient, text: str) -> None:
    metadata = {text[:64]: text}
    content = json.dumps({"metadata": metadata})

    response = await post(client, {"model": "scripted", "input": "Hello.", "metadata": metadata})
    made = await client.post("/v1/conversations", content, content_type="application/json")
    changed = made
    if made.status_code == 200:
        changed = await client.post(f"/v1/conversations/{made.json()['id']}", content, content_type="application/json")

    assert {response.status_code, made.status_code, changed.status_code} <= {200, 400}
    if "\0" in text:
        # PostgreSQL could not keep it.
        assert (made.status_code, made.json()["error"]["param"]) == (400, "metadata")
    else:
        assert made.json()["metadata"] == metadata
