from typing import Any

import pytest
from channels.routing import URLRouter
from django.urls import re_path

from responses_ws.models import ApiKey
from responses_ws.routing import websocket_application, websocket_router, websocket_urlpatterns
from responses_ws.testing import ResponsesCommunicator


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param({}, "invalid_api_key", id="no key"),
        pytest.param({"Authorization": "Bearer sk-wrong"}, "invalid_api_key", id="wrong key"),
        pytest.param({"Authorization": "Basic abc"}, "invalid_api_key", id="another scheme"),
    ],
)
@pytest.mark.django_db(transaction=True)
async def test_a_bad_key_is_a_401_on_the_upgrade(headers: dict[str, str], code: str) -> None:
    async with ResponsesCommunicator(headers=headers) as socket:
        assert socket.refusal is not None
        status, body = socket.refusal

    assert status == 401
    assert (body["error"]["type"], body["error"]["code"]) == ("invalid_request_error", code)


@pytest.mark.django_db(transaction=True)
async def test_a_server_that_cannot_refuse_tells_and_closes() -> None:
    async with ResponsesCommunicator("sk-wrong", can_refuse=False) as socket:
        error, closed = await socket.receive(), await socket.receive()

    assert (error["status"], error["error"]["code"], closed["code"]) == (401, "invalid_api_key", 1008)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://h:99999", "http://["])
async def test_a_page_of_another_site_is_refused(api_key: ApiKey, origin: str) -> None:
    async with ResponsesCommunicator(api_key.secret, headers={"Origin": origin}) as socket:
        assert socket.refusal is not None and socket.refusal[0] == 403


async def test_an_allowed_origin_comes_in(api_key: ApiKey, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "ALLOWED_ORIGINS": ["https://ours.example"]}

    async with ResponsesCommunicator(api_key.secret, headers={"Origin": "https://ours.example"}) as socket:
        assert socket.refusal is None


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("path", ["responses", "codex/responses"])
@pytest.mark.parametrize(
    ("application", "prefix"),
    [
        pytest.param(websocket_application, "/v1/", id="the default"),
        pytest.param(websocket_router("v1/", ""), "/v1/", id="two prefixes, the first"),
        pytest.param(websocket_router("v1/", ""), "/", id="two prefixes, the second"),
        pytest.param(websocket_router("api/openai/"), "/api/openai/", id="a prefix of one's own"),
        pytest.param(URLRouter([re_path("^x/", URLRouter(websocket_urlpatterns))]), "/x/", id="a router of one's own"),
    ],
)
async def test_the_host_chooses_the_prefix(
    api_key: ApiKey, application: URLRouter, prefix: str, path: str, slash: str
) -> None:
    async with ResponsesCommunicator(api_key.secret, path=prefix + path + slash, application=application) as socket:
        assert socket.refusal is None


@pytest.mark.parametrize("path", ["/responses", "/v1/other/responses", "/v1/responses/x", "/"])
async def test_another_path_is_404(api_key: ApiKey, path: str) -> None:
    async with ResponsesCommunicator(api_key.secret, path=path) as socket:
        assert socket.refusal is not None and socket.refusal[0] == 404


@pytest.mark.parametrize("key", [None, "sk-wrong"])
async def test_where_websocket_mode_is_off_every_handshake_gets_426(settings: Any, key: str | None) -> None:
    """Codex then goes to HTTP at once; after any other refusal it would try seven times."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "WEBSOCKET": False}

    async with ResponsesCommunicator(key) as socket:
        assert socket.refusal is not None
        status, body = socket.refusal

    assert (status, body["error"]["code"]) == (426, "websocket_off")


async def test_where_it_is_off_and_the_server_cannot_refuse_the_client_is_told(settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "WEBSOCKET": False}

    async with ResponsesCommunicator("sk-any", can_refuse=False) as socket:
        error, closed = await socket.receive(), await socket.receive()

    assert (error["status"], error["error"]["code"], closed["code"]) == (426, "websocket_off", 1008)
