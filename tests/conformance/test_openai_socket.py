"""The official `openai` client over WebSocket mode."""

from collections.abc import Iterator
from typing import Any

import pytest
import websockets
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from openai.types.responses import Response

from tests.live import Server

from .grammar import check_turn
from .tools import WEATHER

pytestmark = pytest.mark.conformance

LIMITS = ResponsesWebSocketLimits(
    max_lanes=8, max_events_per_lane=5000, max_events=20_000, max_bytes_per_lane=2**26, max_bytes=2**27
)
TERMINAL = ("response.completed", "response.failed", "response.incomplete", "error")
SECONDS = 20.0


@pytest.fixture
def client(server: Server, key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        yield client


def turn(connection: Any, **request: Any) -> Any:
    """One turn; gives its terminal event, all of its events checked."""
    connection.response.create(**request)
    events = [connection.recv()]
    while events[-1].type not in TERMINAL:
        events.append(connection.recv())
    if events[-1].type != "error":
        check_turn([event.model_dump(exclude_unset=True) for event in events])
    return events[-1]


def outputs(response: Response) -> list[dict]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"sunny ({item.arguments})"}
        for item in response.output
        if item.type == "function_call"
    ]


@pytest.mark.parametrize("store", [False, True], ids=["unstored", "stored"])
def test_a_tool_loop_sends_only_what_is_new(client: OpenAI, model: str, store: bool) -> None:
    responses: list[Response] = []
    request: dict[str, Any] = {"model": model, "store": store, "tools": [WEATHER], "instructions": "Use the tool."}

    with client.responses.connect() as connection:
        new: Any = [{"role": "user", "content": "!rounds 6 What is the weather in Paris?"}]
        while new:
            previous = responses[-1].id if responses else None
            ended = turn(connection, **request, previous_response_id=previous, input=new)
            assert ended.type == "response.completed", ended
            responses.append(ended.response)
            new = outputs(ended.response)

    assert len(responses) == 7
    assert [response.previous_response_id for response in responses[1:]] == [one.id for one in responses[:-1]]
    assert responses[-1].output_text.startswith("The tool returned")
    tokens = [response.usage.input_tokens for response in responses if response.usage]
    assert tokens == sorted(set(tokens)), "each turn's context is longer than the last one's"


def test_parallel_calls_are_answered_together(client: OpenAI, model: str) -> None:
    with client.responses.connect() as connection:
        first = turn(connection, model=model, input="!calls 3 The weather in Rome?", tools=[WEATHER], store=False)
        new: Any = [*outputs(first.response), {"role": "user", "content": "Thanks. !tokens 3"}]
        second = turn(connection, model=model, previous_response_id=first.response.id, input=new, store=False)

    assert len(outputs(first.response)) == 3
    assert len({item.call_id for item in first.response.output}) == 3
    assert second.type == "response.completed"


def test_a_warm_up_is_continued(client: OpenAI, model: str) -> None:
    with client.responses.connect() as connection:
        developer: Any = [{"role": "developer", "content": "You use tools."}]
        warm = turn(connection, model=model, input=developer, tools=[WEATHER], store=False, generate=False)
        first = turn(
            connection,
            model=model,
            previous_response_id=warm.response.id,
            input="What is the weather in Oslo?",
            tools=[WEATHER],
            store=False,
        )

    assert warm.response.output == []
    assert warm.response.usage.output_tokens == 0
    assert warm.response.usage.input_tokens > 0
    assert first.response.usage.input_tokens > warm.response.usage.input_tokens
    assert [item.type for item in first.response.output] == ["function_call"]


def test_an_error_leaves_the_socket_usable(client: OpenAI, model: str) -> None:
    with client.responses.connect() as connection:
        unknown = turn(connection, model=model, previous_response_id="resp_unknown", input="hello", store=False)
        nobody = turn(connection, model="gpt-nobody", input="hello", store=False)
        refused = turn(connection, model=model, input="!fail rate_limited", store=False)
        after = turn(connection, model=model, input="Say hello.", store=False)

    assert (unknown.status, unknown.error.code) == (400, "previous_response_not_found")
    assert unknown.error.param == "previous_response_id"
    assert nobody.error.code == "model_not_found"
    assert (refused.status, refused.error.code) == (429, "rate_limit_exceeded")
    assert refused.error.headers == {"retry-after": "1"}
    assert after.response.output_text == 'You said: "Say hello."'


@pytest.mark.parametrize(
    ("key", "code"), [("sk-nobody", "invalid_api_key"), (" ", "invalid_api_key")], ids=["wrong", "blank"]
)
def test_a_refused_handshake_is_a_401_with_the_usual_body(server: Server, key: str, code: str) -> None:
    with OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        with pytest.raises(websockets.InvalidStatus) as caught:
            client.responses.connect().enter()

    response = caught.value.response
    assert response.status_code == 401
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.body is not None
    assert f'"code":"{code}"'.encode() in response.body


def test_lanes_run_side_by_side_and_fork(client: OpenAI, model: str) -> None:
    def create(**fields: Any) -> Any:
        return {"type": "response.create", "model": model, "store": False, **fields}

    with client.responses.connect() as connection, ResponsesWebSocketSession(connection, limits=LIMITS) as session:
        a, b, default = session.lane("a"), session.lane("b"), session.default
        a.send(create(input="From a."))
        b.send(create(input="From b."))
        default.send(create(input="From nowhere."))
        first_a, first_b = a.get_final_response(timeout=SECONDS), b.get_final_response(timeout=SECONDS)
        first = default.get_final_response(timeout=SECONDS)
        fork = session.lane("fork")
        fork.send(create(previous_response_id=first_a.id, input="A fork. !rate 50 !tokens 5"))
        while fork.recv(timeout=SECONDS).type != "response.in_progress":
            pass
        # The fork has its parent: the lane may go on.
        a.send(create(previous_response_id=first_a.id, input="Onward."))
        second_a, forked = a.get_final_response(timeout=SECONDS), fork.get_final_response(timeout=SECONDS)
        b.send(create(previous_response_id=first_a.id, input="Too late."))
        with pytest.raises(ResponsesWebSocketError) as caught:
            b.get_final_response(timeout=SECONDS)

    assert [one.output_text for one in (first_a, first_b, first, second_a)] == [
        'You said: "From a."',
        'You said: "From b."',
        'You said: "From nowhere."',
        'You said: "Onward."',
    ]
    assert second_a.previous_response_id == forked.previous_response_id == first_a.id
    assert forked.usage is not None and forked.usage.output_tokens == 5 + (model == "scripted")
    assert caught.value.event.error.code == "previous_response_not_found"


async def test_the_asynchronous_client(server: Server, key: str, model: str) -> None:
    async with AsyncOpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        async with client.responses.connect() as connection:
            await connection.response.create(model=model, input="Say hello.", store=False)
            events = []
            async for event in connection:
                events.append(event)
                if event.type in TERMINAL:
                    break
        async with client.responses.connect() as connection:
            async with AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session:
                lanes = [session.lane(name) for name in ("a", "b")]
                for lane in lanes:
                    await lane.send({"type": "response.create", "model": model, "input": "Say hello.", "store": False})
                answers = [await lane.get_final_response() for lane in lanes]

    check_turn([event.model_dump(exclude_unset=True) for event in events])
    assert [answer.output_text for answer in answers] == ['You said: "Say hello."'] * 2
    assert answers[0].id != answers[1].id
