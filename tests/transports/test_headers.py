"""What every HTTP answer says of itself."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from django.test import AsyncClient

from responses_ws.models import ApiKey
from responses_ws.testing import ResponsesCommunicator


async def post(key: str, **body: Any) -> Any:
    content = msgspec.json.encode({"model": "scripted", "input": "!tokens 5 !rate 50", **body})
    headers = {"Authorization": f"Bearer {key}"}
    return await AsyncClient().post("/v1/responses", content, content_type="application/json", headers=headers)


def milliseconds(answer: Mapping[str, str] | Any) -> float:
    """What it took; both headers say the same."""
    total = phases_of(answer)["total"]
    assert abs(int(answer["openai-processing-ms"]) - total) <= 0.5
    return total


def phases_of(answer: Mapping[str, str] | Any) -> dict[str, float]:
    """Milliseconds by name, in the order of the header."""
    parts = re.findall(r"(\w+);dur=(\d+\.\d)(?:, |$)", answer["server-timing"])
    assert ", ".join(f"{name};dur={value}" for name, value in parts) == answer["server-timing"]
    return {name: float(value) for name, value in parts}


async def test_a_response_says_what_it_took(api_key: ApiKey) -> None:
    answer = await post(api_key.secret)

    # Five tokens at fifty a second.
    assert milliseconds(answer) >= 80
    phases = phases_of(answer)
    assert list(phases) == ["checks", "render", "first_token", "rest", "settle", "total"]
    # Each is rounded.
    assert sum(phases.values()) - phases["total"] <= phases["total"] + 0.5
    assert answer["x-request-id"].startswith("req_")


async def test_a_stream_says_it_before_its_first_event(api_key: ApiKey) -> None:
    answer = await post(api_key.secret, stream=True)
    told = milliseconds(answer)
    events = b"".join([chunk async for chunk in answer.streaming_content])

    assert told >= 0 and events.startswith(b"event: response.created")
    assert list(phases_of(answer)) == ["checks", "total"]
    assert answer["x-request-id"].startswith("req_")


@pytest.mark.parametrize("path", ["responses/resp_none", "models", "docs", "openapi.json"])
@pytest.mark.django_db(transaction=True)
async def test_answers_to_those_without_a_key_say_it_too(path: str) -> None:
    answer = await AsyncClient().get(f"/v1/{path}")

    assert milliseconds(answer) >= 0
    assert answer["x-request-id"].startswith("req_")


async def test_every_answer_has_an_id_of_its_own(api_key: ApiKey) -> None:
    ids = [(await post(api_key.secret, input="one"))["x-request-id"] for _ in range(3)]

    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"{", 400, id="what is no JSON"),
        pytest.param(b'{"model": "none-such", "input": "Hello"}', 404, id="no such model"),
        pytest.param(b'{"model": "scripted", "input": "!fail unavailable"}', 503, id="an engine that is away"),
    ],
)
async def test_errors_say_it_too(api_key: ApiKey, body: bytes, status: int) -> None:
    headers = {"Authorization": f"Bearer {api_key.secret}"}

    answer = await AsyncClient().post("/v1/responses", body, content_type="application/json", headers=headers)

    assert answer.status_code == status
    assert milliseconds(answer) >= 0
    assert answer["x-request-id"].startswith("req_")


async def test_a_socket_says_it_when_it_opens(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        assert milliseconds(socket.headers) >= 0
        assert socket.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        pytest.param("sk-wrong", "/v1/responses", 401, id="a wrong key"),
        pytest.param(None, "/v1/none", 404, id="a wrong path"),
    ],
)
@pytest.mark.django_db(transaction=True)
async def test_a_socket_that_is_refused_says_it(key: str | None, path: str, status: int) -> None:
    async with ResponsesCommunicator(key, path=path) as socket:
        assert socket.refusal is not None and socket.refusal[0] == status

    assert milliseconds(socket.headers) >= 0
    assert socket.headers["x-request-id"].startswith("req_")
