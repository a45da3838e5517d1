import asyncio
import contextlib
import logging

import msgspec
import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.vllm import Vllm
from responses_ws.protocol.sampling import Constraint, Finished, Tokens
from responses_ws.protocol.usage import Usage
from responses_ws.testing import EngineContract, TokenContract, chat_request, collect_tokens, ids_in, token_request
from tests.fakes.chat_server import ChatServer
from tests.fakes.token_server import EOS, FIRST_TOKEN, MODEL, Behaviour
from tests.fakes.transcripts import load
from tests.fakes.vllm_server import PREFIX, FakeVllm

DEADLINE = 5.0
TO_NOTICE = 0.5  # what a cancel may take until the engine sees it


@pytest.fixture
async def server():
    async with FakeVllm() as server:
        yield server


@pytest.fixture
async def engine(server):
    async with running(server) as engine:
        yield engine


@contextlib.asynccontextmanager
async def running(server, **options):
    engine = Vllm("main", {"BASE_URL": f"{server.url}/v1", "API_KEY": "secret", **options})
    try:
        yield engine
    finally:
        await engine.aclose()


def ask(*ids, **fields):
    return token_request(ids, model=MODEL, **{"max_tokens": 64, **fields})


class TestVllm(TokenContract):
    model = MODEL
    prompt = range(200, 280)
    scale_out = True

    @contextlib.asynccontextmanager
    async def engine(self):
        async with FakeVllm(scale_out=self.scale_out) as self.server, running(self.server) as engine:
            yield engine

    def endless(self):
        return ask(Behaviour.ENDLESS, max_tokens=None)

    def limited(self):
        return ask(Behaviour.ENDLESS, max_tokens=7)

    def stopped(self):
        return self.brief(stop_ids=(EOS,))

    def overlong(self):
        return ask(Behaviour.OVERLONG)

    def refused(self):
        return ask(Behaviour.BUSY)

    def broken(self):
        return ask(Behaviour.BREAKS)

    async def wait_until_free(self, engine):
        async with asyncio.timeout(TO_NOTICE):
            await self.server.departures.get()


class TestVllmWithoutScaleOut(TestVllm):
    scale_out = False


class TestVllmInMessages(EngineContract):
    """Models without a renderer are asked as by `OpenAIChat`."""

    model = "fake-chat"

    @contextlib.asynccontextmanager
    async def engine(self):
        async with ChatServer() as server:
            engine = Vllm("main", {"BASE_URL": server.url})
            # The fake of the chat route has no other.
            engine.root = server.url
            yield engine
            await engine.aclose()

    async def test_it_lists_its_model_and_is_healthy(self):
        async with self._running() as engine:
            assert self.model in [model.id for model in await engine.models()]

    def endless(self):
        return chat_request("!tokens 1000000 !rate 50", model=self.model)

    def refused(self):
        return chat_request("Hi", model="fault:overloaded")

    def broken(self):
        return chat_request("Hi", model="fault:error-after-200")


async def test_ids_in_ids_out(server, engine):
    deltas = await collect_tokens(engine, ask(1, 2, 3))

    assert ids_in(deltas) == [*range(FIRST_TOKEN, FIRST_TOKEN + 5), EOS]
    assert deltas[-1] == Finished("stop", Usage(input_tokens=3, output_tokens=6))
    assert server.calls[0].body["token_ids"] == [1, 2, 3]
    assert server.calls[0].headers["authorization"] == "Bearer secret"


async def test_everything_asked_for_is_passed_on(server, engine):
    request = ask(
        *(1, 2),
        max_tokens=7,
        stop_ids=(2, 9),
        request_id="resp_a",
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        affinity="7:chain",
        isolation="org-7",
    )

    await collect_tokens(engine, request)

    body, headers = server.calls[0].body, server.calls[0].headers
    assert body == {
        "token_ids": [1, 2],
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "sampling_params": {
            "max_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "frequency_penalty": 0.1,
            "presence_penalty": 0.2,
            "stop_token_ids": [2, 9],
        },
        "cache_salt": "org-7",
    }
    assert headers["x-session-id"] == "7:chain"
    assert headers["x-request-id"].startswith("resp_a-")


@pytest.mark.parametrize(
    ("constraint", "sent"),
    [
        (Constraint("json_schema", {"type": "object"}), {"json": {"type": "object"}}),
        (Constraint("structural_tag", {"type": "structural_tag"}), {"structural_tag": '{"type":"structural_tag"}'}),
        (Constraint("regex", "a+"), {"regex": "a+"}),
        (Constraint("gbnf", "root ::= [a]"), {"grammar": "root ::= [a]"}),
    ],
    ids=lambda value: value.kind if isinstance(value, Constraint) else "",
)
@pytest.mark.parametrize("scale_out", [True, False], ids=["generate", "completions"])
async def test_an_answer_is_held_to_its_form(constraint, sent, scale_out):
    async with FakeVllm(scale_out=scale_out) as server, running(server) as engine:
        await collect_tokens(engine, ask(1, constraint=constraint))

        body = server.calls[-1].body
        assert constraint.kind in engine.capabilities.constraints
        assert body.get("sampling_params", body)["structured_outputs"] == sent
        # Or a server with --reasoning-parser waits for the end of a reasoning that may never begin.
        assert body.get("reasoning_ended") is (True if scale_out else None)


async def test_what_the_settings_say_of_sampling_holds_where_the_client_says_nothing(server):
    async with running(server, SAMPLING={"temperature": 0.6, "top_k": 20}) as engine:
        await collect_tokens(engine, ask(1))
        await collect_tokens(engine, ask(1, temperature=0.0))

    sent = [call.body["sampling_params"] for call in server.calls]
    assert [(one["temperature"], one["top_k"]) for one in sent] == [(0.6, 20), (0.0, 20)]


async def test_logprobs_come_with_their_ids(engine):
    deltas = await collect_tokens(engine, ask(1, max_tokens=2, top_logprobs=1))

    (first, second) = (delta for delta in deltas if isinstance(delta, Tokens))
    assert [one["token"] for one in first.logprobs + second.logprobs] == ["a", "b"]
    assert [len(one["top_logprobs"]) for one in first.logprobs] == [1]


async def test_what_an_organisation_has_sent_is_cached_for_it_alone(engine):
    prompt = range(200, 240)
    cached = []
    for organisation in ("a", "a", "b"):
        deltas = await collect_tokens(engine, ask(*prompt, isolation=organisation))
        cached.append(deltas[-1].usage.cached_tokens)

    assert cached == [0, 32, 0]


async def test_a_warm_up_discards_its_one_token(server, engine):
    request = ask(*range(200, 240), max_tokens=500, constraint=Constraint("regex", "a"))

    usage = await engine.prefill(request)
    deltas = await collect_tokens(engine, request)

    assert usage == Usage(input_tokens=40)
    assert server.calls[0].body["sampling_params"] == {"max_tokens": 1}
    assert deltas[-1].usage.cached_tokens == 32


async def test_a_server_without_scale_out_is_asked_for_completions(caplog):
    async with FakeVllm(scale_out=False) as server, running(server) as engine:
        with caplog.at_level(logging.WARNING):
            first = await collect_tokens(engine, ask(1, 2, affinity="7:c", isolation="org-7", temperature=0.5))
            second = await collect_tokens(engine, ask(1, 2, max_tokens=None))

        assert ids_in(first) == ids_in(second) == [*range(FIRST_TOKEN, FIRST_TOKEN + 5), EOS]
        assert [call.path for call in server.calls] == ["/inference/v1/generate", "/v1/completions", "/v1/completions"]
        body = server.calls[1].body
        assert body["prompt"] == [1, 2]
        assert (body["return_token_ids"], body["max_tokens"], body["temperature"]) == (True, 64, 0.5)
        assert body["cache_salt"] == "org-7"
        assert server.calls[1].headers["x-session-id"] == "7:c"
        # Left out, it would be 16.
        assert server.calls[2].body["max_tokens"] is None
        assert ["--enable-scale-out" in record.message for record in caplog.records] == [True]


async def test_the_better_route_is_tried_again_after_a_while(monkeypatch):
    monkeypatch.setattr("responses_ws.engines.vllm.SECONDS_UNTIL_RECHECK", -1.0)
    async with FakeVllm(scale_out=False) as server, running(server) as engine:
        await collect_tokens(engine, ask(1))
        server.scale_out = True
        await collect_tokens(engine, ask(1))

        assert server.calls[-1].path == "/inference/v1/generate"


async def test_a_model_that_is_not_served_is_no_reason_to_change_the_route(server, engine):
    server.replies += [load("vllm", "unknown_model")] * 2

    with pytest.raises(EngineError) as caught:
        await collect_tokens(engine, ask(1))
    await collect_tokens(engine, ask(1))

    assert (caught.value.kind, caught.value.status) == ("bad_request", 404)
    assert server.calls[-1].path == "/inference/v1/generate"


@pytest.mark.parametrize("name", ["free", "json_schema", "tag_required", "tag_auto", "cached", "logprobs"])
async def test_what_a_real_one_has_answered_is_understood(server, engine, name):
    recorded = load("vllm", name)
    server.replies.append(recorded)

    deltas = await collect_tokens(engine, ask(*recorded.prompt, top_logprobs=2 if name == "logprobs" else None))

    assert server.calls[0].body["token_ids"] == recorded.prompt
    assert isinstance(deltas[-1], Finished)
    assert deltas[-1].usage.output_tokens == len(ids_in(deltas)) > 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [("overlong", "context_length"), ("bad_grammar", "bad_request"), ("no_tokens", "bad_request")],
)
async def test_what_a_real_one_has_refused_is_refused_on_entering(server, engine, name, kind):
    server.replies.append(load("vllm", name))

    with pytest.raises(EngineError) as caught:
        async with engine.generate(ask(1)):
            raise AssertionError("was accepted")

    assert (caught.value.kind, caught.value.status) == (kind, 400)


@pytest.mark.parametrize(
    ("behaviour", "kind", "headers"),
    [(Behaviour.OVERLONG, "context_length", {}), (Behaviour.BUSY, "overloaded", {"retry-after": "7"})],
    ids=["200-with-error", "status"],
)
async def test_refusals_raise_on_entering(engine, behaviour, kind, headers):
    entered = False

    with pytest.raises(EngineError) as caught:
        async with engine.generate(ask(behaviour)):
            entered = True

    assert not entered
    assert (caught.value.kind, caught.value.headers) == (kind, headers)


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (Behaviour.BREAKS, "engine"),
        (Behaviour.CUT, "unavailable"),
        (Behaviour.ABORTED, "unavailable"),
        (Behaviour.UNREADABLE, "protocol"),
    ],
)
async def test_breaks_raise_after_what_was_made(engine, behaviour, kind):
    deltas = []

    async with engine.generate(ask(behaviour)) as batches:
        with pytest.raises(EngineError) as caught:
            async for batch in batches:
                deltas += batch

    assert caught.value.kind == kind
    assert ids_in(deltas) == [FIRST_TOKEN, FIRST_TOKEN + 1]


@pytest.mark.parametrize("behaviour", [Behaviour.SLOW_PROMPT, Behaviour.STALLS, Behaviour.ENDLESS])
@pytest.mark.parametrize("scale_out", [True, False], ids=["generate", "completions"])
async def test_the_engine_sees_at_once_that_a_call_was_left(behaviour, scale_out):
    async with FakeVllm(scale_out=scale_out) as server, running(server) as engine:
        task = asyncio.create_task(collect_tokens(engine, ask(behaviour, max_tokens=None, request_id="resp_a")))
        async with asyncio.timeout(DEADLINE):
            await server.arrivals.get()
        task.cancel()
        async with asyncio.timeout(TO_NOTICE):
            assert await server.departures.get() == behaviour
            if scale_out:
                assert (await server.aborts.get()).startswith(f"{PREFIX}resp_a-")
        await asyncio.gather(task, return_exceptions=True)

        assert task.cancelled()
        assert server.aborts.empty()


async def test_a_call_that_has_ended_is_not_aborted(server, engine):
    await collect_tokens(engine, ask(1))
    with contextlib.suppress(EngineError):
        await collect_tokens(engine, ask(Behaviour.OVERLONG))
    await engine.aclose()

    assert server.aborts.empty()


async def test_connections_are_kept(server, engine):
    for _ in range(20):
        await collect_tokens(engine, ask(1))

    assert len(server.connections) < 5


async def test_calls_side_by_side_have_ids_of_their_own(server, engine):
    answers = await asyncio.gather(*(collect_tokens(engine, ask(1, request_id="resp_a")) for _ in range(4)))

    assert all(ids_in(deltas)[-1] == EOS for deltas in answers)
    assert len({call.call_id for call in server.calls}) == 4


async def test_health_is_asked_of_the_engine_behind_the_routes(server, engine):
    well = await engine.health()
    server.is_healthy = False
    sick = await engine.health()

    assert (well.ok, sick.ok) == (True, False)
    assert (await engine.models())[0].context_tokens == 4096


async def test_how_it_would_render_and_count_a_conversation_it_tells(server, engine):
    server.rendered = [7, 8]
    request = chat_request("Hi", model=MODEL, tools=[{"type": "function", "function": {"name": "f"}}])

    assert await engine.rendered(request) == [7, 8, 1, 1]
    assert await engine.count(request) == 4


async def test_a_server_without_scale_out_tells_nothing_of_it():
    async with FakeVllm(scale_out=False) as server, running(server) as engine:
        assert await engine.count(chat_request("Hi", model=MODEL)) is None


async def test_the_chat_route_keeps_organisations_apart_too():
    async with ChatServer() as server:
        engine = Vllm("main", {"BASE_URL": server.url, "EXTRA_BODY": {"priority": 3}})
        async with engine.chat(chat_request("Hi", model="fake-chat", isolation="org-7")) as answer:
            _ = [deltas async for deltas in answer]
        await engine.aclose()

        assert (server.requests[0]["cache_salt"], server.requests[0]["priority"]) == ("org-7", 3)


def test_a_log_goes_out_as_the_bytes_it_is():
    engine = Vllm("main", {"BASE_URL": "http://127.0.0.1:1/v1"})
    request = ask(*range(50_000))

    pieces = engine._generate_body(request)

    assert msgspec.json.decode(b"".join(pieces))["token_ids"] == list(range(50_000))
    assert any(isinstance(piece, memoryview) and piece.obj is request.prompt.json().obj for piece in pieces)
