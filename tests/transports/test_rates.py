"""Rates at the doors: who is refused, what he is told, and what that costs."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from django.test import AsyncClient

from responses_ws.conf import app_settings
from responses_ws.models import ApiKey, Project, UsageRecord
from responses_ws.protocol.errors import RateLimited
from responses_ws.runtime import background, dbpool, metrics
from responses_ws.runtime.writer import writer
from responses_ws.serving.admission import Principal, enter
from responses_ws.serving.turns import run_turn
from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports.authentication import ApiKeyAuthenticator
from tests.serving.turns import asked, events_of

CREATE = {"model": "scripted", "store": False}

Rated = Callable[..., None]


@pytest.fixture
def rated(settings: Any) -> Rated:
    """Sets the default rates."""

    def rate(**rates: int) -> None:
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "RATES": rates}

    return rate


class Http:
    """Posts turns with a key."""

    def __init__(self, key: ApiKey) -> None:
        self._client = AsyncClient()
        self._headers = {"Authorization": f"Bearer {key.secret}"}

    async def post(self, given: Any, *, path: str = "responses", key: str | None = None, **fields: Any) -> Any:
        headers = self._headers | ({"Idempotency-Key": key} if key else {})
        content = msgspec.json.encode({**CREATE, "input": given, **fields})
        return await self._client.post(f"/v1/{path}", content, content_type="application/json", headers=headers)


@pytest.fixture
def http(api_key: ApiKey) -> Http:
    return Http(api_key)


def limit_headers(answer: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.items() if name.lower().startswith("x-ratelimit-")}


async def test_without_rates_nothing_is_said_of_them(http: Http) -> None:
    assert limit_headers(await http.post("Hello")) == {}


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        pytest.param({}, 200, id="json"),
        pytest.param({"stream": True}, 200, id="stream"),
        pytest.param({"path": "responses/compact"}, 200, id="compact"),
        pytest.param({"background": True, "store": True}, 200, id="background"),
        pytest.param({"key": "one"}, 200, id="idempotent"),
        pytest.param({"model": "nobody"}, 404, id="an error"),
    ],
)
async def test_every_answer_says_what_is_left(http: Http, rated: Rated, fields: dict[str, Any], status: int) -> None:
    rated(requests_per_minute=10, tokens_per_minute=1000)

    answer = await http.post("Hello there", **fields)
    if answer.streaming:
        assert [chunk async for chunk in answer.streaming_content]
    await background.settle()

    said = limit_headers(answer)
    assert answer.status_code == status
    assert (said["x-ratelimit-limit-requests"], said["x-ratelimit-remaining-requests"]) == ("10", "9")
    assert said["x-ratelimit-limit-tokens"] == "1000"
    assert said["x-ratelimit-reset-requests"].endswith("s")
    if status == 200:
        assert 900 < int(said["x-ratelimit-remaining-tokens"]) <= 1000


async def test_over_http_one_too_many_is_a_429(http: Http, rated: Rated) -> None:
    rated(requests_per_minute=2)
    assert [(await http.post("Hello")).status_code for _ in range(2)] == [200, 200]

    answer = await http.post("Hello")

    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(answer["retry-after"]) <= 30
    assert limit_headers(answer)["x-ratelimit-remaining-requests"] == "0"
    assert metrics.refused.value("http", "rate_limit_exceeded") == 1


async def test_on_a_socket_the_headers_are_in_the_event_and_nothing_else_happens(api_key: ApiKey, rated: Rated) -> None:
    rated(requests_per_minute=2)
    async with ResponsesCommunicator(api_key.secret) as socket:
        first = (await socket.turn(**CREATE, input="Hello"))[-1]["response"]
        second = (await socket.turn(**CREATE, input="On", previous_response_id=first["id"]))[-1]["response"]

        (refused,) = await socket.turn(**CREATE, input="More", previous_response_id=second["id"])

        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused["headers"] == refused["error"]["headers"]
        assert refused["headers"]["x-ratelimit-limit-requests"] == "2"
        assert int(refused["headers"]["retry-after"]) >= 1

        rated(requests_per_minute=100)
        again = await socket.turn(**CREATE, input="More", previous_response_id=second["id"])
        assert again[-1]["type"] == "response.completed", "its parent was not evicted"
    await background.settle()
    assert await UsageRecord.objects.acount() == 3


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True, "store": True}, {"key": "one"}], ids=str)
async def test_a_refusal_needs_no_database(http: Http, rated: Rated, fields: dict[str, Any]) -> None:
    rated(requests_per_minute=1)
    earlier = await http.post("Hello", store=True)
    await background.settle()
    let_go = threading.Event()
    stuck = [asyncio.ensure_future(dbpool.run(let_go.wait)) for _ in range(app_settings.DATABASE_THREADS)]
    writer.submit(lambda: let_go.wait() and None)

    try:
        async with asyncio.timeout(5):
            refused = await http.post("On", previous_response_id=earlier.json()["id"], **fields)
    finally:
        let_go.set()
        await asyncio.gather(*stuck)

    assert refused.status_code == 429


async def test_tokens_are_counted_with_the_usage_record(http: Http, rated: Rated) -> None:
    rated(tokens_per_minute=10_000)
    first = await http.post("!tokens 500")
    usage = first.json()["usage"]
    assert usage["output_tokens"] >= 500

    said = limit_headers(await http.post("Hello"))

    left = 10_000 - usage["total_tokens"]
    assert limit_headers(first)["x-ratelimit-remaining-tokens"] == str(left)
    assert left - 20 <= int(said["x-ratelimit-remaining-tokens"]) <= left + 400


async def test_tokens_that_are_used_up_close_the_door(http: Http, rated: Rated) -> None:
    rated(tokens_per_minute=100)
    assert (await http.post("!tokens 500")).status_code == 200

    answer = await http.post("Hello")

    assert answer.status_code == 429
    assert limit_headers(answer)["x-ratelimit-remaining-tokens"] == "0"
    assert int(answer["retry-after"]) > 60


async def test_while_as_many_turns_run_as_may_no_other_begins(api_key: ApiKey, http: Http, rated: Rated) -> None:
    rated(concurrent_turns=1)
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 100000 !rate 200 slow", stream_id="a")
        await socket.receive()
        await socket.create(**CREATE, input="Hello", stream_id="b")
        while (refused := await socket.receive())["stream_id"] != "b":
            pass
        over_http = await http.post("Hello")

    assert (refused["status"], over_http.status_code) == (429, 429)
    assert "1 concurrent responses" in refused["error"]["message"]
    # The socket has gone, and its turn with it.
    assert [(await http.post("Hello")).status_code for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"input": "!fail rate_limited"}, id="refused by the engine"),
        pytest.param({"input": "!tokens 20 !break 5"}, id="broken midway"),
        pytest.param({"model": "nobody", "input": "x"}, id="no such model"),
        pytest.param({"input": "x", "previous_response_id": "resp_nobody"}, id="no such parent"),
        pytest.param({"input": "x", "generate": False}, id="a warm-up"),
        pytest.param({"input": "x"}, id="completed"),
    ],
)
async def test_however_a_turn_ends_its_place_is_free(api_key: ApiKey, rated: Rated, given: dict[str, Any]) -> None:
    rated(concurrent_turns=1)
    async with ResponsesCommunicator(api_key.secret) as socket:
        for lane in ("a", "b", "c"):
            await socket.turn(**{**CREATE, **given}, stream_id=lane)

        assert (await socket.turn(**CREATE, input="Hello", stream_id="d"))[-1]["type"] == "response.completed"


async def test_a_client_that_leaves_its_stream_gives_its_place_back(principal: Principal, rated: Rated) -> None:
    rated(concurrent_turns=1)
    async with aclosing(run_turn(asked(principal, "!tokens 100000 !rate 200 slow", store=False))) as runs:
        await anext(runs)
        with pytest.raises(RateLimited):
            await enter(principal, transport="http")

    assert (await events_of(asked(principal, "Hello", store=False)))[-1]["type"] == "response.completed"


async def test_steered_responses_are_one_turn(api_key: ApiKey, rated: Rated) -> None:
    rated(concurrent_turns=1, requests_per_minute=2)
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**CREATE, input="!tokens 100000 !rate 200 slow")
        first = (await socket.receive())["response"]
        await socket.send({"type": "response.steer", "previous_response_id": first["id"], "input": "Hello"})
        ends = [(await socket.receive_turn())[-1], (await socket.receive_turn())[-1]]
        after = (await socket.turn(**CREATE, input="Hello"))[-1]

    assert ends[1]["response"]["previous_response_id"] == first["id"]
    assert [event["type"] for event in (*ends, after)] == [
        "response.incomplete",
        "response.completed",
        "response.completed",
    ]


async def test_a_background_response_holds_its_place_without_its_client(http: Http, rated: Rated) -> None:
    rated(concurrent_turns=1)
    queued = (await http.post("!tokens 100000 !rate 200 slow", background=True, store=True)).json()

    assert (await http.post("Hello")).status_code == 429
    await http.post("", path=f"responses/{queued['id']}/cancel")
    await background.settle()

    assert (await http.post("Hello")).status_code == 200


async def test_a_replayed_answer_takes_no_place(http: Http, rated: Rated) -> None:
    rated(concurrent_turns=1)

    answers = [await http.post("Hello", key="one", store=True) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_a_socket_too_many_is_refused_at_the_handshake(api_key: ApiKey, rated: Rated) -> None:
    rated(open_sockets=1)
    async with ResponsesCommunicator(api_key.secret):
        async with ResponsesCommunicator(api_key.secret) as second:
            assert second.refusal is not None
            status, body = second.refusal
        async with ResponsesCommunicator(api_key.secret, can_refuse=False) as third:
            told, closed = await third.receive(), await third.receive()
    async with ResponsesCommunicator(api_key.secret) as later:
        assert later.refusal is None, "the first has left"

    assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (told["headers"]["retry-after"], closed["code"]) == ("1", 1008)


@pytest.mark.parametrize(
    ("keys", "projects", "limit"),
    [
        pytest.param(None, None, 7, id="the default"),
        pytest.param(None, 5, 5, id="the project's"),
        pytest.param(3, 5, 3, id="the key's own"),
        pytest.param(9, None, 9, id="which may be more"),
    ],
)
async def test_the_key_is_asked_first_then_its_project(
    http: Http, rated: Rated, keys: int | None, projects: int | None, limit: int
) -> None:
    rated(requests_per_minute=7)
    await ApiKey.objects.aupdate(requests_per_minute=keys)
    await Project.objects.aupdate(requests_per_minute=projects)

    assert limit_headers(await http.post("Hello"))["x-ratelimit-limit-requests"] == str(limit)


async def test_another_key_of_the_project_has_its_own(api_key: ApiKey, rated: Rated) -> None:
    rated(requests_per_minute=1)
    other = await dbpool.run(lambda: ApiKey.objects.create_with_secret(project=api_key.project, name="other"))

    statuses = [(await Http(key).post("Hello")).status_code for key in (api_key, other, api_key)]

    assert statuses == [200, 200, 429]


async def test_a_change_counts_on_open_sockets_within_a_moment(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.turn(**CREATE, input="Hello")
        api_key.project.requests_per_minute = 1
        await dbpool.run(api_key.project.save)

        async with asyncio.timeout(10):
            while (await socket.turn(**CREATE, input="Hello"))[-1]["type"] != "error":
                pass


async def test_the_principal_carries_what_is_said_of_its_key(api_key: ApiKey) -> None:
    await ApiKey.objects.aupdate(open_sockets=2)

    principal = await ApiKeyAuthenticator().authenticate({"authorization": f"Bearer {api_key.secret}"})

    assert principal.rates.open_sockets == 2
