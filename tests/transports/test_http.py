import asyncio
from typing import Any

import msgspec
import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application

from responses_ws.models import ApiKey, UsageRecord
from responses_ws.routing import http_router
from responses_ws.runtime import background

pytestmark = pytest.mark.django_db(transaction=True)
STAMPS = {b"x-request-id", b"openai-processing-ms", b"server-timing"}
"""Headers that differ between two answers."""


async def theirs(scope: Any, _receive: Any, send: Any) -> None:
    """The host project's application."""
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def asking(method: str, path: str, key: ApiKey | None, **headers: str) -> dict[str, Any]:
    given = {"host": "testserver", "content-type": "application/json", **headers}
    if key is not None:
        given["authorization"] = f"Bearer {key.secret}"
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }


async def answer(application: Any, scope: dict[str, Any], body: bytes = b"") -> tuple[int, dict[bytes, bytes], bytes]:
    client = ApplicationCommunicator(application, scope)
    await client.send_input({"type": "http.request", "body": body})
    head = await client.receive_output(10)
    parts = []
    while True:
        part = await client.receive_output(10)
        parts.append(part["body"])
        if not part.get("more_body"):
            break
    await client.wait(10)
    headers = {name.lower(): value for name, value in head["headers"]}
    assert headers.keys() >= {b"x-request-id"} or head["status"] == 418
    return head["status"], {name: value for name, value in headers.items() if name not in STAMPS}, b"".join(parts)


@pytest.mark.parametrize(
    ("method", "path", "body", "has_key"),
    [
        ("POST", "/v1/responses", {"model": "nobody", "input": "Hi"}, True),
        ("POST", "/v1/responses", {"model": "scripted", "input": "Hi"}, False),
        ("POST", "/v1/codex/responses/", {"model": "nobody", "input": "Hi"}, True),
        ("GET", "/v1/responses", None, True),
        ("GET", "/v1/responses/resp_unknown", None, True),
        ("DELETE", "/v1/conversations/conv_unknown", None, True),
        ("OPTIONS", "/v1/models", None, True),
        ("HEAD", "/v1/models", None, True),
        ("GET", "/v1/models", None, True),
        ("GET", "/v1/openapi.json", None, False),
        ("GET", "/v1/docs", None, False),
    ],
)
async def test_the_answer_is_the_one_that_django_gives(
    api_key: ApiKey, settings: Any, method: str, path: str, body: Any, has_key: bool
) -> None:
    settings.MIDDLEWARE = []
    scope = asking(method, path, api_key if has_key else None)
    content = b"" if body is None else msgspec.json.encode(body)

    ours, djangos = [
        await answer(application, scope, content)
        for application in (http_router(theirs, "v1/"), get_asgi_application())
    ]

    assert ours == djangos and ours[0] != 418


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/unknown", "/admin/", "/responses", "/other/v1/responses"])
async def test_all_other_paths_are_the_projects(path: str) -> None:
    assert await answer(http_router(theirs, "v1/"), asking("GET", path, None)) == (418, {}, path.encode())


async def test_a_prefix_is_meant_letter_by_letter(api_key: ApiKey) -> None:
    router = http_router(theirs, "v1.0/", "")

    answers = [
        await answer(router, asking("GET", path, api_key)) for path in ("/v1.0/models", "/models", "/v1x0/models")
    ]

    assert [status for status, _, _ in answers] == [200, 200, 418]


async def test_the_prefix_is_looked_for_behind_the_root_path(api_key: ApiKey) -> None:
    scope = {**asking("GET", "/gateway/v1/models", api_key), "root_path": "/gateway"}

    assert (await answer(http_router(theirs, "v1/"), scope))[0] == 200


async def test_what_a_view_cannot_handle_is_an_error_object(
    api_key: ApiKey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("responses_ws.transports.base.new_id", lambda kind: 1 / 0)
    client = ApplicationCommunicator(http_router(theirs, "v1/"), asking("GET", "/v1/models", api_key))

    await client.send_input({"type": "http.request", "body": b""})
    head, part = await client.receive_output(10), await client.receive_output(10)

    assert head["status"] == 500 and msgspec.json.decode(part["body"])["error"]["type"] == "server_error"
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_ends_its_turn(api_key: ApiKey, is_stream: bool) -> None:
    body = {"model": "scripted", "input": "!tokens 100000 !rate 1000 hi", "stream": is_stream}
    client = ApplicationCommunicator(http_router(theirs, "v1/"), asking("POST", "/v1/responses", api_key))
    await client.send_input({"type": "http.request", "body": msgspec.json.encode(body)})
    while not await UsageRecord.objects.filter(output_tokens__gt=0).aexists():
        if is_stream:
            await client.receive_output(10)
        await asyncio.sleep(0)

    await client.send_input({"type": "http.disconnect"})
    await client.wait(10)
    await background.settle()

    record = await UsageRecord.objects.aget()
    assert (record.status, record.reason) == ("cancelled", "client_left")


async def test_a_body_that_never_ends_is_not_answered(api_key: ApiKey) -> None:
    client = ApplicationCommunicator(http_router(theirs, "v1/"), asking("POST", "/v1/responses", api_key))
    await client.send_input({"type": "http.request", "body": b"{", "more_body": True})

    await client.send_input({"type": "http.disconnect"})
    await client.wait(10)

    assert await client.receive_nothing() and not await UsageRecord.objects.aexists()
