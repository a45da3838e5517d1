"""Handshakes from one address are bounded, and nobody says of himself where he comes from."""

from collections.abc import Iterator
from typing import Any

import pytest

from responses_ws.models import ApiKey
from responses_ws.routing import websocket_application
from responses_ws.runtime.launcher import server_config
from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports import addresses as counting
from responses_ws.transports.addresses import addresses, public_address

PUBLIC, OTHER = "9.9.9.9", "9.9.9.10"


@pytest.fixture(autouse=True)
def few(settings: Any) -> Iterator[None]:
    """Three at once, and then none for a long time."""
    limits = {"handshakes_at_once": 3, "handshakes_per_second": 0.0001}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}
    yield
    addresses.clear()


def coming_from(peer: str, application: Any = websocket_application) -> Any:
    async def served(scope: Any, receive: Any, send: Any) -> None:
        await application({**scope, "client": (peer, 50000)}, receive, send)

    return served


async def answer_to(peer: str, key: str, application: Any = websocket_application, **headers: str) -> tuple[int, Any]:
    """Status and code of a handshake; 101 where it opens."""
    async with ResponsesCommunicator(key, application=coming_from(peer, application), headers=headers) as socket:
        return (101, None) if socket.refusal is None else (socket.refusal[0], socket.refusal[1]["error"]["code"])


async def test_more_than_may_come_at_once_are_told_to_wait(api_key: ApiKey) -> None:
    guesses = [await answer_to(PUBLIC, "sk-guess") for _ in range(3)]
    beyond = await answer_to(PUBLIC, api_key.secret)
    elsewhere = await answer_to(OTHER, api_key.secret)

    assert guesses == [(401, "invalid_api_key")] * 3
    assert beyond == (429, "too_many_handshakes")
    assert elsewhere == (101, None)


async def test_a_refusal_says_when_to_come_again(api_key: ApiKey) -> None:
    for _ in range(3):
        await answer_to(PUBLIC, api_key.secret)

    async with ResponsesCommunicator(api_key.secret, application=coming_from(PUBLIC)) as socket:
        assert socket.headers["retry-after"] == "1"


async def test_whoever_comes_through_a_proxy_that_says_nothing_is_not_counted(api_key: ApiKey) -> None:
    assert [await answer_to("10.0.0.7", api_key.secret) for _ in range(5)] == [(101, None)] * 5


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        pytest.param("127.0.0.1", True, id="a proxy that is trusted: whoever it names last"),
        pytest.param(OTHER, False, id="anybody else: itself"),
    ],
)
async def test_what_a_client_says_of_itself_counts_for_nothing(api_key: ApiKey, peer: str, counted: bool) -> None:
    config = server_config(websocket_application)
    config.load()

    for number in range(3):
        claim = f"8.8.8.{number}, {PUBLIC}"
        assert (await answer_to(peer, api_key.secret, config.loaded_app, **{"X-Forwarded-For": claim}))[0] == 101
    refused = await answer_to(peer, api_key.secret, config.loaded_app, **{"X-Forwarded-For": "8.8.8.8, " + PUBLIC})

    assert refused == (429, "too_many_handshakes")
    assert (await answer_to(PUBLIC, api_key.secret))[0] == (429 if counted else 101)


async def test_addresses_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST", 2)

    for number in range(5):
        addresses.check((f"9.9.9.{number}", 1), now=0.0)

    assert len(addresses) == 2


@pytest.mark.parametrize(
    ("host", "name"),
    [
        pytest.param("9.9.9.9", "9.9.9.9", id="public"),
        pytest.param("::ffff:9.9.9.9", "9.9.9.9", id="the same, mapped"),
        pytest.param("2620:fe::9", "262000fe00000000", id="IPv6"),
        pytest.param("2620:fe::fe:9", "262000fe00000000", id="the same network"),
        pytest.param("127.0.0.1", None, id="this machine"),
        pytest.param("::1", None, id="this machine, IPv6"),
        pytest.param("192.168.1.7", None, id="private"),
        pytest.param("fd00::7", None, id="private, IPv6"),
        pytest.param("::ffff:10.0.0.1", None, id="private, mapped"),
        pytest.param("/run/app.sock", None, id="no address"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_by_what_name_an_address_is_counted(host: str, name: str | None) -> None:
    assert public_address(host) == name
