from typing import Any

import pytest

from responses_ws.models import ApiKey
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


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/"])
async def test_the_path_may_end_in_a_slash(api_key: ApiKey, path: str) -> None:
    async with ResponsesCommunicator(api_key.secret, path=path) as socket:
        assert socket.refusal is None
