"""What the proxy of docker-compose.yml lets through, in whole and in time, and what not. Skipped where nginx is not."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import websockets.sync.client
from openai import OpenAI
from websockets.exceptions import InvalidStatus

from .chain import client
from .stack import Stack

pytestmark = pytest.mark.stack

MIB = 1024 * 1024


@pytest.fixture
def proxy(stack: Stack) -> str:
    """Its address."""
    if "proxy" not in stack:
        pytest.skip("nginx is not installed here")
    return stack.url("proxy")


@pytest.fixture
def through(proxy: str, key: str) -> Iterator[OpenAI]:
    with client(proxy, key) as opened:
        yield opened


def answer_of(url: str, *, key: str = "", body: bytes | None = None, **headers: str) -> tuple[int, bytes, Any]:
    """(status, body, headers), whatever the status."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"} | headers
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read(), refused.headers


def test_an_event_is_there_before_the_response_has_ended(through: OpenAI, proxy: str, key: str) -> None:
    ended = through.responses.create(model="scripted", input="Hello")
    with through.responses.create(model="scripted", input="!tokens 2000 !rate 20", stream=True) as stream:
        for event in stream:
            if event.type == "response.created":
                running = event.response.id
            if event.type == "response.output_text.delta":
                break
        meanwhile = [answer_of(f"{proxy}/v1/responses/{which}", key=key)[0] for which in (ended.id, running)]

    # What is stored can be asked for once it has ended.
    assert meanwhile == [200, 404]


@pytest.mark.parametrize("mebibytes", [2, 15])
def test_a_large_body_comes_through_and_leaves_nothing_on_the_disk(
    stack: Stack, proxy: str, key: str, mebibytes: int
) -> None:
    body = json.dumps({"model": "none-such", "input": "x" * mebibytes * MIB}).encode()

    status, told, _ = answer_of(f"{proxy}/v1/responses", key=key, body=body)

    assert (status, json.loads(told)["error"]["code"]) == (404, "model_not_found")
    home = stack["proxy"].place.home
    written = [path for kind in ("client_body", "proxy") for path in (home / kind).rglob("*") if path.is_file()]
    assert written == []


def test_of_a_body_over_the_limit_the_error_is_ours(proxy: str, key: str) -> None:
    status, told, headers = answer_of(f"{proxy}/v1/responses", key=key, body=b'"' + b"x" * 16 * MIB + b'"')

    assert status == 413
    assert json.loads(told)["error"]["type"] == "invalid_request_error"
    assert headers["x-request-id"].startswith("req_")


def test_a_frame_of_15_mib_comes_through(proxy: str, key: str) -> None:
    create = {"type": "response.create", "model": "none-such", "input": "x" * 15 * MIB}
    url = proxy.replace("http", "ws") + "/v1/responses"
    headers = {"Authorization": f"Bearer {key}"}

    with websockets.sync.client.connect(url, additional_headers=headers, compression=None) as socket:
        socket.send(json.dumps(create))
        event = json.loads(socket.recv(timeout=60))

    assert (event["type"], event["error"]["code"]) == ("error", "model_not_found")


def test_a_refused_handshake_keeps_its_status_its_body_and_its_headers(proxy: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        websockets.sync.client.connect(
            proxy.replace("http", "ws") + "/v1/responses", additional_headers={"Authorization": "Bearer sk-wrong"}
        )

    response = refused.value.response
    assert response.status_code == 401
    assert json.loads(response.body)["error"]["code"] == "invalid_api_key"
    assert response.headers["x-request-id"].startswith("req_")


def test_a_header_of_24_kib_comes_through(proxy: str, key: str) -> None:
    status, *_ = answer_of(f"{proxy}/v1/models", key=key, **{"x-codex-turn-metadata": "x" * 24 * 1024})

    assert status == 200


def test_metrics_are_not_for_the_world(stack: Stack, proxy: str) -> None:
    token = stack["web1"].service.environment["METRICS_TOKEN"]

    assert answer_of(f"{proxy}/metrics", key=token)[0] == 404
    assert answer_of(f"{stack.url('web1')}/metrics", key=token)[0] == 200
