import asyncio
import contextlib
import gc
import json
import socket
import sys

import msgspec
import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.openai_chat import OpenAIChat
from responses_ws.protocol.sampling import CallArguments, CallEnd, CallStart, Finished, ReasoningDelta, TextDelta
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.testing import EngineContract, chat_request, collect
from tests.fakes.chat_server import ChatServer
from tests.fakes.faults import DONE, FAULTS, TEXT, USAGE, Fault, chunk

DEADLINE = 10.0


class TestContract(EngineContract):
    model = "fake-chat"

    @contextlib.asynccontextmanager
    async def engine(self):
        async with ChatServer() as self.server:
            engine = OpenAIChat("main", {"BASE_URL": self.server.url})
            try:
                yield engine
            finally:
                await engine.aclose()

    async def wait_until_free(self, engine):
        await self.server.departures.get()

    def endless(self):
        return chat_request("!tokens 1000000 !rate 100", model=self.model)

    def limited(self):
        return chat_request("!tokens 50", model=self.model, max_output_tokens=7)

    def refused(self):
        return chat_request("!fail overloaded", model=self.model)

    def broken(self):
        return chat_request("!tokens 50 !break 3", model=self.model)

    def two_calls(self, tools):
        return chat_request("Weather in Oslo? !calls 2", model=self.model, tools=tools)


async def go_wrong(server, engine, fault):
    server.faults["it"] = fault
    async with asyncio.timeout(DEADLINE):
        return await collect(engine, chat_request("Hi", model="fault:it"))


async def test_what_is_sent(server, engine):
    prompt = ChatPrompt().extended([{"role": "user", "content": "Hi"}]).with_instructions("Be brief.")
    tools = [{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}]

    await collect(
        engine,
        chat_request(
            "",
            request_id="resp_1",
            prompt=prompt,
            model="fake-chat",
            tools=tools,
            tool_choice="none",
            parallel_tool_calls=False,
            max_output_tokens=50,
            temperature=0.5,
            top_p=0.9,
            reasoning_effort="low",
            response_format={"type": "json_object"},
            affinity="chain",
        ),
    )

    assert server.requests == [
        {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "tools": tools,
            "model": "fake-chat",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 50,
            "temperature": 0.5,
            "top_p": 0.9,
            "response_format": {"type": "json_object"},
            "reasoning_effort": "low",
            "tool_choice": "none",
            "parallel_tool_calls": False,
        }
    ]
    headers = server.request_headers[0]
    assert headers["authorization"] == "Bearer secret"
    assert headers["x-request-id"] == "resp_1"


async def test_options_change_what_is_sent(server):
    engine = OpenAIChat(
        "main",
        {
            "BASE_URL": f"{server.url}/",
            "HEADERS": {"X-Team": "blue"},
            "MAX_TOKENS_FIELD": "max_completion_tokens",
            "EXTRA_BODY": {"return_progress": True, "temperature": 0},
            "AFFINITY_FIELD": "prompt_cache_key",
        },
    )

    await collect(engine, chat_request("Hi", model="fake-chat", max_output_tokens=9, temperature=1.0, affinity="chain"))
    await engine.aclose()

    body = server.requests[0]
    assert body["max_completion_tokens"] == 9 and "max_tokens" not in body
    assert (body["return_progress"], body["temperature"], body["prompt_cache_key"]) == (True, 0, "chain")
    assert server.request_headers[0]["x-team"] == "blue"
    assert "authorization" not in server.request_headers[0]


@pytest.mark.parametrize(("options", "salt"), [({}, None), ({"ISOLATION_FIELD": "cache_salt"}, "7")])
async def test_the_organisation_is_named_where_caches_are_kept_apart(server, options, salt):
    engine = OpenAIChat("main", {"BASE_URL": server.url, **options})

    await collect(engine, chat_request("Hi", model="fake-chat", isolation="7"))
    await engine.aclose()

    assert server.requests[0].get("cache_salt") == salt


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "BASE_URL"),
        ({"BASE_URL": "localhost:8000"}, "BASE_URL"),
        ({"BASE_URL": "http://a/v1", "APIKEY": "x"}, "APIKEY"),
        ({"BASE_URL": "http://a/v1", "MAX_TOKENS_FIELD": "max"}, "MAX_TOKENS_FIELD"),
        ({"BASE_URL": "http://a/v1", "TIMEOUTS": {"CONECT": 1}}, "TIMEOUTS"),
        ({"BASE_URL": "http://a/v1", "EXTRA_BODY": {"messages": []}}, "EXTRA_BODY"),
    ],
    ids=["missing", "no-url", "unknown", "choice", "nested", "reserved"],
)
def test_a_wrong_option_is_named(options, named):
    with pytest.raises(ValueError, match=named):
        OpenAIChat("main", options)


async def test_all_that_one_read_brings_comes_in_one_list(server, engine):
    events = [chunk({"reasoning": "hm"}), chunk(TEXT), chunk(TEXT), chunk(finish="stop"), chunk(usage=USAGE), DONE]
    server.faults["it"] = Fault(pieces=[b"".join(events)])

    async with engine.chat(chat_request("Hi", model="fault:it")) as answer:
        steps = [deltas async for deltas in answer]

    finished = Finished("stop", Usage(input_tokens=11, output_tokens=2))
    assert steps == [[ReasoningDelta("hm"), TextDelta("Hello"), TextDelta("Hello"), finished]]


async def test_interleaved_calls(server, engine):
    deltas = await go_wrong(server, engine, FAULTS["interleaved"])

    assert deltas == [
        CallStart(0, "first", "call_a"),
        CallStart(1, "second", "call_b"),
        CallArguments(1, '{"b"'),
        CallArguments(0, '{"a"'),
        CallArguments(1, ":2}"),
        CallArguments(0, ":1}"),
        CallEnd(0),
        CallEnd(1),
        Finished("tool_calls", Usage(input_tokens=11, output_tokens=2)),
    ]


async def test_an_answer_in_one_piece_to_a_request_for_a_stream(server, engine):
    body = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    fault = Fault(content_type="application/json", pieces=[json.dumps(body).encode()])

    assert await go_wrong(server, engine, fault) == [TextDelta("Hello"), Finished("stop", None)]


@pytest.mark.parametrize(
    ("name", "kind", "headers"),
    [
        ("html", "protocol", {}),
        ("overloaded", "overloaded", {"retry-after": "7"}),
        ("rate-limited", "rate_limited", {"retry-after": "3", "x-ratelimit-remaining-tokens": "0"}),
        ("unauthorized", "auth", {}),
        ("overlong", "context_length", {}),
    ],
)
async def test_refusals_raise_on_entering(server, engine, name, kind, headers):
    server.faults["it"] = FAULTS[name]
    entered = False

    with pytest.raises(EngineError) as caught:
        async with engine.chat(chat_request("Hi", model="fault:it")):
            entered = True

    assert not entered
    assert (caught.value.kind, caught.value.headers) == (kind, headers)


@pytest.mark.parametrize(
    ("name", "kind", "made"),
    [
        ("bad-json", "protocol", [TextDelta("Hello")]),
        ("cut", "unavailable", [TextDelta("Hello")]),
        ("no-finish", "protocol", [TextDelta("Hello")]),
        ("empty", "protocol", []),
        ("error-after-200", "engine", [TextDelta("Hello")]),
        ("huge-line", "protocol", []),
    ],
)
async def test_breaks_raise_after_what_was_made(server, engine, name, kind, made):
    server.faults["it"] = FAULTS[name]
    deltas = []

    async with engine.chat(chat_request("Hi", model="fault:it")) as answer:
        with pytest.raises(EngineError) as caught:
            async for some in answer:
                deltas += some

    assert caught.value.kind == kind
    assert deltas == made


async def test_what_came_in_the_same_read_as_a_fault_still_counts(server, engine):
    fault = Fault(pieces=[b"".join(FAULTS["error-after-200"].pieces)])
    server.faults["it"] = fault

    async with engine.chat(chat_request("Hi", model="fault:it")) as answer:
        first = await anext(answer)
        with pytest.raises(EngineError) as caught:
            await anext(answer)

    assert first == [TextDelta("Hello")]
    assert caught.value.kind == "engine"


@pytest.mark.parametrize("name", ["stall", "slow-head"])
async def test_a_client_that_leaves_is_seen_by_the_engine(server, engine, name):
    server.faults["it"] = FAULTS[name]

    async def listen():
        await collect(engine, chat_request("Hi", model="fault:it"))

    task = asyncio.create_task(listen())
    async with asyncio.timeout(DEADLINE):
        await server.arrivals.get()
        task.cancel()
        left = await server.departures.get()

    assert left == "fault:it"
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_another_task_may_leave_the_block(server, engine):
    context = engine.chat(chat_request("!tokens 1000000 !rate 100", model="fake-chat"))
    answer = await asyncio.create_task(context.__aenter__())
    await anext(answer)

    await asyncio.create_task(context.__aexit__(None, None, None))

    async with asyncio.timeout(DEADLINE):
        assert await server.departures.get() == "fake-chat"


async def test_connections_are_kept(server, engine):
    for _ in range(20):
        await collect(engine, chat_request("Hi", model="fake-chat"))

    assert len(server.connections) < 5


async def test_a_connection_that_went_stale_is_replaced(server, engine):
    await collect(engine, chat_request("Hi", model="fake-chat"))
    port = server.port
    await server.aclose()
    await server.start(port)

    deltas = await collect(engine, chat_request("Hi", model="fake-chat"))

    assert isinstance(deltas[-1], Finished)


async def test_a_large_history_goes_out_whole(server, engine):
    items = [{"role": "user", "content": "x" * 1000} for _ in range(3000)]
    prompt = ChatPrompt().extended([*items, {"role": "user", "content": "Last."}])

    deltas = await collect(engine, chat_request("", prompt=prompt, model="fake-chat"))

    assert len(server.requests[0]["messages"]) == 3001
    assert isinstance(deltas[-1], Finished)


async def test_an_engine_that_is_not_there_is_unavailable():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    engine = OpenAIChat("main", {"BASE_URL": url})

    with pytest.raises(EngineError) as caught:
        await collect(engine, chat_request("Hi", model="m"))
    health = await engine.health()
    await engine.aclose()

    assert caught.value.kind == "unavailable"
    assert not health.ok and url in health.detail


async def test_models_are_listed_with_their_context(server, engine):
    models = await engine.models()

    assert [model.id for model in models] == ["fake-chat"]


async def test_every_loop_has_a_pool_of_its_own(server):
    """Tests have many loops; so has whoever calls ``asyncio.run`` twice."""
    url = server.url
    engine = OpenAIChat("main", {"BASE_URL": url})

    def elsewhere():
        async def ask():
            try:
                return await collect(engine, chat_request("Hi", model="fake-chat"))
            finally:
                await engine.aclose()

        return asyncio.run(ask())

    first = await asyncio.to_thread(elsewhere)
    second = await asyncio.to_thread(elsewhere)
    gc.collect()

    assert isinstance(first[-1], Finished) and isinstance(second[-1], Finished)


async def test_the_fake_is_a_process_that_logs_what_it_made(tmp_path):
    path = tmp_path / "tokens.jsonl"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.chat_server", "--port", "0", "--token-log", str(path)),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        port = msgspec.json.decode(await process.stdout.readline())["port"]
        engine = OpenAIChat("main", {"BASE_URL": f"http://127.0.0.1:{port}/v1"})
        whole = await collect(engine, chat_request("!tokens 30", model="fake-chat", request_id="resp_a"))
        async with engine.chat(
            chat_request("!tokens 1000000 !rate 50", model="fake-chat", request_id="resp_b")
        ) as answer:
            await anext(answer)
        await engine.aclose()
        process.terminate()
        await process.wait()

    lines = {line["request_id"]: line for line in map(json.loads, path.read_text().splitlines())}
    usage = whole[-1].usage
    assert lines["resp_a"]["outcome"] == "completed"
    assert (lines["resp_a"]["prompt_tokens"], lines["resp_a"]["output_tokens"]) == (usage.input_tokens, 30)
    assert lines["resp_b"]["outcome"] == "aborted"


async def test_logprobs_come_with_their_text(server, engine):
    deltas = await collect(engine, chat_request("!tokens 2", model="fake-chat", top_logprobs=2))

    texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
    assert (server.requests[0]["logprobs"], server.requests[0]["top_logprobs"]) == (True, 2)
    assert [[one["token"] for one in delta.logprobs] for delta in texts] == [[delta.text] for delta in texts]
    assert all(one["bytes"] == list(one["token"].encode()) for delta in texts for one in delta.logprobs)
    assert all(len(one["top_logprobs"]) == 2 for delta in texts for one in delta.logprobs)


async def test_a_server_that_says_no_bytes_is_helped_out(server, engine):
    said = {"token": "é", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "e", "logprob": -1}]}
    choice = {"index": 0, "delta": {"content": "é"}, "logprobs": {"content": [said]}}
    piece = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    deltas = await go_wrong(server, engine, Fault(pieces=[piece, chunk(finish="stop"), DONE]))

    (logprob,) = next(delta.logprobs for delta in deltas if isinstance(delta, TextDelta))
    assert logprob == {
        "token": "é",
        "bytes": [195, 169],
        "logprob": -0.5,
        "top_logprobs": [{"token": "e", "bytes": [101], "logprob": -1.0}],
    }


async def test_a_request_without_logprobs_asks_for_none(server, engine):
    await collect(engine, chat_request("!tokens 2", model="fake-chat"))

    assert not server.requests[0].keys() & {"logprobs", "top_logprobs"}
