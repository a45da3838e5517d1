"""The handshake of a page in a browser, which can set no header but one."""

import pytest

from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports.browsers import with_subprotocols


def page(key, host="127.0.0.1:8000", origin="http://127.0.0.1:8000", protocols="responses"):
    """Headers as a browser sends them."""
    return {"Host": host, "Origin": origin, "Sec-WebSocket-Protocol": f"{protocols}, openai-insecure-api-key.{key}"}


async def test_a_page_of_the_same_host_brings_its_key_as_a_subprotocol(api_key):
    async with ResponsesCommunicator(headers=page(api_key.secret)) as socket:
        await socket.create(model="scripted", input="hello")
        events = await socket.receive_turn()

    assert socket.subprotocol == "responses"
    assert events[-1]["type"] == "response.completed"


async def test_the_key_is_not_said_again(api_key):
    async with ResponsesCommunicator(headers=page(api_key.secret)) as socket:
        assert api_key.secret not in str(socket.headers) + str(socket.subprotocol)


async def test_a_wrong_key_is_refused(api_key):
    async with ResponsesCommunicator(headers=page("sk-wrong")) as socket:
        assert socket.refusal is not None and socket.refusal[0] == 401


async def test_programs_are_answered_without_a_subprotocol(api_key):
    async with ResponsesCommunicator(api_key.secret) as socket:
        assert socket.subprotocol is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        pytest.param("127.0.0.1:8000", "http://127.0.0.1:9000", id="another port"),
        pytest.param("127.0.0.1:8000", "http://elsewhere.example", id="another site"),
        pytest.param("127.0.0.1:8000", "http://127.0.0.1:8000.elsewhere.example", id="another site that begins alike"),
        pytest.param("elsewhere.example", "http://elsewhere.example", id="a foreign name bound to our address"),
        pytest.param("", "http://", id="no host"),
        pytest.param("127.0.0.1:8000", "null", id="a frame in a sandbox"),
    ],
)
async def test_pages_of_others_stay_outside(api_key, settings, host, origin):
    settings.ALLOWED_HOSTS = ["127.0.0.1"]

    async with ResponsesCommunicator(headers=page(api_key.secret, host, origin)) as socket:
        assert socket.refusal is not None and socket.refusal[0] == 403


async def test_without_a_playground_our_own_pages_stay_outside_too(api_key, settings):
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "PLAYGROUND": False}

    async with ResponsesCommunicator(headers=page(api_key.secret)) as socket:
        assert socket.refusal is not None and socket.refusal[0] == 403


def test_headers_go_before_subprotocols_and_the_list_is_taken_out():
    headers = {"authorization": "Bearer a", "sec-websocket-protocol": "openai-insecure-api-key.b", "host": "h"}

    told = with_subprotocols(headers, ["openai-insecure-api-key.b", "openai-beta.responses_rollout-v1", "other"])

    assert told == {"authorization": "Bearer a", "host": "h", "openai-beta": "responses_rollout=v1"}
