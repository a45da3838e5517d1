"""The engine that speaks to another Responses server: what it sends, what it remembers, and what it does when the
upstream does not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from responses_ws.engines.base import EngineError, EngineModel
from responses_ws.engines.responses import Responses
from responses_ws.protocol.sampling import Delta, Finished, TextDelta
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.testing import call, chat_request, collect
from tests.fakes.responses_server import Answer, ResponsesServer, words

Item = dict[str, Any]
Make = Callable[..., Responses]

NOT_FOUND = Answer(
    status=400,
    error={"code": "previous_response_not_found", "message": "No 'up_1' here.", "param": "previous_response_id"},
)


@pytest.fixture(autouse=True)
async def _deadline() -> AsyncIterator[None]:
    async with asyncio.timeout(20):
        yield


@pytest.fixture
async def server() -> AsyncIterator[ResponsesServer]:
    async with ResponsesServer() as server:
        yield server


@pytest.fixture
async def make(server: ResponsesServer) -> AsyncIterator[Make]:
    engines: list[Responses] = []

    def made(**options: Any) -> Responses:
        engines.append(Responses("far", {"BASE_URL": server.url, "API_KEY": "secret", **options}))
        return engines[-1]

    yield made
    for engine in engines:
        await engine.aclose()


def user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": text}


def said(text: str) -> Item:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part]}


class Chain:
    """A conversation as a server keeps it: the prompt grows, and remembers what its engine has called the answer."""

    def __init__(self, engine: Responses, prompt: ChatPrompt | None = None) -> None:
        self.engine = engine
        self.prompt = prompt or ChatPrompt(takes=engine.capabilities.media)

    async def turn(self, text: str, *, instructions: Any = None, **fields: Any) -> list[Delta]:
        asked = self.prompt.extended([user(text)])
        request = chat_request("", model="m", prompt=asked.with_instructions(instructions), **fields)
        deltas = await collect(self.engine, request)
        finished = deltas[-1]
        assert isinstance(finished, Finished)
        answer = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        self.prompt = asked.extended([said(answer)]).named(finished.continuation)
        return deltas

    def fork(self) -> "Chain":
        return Chain(self.engine, self.prompt)


def brief(server: ResponsesServer) -> list[tuple[str | None, list[str]]]:
    """Of every request: what it continues, and the texts it sends."""

    def text(item: Item) -> str:
        content = item["content"]
        return content if isinstance(content, str) else content[0]["text"]

    return [
        (request.get("previous_response_id"), [text(item) for item in request["input"]]) for request in server.requests
    ]


async def test_what_is_sent_over_http(server: ResponsesServer, make: Make) -> None:
    tools = [{"type": "function", "name": "a", "parameters": {"type": "object"}, "strict": False}]
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}

    options = {"HEADERS": {"X-Team": "blue"}, "EXTRA_BODY": {"service_tier": "flex"}, "ISOLATION_FIELD": "cache_salt"}
    await Chain(make(**options)).turn(
        "Hi",
        instructions="Be brief.",
        request_id="resp_1",
        tools=tools,
        tool_choice={"type": "function", "name": "a"},
        parallel_tool_calls=False,
        max_output_tokens=50,
        temperature=0.5,
        top_p=0.9,
        response_format={"type": "json_schema", "json_schema": schema},
        verbosity="low",
        reasoning_effort="low",
        reasoning_summary="auto",
        top_logprobs=2,
        affinity="chain",
        isolation="3",
        prompt_cache_key="7:mine",
    )

    assert server.requests == [
        {
            "model": "m",
            "stream": True,
            "store": False,
            "instructions": "Be brief.",
            "input": [user("Hi")],
            "tools": tools,
            "tool_choice": {"type": "function", "name": "a"},
            "parallel_tool_calls": False,
            "max_output_tokens": 50,
            "temperature": 0.5,
            "top_p": 0.9,
            "text": {"format": {"type": "json_schema", **schema}, "verbosity": "low"},
            "reasoning": {"effort": "low", "summary": "auto"},
            "top_logprobs": 2,
            "include": ["message.output_text.logprobs"],
            "prompt_cache_key": "7:mine",
            "cache_salt": "3",
            "service_tier": "flex",
        }
    ]
    headers = server.request_headers[0]
    assert (headers["authorization"], headers["x-request-id"], headers["x-team"]) == ("Bearer secret", "resp_1", "blue")


async def test_what_is_sent_on_a_socket(server: ResponsesServer, make: Make) -> None:
    await Chain(make(TRANSPORT="websocket", AFFINITY_FIELD="")).turn("Hi", affinity="chain")

    assert server.requests == [{"type": "response.create", "model": "m", "store": False, "input": [user("Hi")]}]
    assert server.request_headers[0]["authorization"] == "Bearer secret"


WAYS: dict[str, dict[str, Any]] = {
    "stateless": {},
    "stored": {"STORE": True},
    "socket": {"TRANSPORT": "websocket"},
    "stored on a socket": {"TRANSPORT": "websocket", "STORE": True},
}
REMEMBERS = {name: options for name, options in WAYS.items() if options}


@pytest.fixture(params=REMEMBERS.values(), ids=REMEMBERS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Those of an engine whose upstream remembers something."""
    return request.param


async def test_a_stateless_upstream_is_sent_everything(server: ResponsesServer, make: Make) -> None:
    chain = Chain(make())
    await chain.turn("one")
    await chain.turn("two")

    assert brief(server) == [(None, ["one"]), (None, ["one", "answer 1", "two"])]


async def test_only_what_is_new_is_sent(server: ResponsesServer, make: Make, options: dict[str, Any]) -> None:
    chain = Chain(make(**options))
    for text in ("one", "two", "three"):
        await chain.turn(text, instructions="Be brief.")

    assert brief(server) == [(None, ["one"]), ("up_1", ["two"]), ("up_2", ["three"])]
    assert [request["instructions"] for request in server.requests] == ["Be brief."] * 3
    assert [request["store"] for request in server.requests] == [bool(options.get("STORE"))] * 3
    assert len(server.sockets) == (1 if "TRANSPORT" in options else 0)


async def test_one_of_two_forks_goes_on_the_other_is_sent_whole(server: ResponsesServer, make: Make) -> None:
    first = Chain(make(TRANSPORT="websocket"))
    await first.turn("one")
    second = first.fork()
    await first.turn("a")
    await second.turn("b")
    await first.turn("c")
    await second.turn("d")

    assert brief(server) == [
        (None, ["one"]),
        ("up_1", ["a"]),
        (None, ["one", "answer 1", "b"]),
        ("up_2", ["c"]),
        ("up_3", ["d"]),
    ]
    assert len(server.sockets) == 2


async def test_where_responses_are_stored_every_fork_goes_on(server: ResponsesServer, make: Make) -> None:
    first = Chain(make(TRANSPORT="websocket", STORE=True))
    await first.turn("one")
    second = first.fork()
    await first.turn("a")
    await second.turn("b")

    assert brief(server) == [(None, ["one"]), ("up_1", ["a"]), ("up_1", ["b"])]


async def test_two_turns_at_once_have_a_socket_each(server: ResponsesServer, make: Make) -> None:
    engine = make(TRANSPORT="websocket")
    await asyncio.gather(*(Chain(engine).turn(str(number)) for number in range(4)))

    assert len(server.sockets) == len(engine.sockets) == 4


async def test_what_another_engine_or_model_has_said_is_sent_whole(server: ResponsesServer, make: Make) -> None:
    chain = Chain(make(STORE=True))
    await chain.turn("one")
    elsewhere = Chain(make(STORE=True), chain.prompt)
    await elsewhere.turn("two")
    request = chat_request("", model="another", prompt=chain.prompt.extended([user("three")]))
    await collect(chain.engine, request)

    assert [previous for previous, _texts in brief(server)] == [None, None, None]


async def test_messages_in_front_of_everything_are_sent_with_everything(server: ResponsesServer, make: Make) -> None:
    chain = Chain(make(STORE=True))
    await chain.turn("one")
    await chain.turn("two", instructions=[user("in front")])

    assert brief(server)[1] == (None, ["in front", "one", "answer 1", "two"])
    assert "instructions" not in server.requests[1]


async def test_a_prompt_with_nothing_new_is_sent_whole(server: ResponsesServer, make: Make) -> None:
    chain = Chain(make(STORE=True))
    await chain.turn("one")
    await collect(chain.engine, chat_request("", model="m", prompt=chain.prompt))

    assert brief(server)[1] == (None, ["one", "answer 1"])


async def test_what_the_upstream_has_forgotten_is_sent_whole_once(
    server: ResponsesServer, make: Make, options: dict[str, Any]
) -> None:
    chain = Chain(make(**options))
    await chain.turn("one")
    server.answers = [NOT_FOUND]
    deltas = await chain.turn("two")
    await chain.turn("three")

    assert deltas[0] == TextDelta("answer 3")
    assert brief(server) == [
        (None, ["one"]),
        ("up_1", ["two"]),
        (None, ["one", "answer 1", "two"]),
        ("up_3", ["three"]),
    ]


async def test_an_upstream_that_forgets_everything_is_asked_twice_and_not_more(
    server: ResponsesServer, make: Make, options: dict[str, Any]
) -> None:
    chain = Chain(make(**options))
    await chain.turn("one")
    server.answers = [NOT_FOUND, NOT_FOUND]

    with pytest.raises(EngineError) as caught:
        await chain.turn("two")

    assert caught.value.kind == "bad_request"
    assert len(server.requests) == 3


async def test_other_refusals_are_not_asked_again(server: ResponsesServer, make: Make, options: dict[str, Any]) -> None:
    chain = Chain(make(**options))
    await chain.turn("one")
    server.answers = [Answer(status=429, error={"message": "slow down"}, headers={"Retry-After": "3"})]

    with pytest.raises(EngineError) as caught:
        await chain.turn("two")

    assert (caught.value.kind, caught.value.headers) == ("rate_limited", {"retry-after": "3"})
    assert len(server.requests) == 2


async def test_nothing_is_asked_again_once_the_upstream_has_begun(
    server: ResponsesServer, make: Make, options: dict[str, Any]
) -> None:
    chain = Chain(make(**options))
    await chain.turn("one")
    begun = words("", "up_2")[:1]
    server.answers = [Answer(events=begun, end="cut")]

    with pytest.raises(EngineError) as caught:
        await chain.turn("two")

    assert caught.value.kind in ("unavailable", "protocol")
    assert len(server.requests) == 2


async def test_a_socket_that_closes_before_it_answers_is_followed_by_another(
    server: ResponsesServer, make: Make
) -> None:
    chain = Chain(make(TRANSPORT="websocket"))
    await chain.turn("one")
    server.answers = [Answer(end="cut")]
    await chain.turn("two")

    assert brief(server)[1:] == [("up_1", ["two"]), (None, ["one", "answer 1", "two"])]
    assert len(server.sockets) == 2


async def test_a_new_socket_that_closes_before_it_answers_is_a_failure(server: ResponsesServer, make: Make) -> None:
    server.answers = [Answer(end="cut")]

    with pytest.raises(EngineError) as caught:
        await Chain(make(TRANSPORT="websocket")).turn("one")

    assert caught.value.kind == "unavailable"
    assert len(server.requests) == 1


async def test_a_socket_that_closes_while_it_is_idle_is_noticed(server: ResponsesServer, make: Make) -> None:
    engine = make(TRANSPORT="websocket")
    chain = Chain(engine)
    await chain.turn("one")
    await server.sockets[0].close()
    await server.closed.get()
    await chain.turn("two")

    assert brief(server)[1] == (None, ["one", "answer 1", "two"])
    assert len(engine.sockets) == 1


async def test_a_socket_answers_pings_while_it_is_idle(server: ResponsesServer, make: Make) -> None:
    await Chain(make(TRANSPORT="websocket")).turn("one")
    await server.sockets[0].ping(b"well?")

    assert await server.pongs.get() == b"well?"


async def test_a_socket_that_answers_no_pings_is_closed(server: ResponsesServer, make: Make) -> None:
    engine = make(TRANSPORT="websocket", SOCKETS={"PING_SECONDS": 0.02})
    chain = Chain(engine)
    server.answers_pings = False
    await chain.turn("one")
    await server.closed.get()
    left = len(engine.sockets)
    await chain.turn("two")

    assert left == 0
    assert brief(server)[1] == (None, ["one", "answer 1", "two"])


async def test_a_socket_that_answers_pings_stays(server: ResponsesServer, make: Make) -> None:
    chain = Chain(make(TRANSPORT="websocket", SOCKETS={"PING_SECONDS": 0.02}))
    await chain.turn("one")
    for _ in range(5):
        await server.pinged.get()
    await chain.turn("two")

    assert brief(server)[1] == ("up_1", ["two"])


async def test_a_turn_that_is_not_read_keeps_its_socket(server: ResponsesServer, make: Make) -> None:
    engine = make(TRANSPORT="websocket", SOCKETS={"PING_SECONDS": 0.02})
    created, delta, completed = words("x" * 10_000, "up_1")
    server.answers = [Answer(events=[created, *[delta] * 2000, completed])]
    request = chat_request("", model="m", prompt=ChatPrompt(takes=engine.capabilities.media).extended([user("Hi")]))

    async with call(engine, request) as answer:
        # Far more than is read ahead: no pong is read either, for as long as several pings are due.
        await asyncio.sleep(0.2)
        deltas = [delta async for deltas in answer for delta in deltas]

    assert len(deltas) == 2001


async def test_what_is_said_to_nobody_is_not_an_answer(server: ResponsesServer, make: Make) -> None:
    chain = Chain(make(TRANSPORT="websocket"))
    await chain.turn("one")
    for event in words("stray", "up_9"):
        await server.sockets[0].send_str(msgspec.json.encode(event).decode())
    await server.sockets[0].ping(b"read?")
    await server.pongs.get()

    assert (await chain.turn("two"))[0] == TextDelta("answer 2")


@pytest.mark.parametrize("limits", [{"IDLE_SECONDS": 0.01}, {"AGE_SECONDS": 0.0}], ids=["idle", "old"])
async def test_sockets_do_not_live_for_ever(server: ResponsesServer, make: Make, limits: dict[str, float]) -> None:
    engine = make(TRANSPORT="websocket", SOCKETS=limits)
    chain = Chain(engine)
    await chain.turn("one")
    await server.closed.get()
    await chain.turn("two")
    await server.closed.get()

    assert brief(server)[1] == (None, ["one", "answer 1", "two"])
    assert len(engine.sockets) == 0


async def test_of_too_many_sockets_the_one_that_waits_longest_goes(server: ResponsesServer, make: Make) -> None:
    engine = make(TRANSPORT="websocket", SOCKETS={"MOST": 2})
    first, second, third = Chain(engine), Chain(engine), Chain(engine)
    await first.turn("a")
    await second.turn("b")
    await first.turn("a again")
    await third.turn("c")

    assert await server.closed.get() == 2
    assert len(engine.sockets) == 2
    await first.turn("and again")
    assert brief(server)[-1] == ("up_3", ["and again"])


async def test_when_all_sockets_are_used_a_turn_is_refused(server: ResponsesServer, make: Make) -> None:
    engine = make(TRANSPORT="websocket", SOCKETS={"MOST": 1})
    server.answers = [Answer(events=words("", "up_1")[:1], end="hang")]
    request = chat_request("", model="m", prompt=ChatPrompt(takes=engine.capabilities.media).extended([user("Hi")]))

    async with call(engine, request):
        with pytest.raises(EngineError) as caught:
            await Chain(engine).turn("one")
    await server.closed.get()
    await Chain(engine).turn("two")

    assert caught.value.kind == "overloaded"
    assert len(server.sockets) == 2


@pytest.mark.parametrize("options", [{}, {"TRANSPORT": "websocket"}], ids=["http", "socket"])
async def test_leaving_is_told_to_the_upstream(server: ResponsesServer, make: Make, options: dict[str, Any]) -> None:
    engine = make(**options)
    server.answers = [Answer(events=words("Hi", "up_1")[:2], end="hang")]
    request = chat_request("", model="m", prompt=ChatPrompt(takes=engine.capabilities.media).extended([user("Hi")]))

    async def listen() -> None:
        async with call(engine, request) as answer:
            async for _deltas in answer:
                heard.set()

    heard = asyncio.Event()
    task = asyncio.create_task(listen())
    await heard.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

    assert await (server.closed if options else server.departures).get() == 1


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "auth"), (404, "unavailable"), (200, "unavailable"), (503, "overloaded")]
)
async def test_a_refused_handshake(server: ResponsesServer, make: Make, status: int, kind: str) -> None:
    server.refuses_sockets = status

    with pytest.raises(EngineError) as caught:
        await Chain(make(TRANSPORT="websocket")).turn("one")

    assert (caught.value.kind, caught.value.status) == (kind, status)


@pytest.mark.parametrize("options", [{}, {"TRANSPORT": "websocket"}], ids=["http", "socket"])
async def test_no_redirect_takes_the_key_to_another_host(
    server: ResponsesServer, make: Make, options: dict[str, Any]
) -> None:
    async with ResponsesServer() as other:
        server.redirects_to = f"{other.url}/responses"

        with pytest.raises(EngineError):
            await Chain(make(HEADERS={"X-Key": "secret"}, **options)).turn("one")

    assert other.request_headers == []


@pytest.mark.parametrize("options", [{}, {"TRANSPORT": "websocket"}], ids=["http", "socket"])
async def test_nobody_there(options: dict[str, Any]) -> None:
    engine = Responses("far", {"BASE_URL": "http://127.0.0.1:1/v1", **options})

    with pytest.raises(EngineError) as caught:
        await Chain(engine).turn("one")
    health = await engine.health()
    await engine.aclose()

    assert caught.value.kind == "unavailable"
    assert not health.ok


async def test_the_upstream_counts_what_it_would_be_told(server: ResponsesServer, make: Make) -> None:
    engine = make()
    prompt = ChatPrompt(takes=engine.capabilities.media).extended([user("Hi")]).with_instructions("Be brief.")
    request = chat_request("", model="m", prompt=prompt, max_output_tokens=5, temperature=0.5, reasoning_effort="low")

    counted = await engine.count(request)
    server.counts = False
    uncounted = await engine.count(request)

    assert (counted, uncounted) == (7, None)
    told = {"model": "m", "reasoning": {"effort": "low"}, "instructions": "Be brief.", "input": [user("Hi")]}
    assert server.requests == [told, told]


async def test_an_upstream_that_is_down_counts_nothing() -> None:
    engine = Responses("far", {"BASE_URL": "http://127.0.0.1:1/v1"})
    counted = await engine.count(chat_request("", prompt=ChatPrompt(takes=engine.capabilities.media)))
    await engine.aclose()

    assert counted is None


async def test_models(make: Make) -> None:
    engine = make()

    assert await engine.models() == [EngineModel(id="m")]
    assert (await engine.health()).ok


async def test_an_event_may_be_as_long_as_a_response(server: ResponsesServer, make: Make) -> None:
    created, _delta, completed = words("", "up_1")
    completed["response"]["output"] = [said("x" * 3_000_000)]
    server.answers = [Answer(events=[created, completed])]

    deltas = await Chain(make()).turn("one")

    assert isinstance(deltas[0], TextDelta)
    assert len(deltas[0].text) == 3_000_000


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "BASE_URL"),
        ({"BASE_URL": "localhost:8000"}, "BASE_URL"),
        ({"BASE_URL": "http://a/v1", "TRANSPORT": "carrier pigeon"}, "TRANSPORT"),
        ({"BASE_URL": "http://a/v1", "SOCKETS": {"MANY": 1}}, "SOCKETS"),
        ({"BASE_URL": "http://a/v1", "EXTRA_BODY": {"store": True}}, "EXTRA_BODY"),
        ({"BASE_URL": "http://a/v1", "SUPPORTS": ["flying"]}, "SUPPORTS"),
        ({"BASE_URL": "http://a/v1", "HOSTED_TOOLS": ["web_search", "function"]}, "HOSTED_TOOLS"),
        ({"BASE_URL": "http://a/v1", "SOCKETS": {"MOST": 0}}, "SOCKETS"),
        ({"BASE_URL": "http://a/v1", "SOCKETS": {"PING_SECONDS": 0}}, "SOCKETS"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Responses("far", options)
