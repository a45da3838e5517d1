"""What the official `openai` client sees of rates, at two processes that share them through Redis."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from websockets.exceptions import InvalidStatus

from tests.live import Server

pytestmark = pytest.mark.conformance

LIMIT = 6


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[tuple[Server, Server]]:
    directory: Path = tmp_path_factory.mktemp("rated")
    Server(directory=directory, name="migrate").migrate()
    rates = {"requests_per_minute": LIMIT, "tokens_per_minute": 100_000, "open_sockets": 1}
    first, second = (
        Server(directory=directory, name=name, rates=rates, redis_url=redis_url) for name in ("first", "second")
    )
    with first, second:
        yield first, second
        assert not first.trouble() + second.trouble(), first.output() + second.output()


@pytest.fixture
def clients(servers: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[tuple[OpenAI, OpenAI]]:
    """One for each process, with a key of the test's own."""
    key = servers[0].create_key(request.node.name)
    first, second = (OpenAI(base_url=server.base_url, api_key=key, max_retries=0) for server in servers)
    with first, second:
        yield first, second


def test_two_processes_count_as_one(clients: tuple[OpenAI, OpenAI]) -> None:
    left = []
    for number in range(LIMIT):
        answer = clients[number % 2].responses.with_raw_response.create(model="scripted", input="Hello", store=False)
        left.append(int(answer.headers["x-ratelimit-remaining-requests"]))
        assert answer.headers["x-ratelimit-limit-requests"] == str(LIMIT)

    with pytest.raises(openai.RateLimitError) as refused:
        clients[0].responses.create(model="scripted", input="Hello", store=False)

    assert left == [5, 4, 3, 2, 1, 0]
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 10
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"


def test_the_tokens_of_one_are_missing_at_the_other(clients: tuple[OpenAI, OpenAI]) -> None:
    first, second = clients
    usage = first.responses.create(model="scripted", input="!tokens 20000", store=False).usage

    answer = second.responses.with_raw_response.create(model="scripted", input="Hello", store=False)

    assert usage is not None and usage.total_tokens >= 20_000
    # A hundred thousand a minute drain while the test looks.
    assert 80_000 - 100 <= int(answer.headers["x-ratelimit-remaining-tokens"]) < 100_000 - 1_000


def test_a_stream_says_so_in_its_head(clients: tuple[OpenAI, OpenAI]) -> None:
    with clients[0].responses.with_streaming_response.create(
        model="scripted", input="Hello", store=False, stream=True
    ) as answer:
        assert answer.headers["x-ratelimit-remaining-requests"] == str(LIMIT - 1)
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")


def test_on_a_socket_the_refusal_is_an_event_with_headers(clients: tuple[OpenAI, OpenAI]) -> None:
    with clients[0].responses.connect() as connection:
        ends: list[Any] = []
        while len(ends) <= LIMIT:
            connection.response.create(model="scripted", input="Hello", store=False)
            while (event := connection.recv()).type not in ("response.completed", "error"):
                pass
            ends.append(event)

    assert [event.type for event in ends] == ["response.completed"] * LIMIT + ["error"]
    assert (ends[-1].status, ends[-1].error.code) == (429, "rate_limit_exceeded")
    assert 1 <= int(ends[-1].error.headers["retry-after"]) <= 10


def test_a_socket_too_many_is_refused_wherever_the_first_is_open(clients: tuple[OpenAI, OpenAI]) -> None:
    first, second = clients
    with first.responses.connect():
        with pytest.raises(InvalidStatus) as refused, second.responses.connect():
            pass

    assert refused.value.response.status_code == 429
    assert refused.value.response.headers["retry-after"] == "1"
