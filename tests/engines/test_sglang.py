import asyncio
import contextlib
import logging

import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.sglang import SGLang
from responses_ws.protocol.sampling import Constraint, Finished, Started
from responses_ws.protocol.usage import Usage
from responses_ws.testing import TokenContract, chat_request, collect_tokens, ids_in, token_request
from tests.fakes.chat_server import ChatServer
from tests.fakes.sglang_server import FakeSGLang
from tests.fakes.token_server import EOS, FIRST_TOKEN, MODEL, Behaviour
from tests.fakes.transcripts import load

DEADLINE = 5.0
TO_NOTICE = 0.5  # what a cancel may take until the engine sees it
SAID = [*range(FIRST_TOKEN, FIRST_TOKEN + 5), EOS]


@pytest.fixture
async def server():
    async with FakeSGLang() as server:
        yield server


@pytest.fixture
async def engine(server):
    async with running(server) as engine:
        yield engine


@contextlib.asynccontextmanager
async def running(server, **options):
    engine = SGLang("main", {"BASE_URL": f"{server.url}/v1", "API_KEY": "secret", **options})
    try:
        yield engine
    finally:
        await engine.aclose()


def ask(*ids, **fields):
    return token_request(ids, model=MODEL, **{"max_tokens": 64, **fields})


class TestSGLang(TokenContract):
    model = MODEL
    prompt = range(200, 280)
    options: dict = {}
    incremental = False

    @contextlib.asynccontextmanager
    async def engine(self):
        async with FakeSGLang(incremental=self.incremental) as self.server:
            async with running(self.server, **self.options) as engine:
                yield engine

    def endless(self):
        return ask(Behaviour.ENDLESS, max_tokens=None, affinity="7:c")

    def limited(self):
        return ask(Behaviour.ENDLESS, max_tokens=7, affinity="7:c")

    def stopped(self):
        return self.brief(stop_ids=(EOS,))

    def overlong(self):
        return ask(Behaviour.OVERLONG, affinity="7:c")

    def refused(self):
        return ask(Behaviour.BUSY, affinity="7:c")

    def broken(self):
        return ask(Behaviour.BREAKS, affinity="7:c")

    async def wait_until_free(self, engine):
        async with asyncio.timeout(TO_NOTICE):
            await self.server.departures.get()
            await self.server.aborts.get()


class TestSGLangIncremental(TestSGLang):
    incremental = True


class TestSGLangInSessions(TestSGLang):
    options = {"SESSIONS": 2}

    def brief(self, prompt=None, **fields):
        return super().brief(prompt, affinity="7:c", **fields)


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
        top_logprobs=3,
    )

    await collect_tokens(engine, request)

    body = server.calls[0].body
    assert body.pop("rid").startswith("resp_a-")
    assert body == {
        "input_ids": [1, 2],
        "stream": True,
        "sampling_params": {
            "max_new_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "frequency_penalty": 0.1,
            "presence_penalty": 0.2,
            "stop_token_ids": [2, 9],
        },
        "extra_key": "org-7",
        "routing_key": "7:chain",
        "return_logprob": True,
        "top_logprobs_num": 3,
        "return_text_in_logprobs": True,
    }
    assert server.calls[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("constraint", "sent"),
    [
        (Constraint("json_schema", {"type": "object"}), {"json_schema": '{"type":"object"}'}),
        (Constraint("structural_tag", {"type": "structural_tag"}), {"structural_tag": '{"type":"structural_tag"}'}),
        (Constraint("regex", "a+"), {"regex": "a+"}),
        (Constraint("gbnf", "root ::= [a]"), {"ebnf": "root ::= [a]"}),
    ],
    ids=lambda value: value.kind if isinstance(value, Constraint) else "",
)
async def test_an_answer_is_held_to_its_form(server, engine, constraint, sent):
    await collect_tokens(engine, ask(1, constraint=constraint))

    assert constraint.kind in engine.capabilities.constraints
    assert sent.items() <= server.calls[0].body["sampling_params"].items()


@pytest.mark.parametrize(
    ("wanted", "room", "sent"),
    [(None, None, None), (None, 4000, None), (9, 9, 9), (5000, 4000, None)],
    ids=["none", "context", "client", "client-above-context"],
)
async def test_an_output_limit_is_always_sent(server, engine, wanted, room, sent):
    """Left out, it is 128. What is left of the context SGLang itself knows best."""
    await collect_tokens(engine, ask(1, max_tokens=room, max_output_tokens=wanted))

    assert server.calls[0].body["sampling_params"] == {"max_new_tokens": sent}


async def test_what_the_settings_say_of_sampling_holds_where_the_client_says_nothing(server):
    async with running(server, SAMPLING={"temperature": 0.6, "top_k": 20, "max_new_tokens": 9}) as engine:
        await collect_tokens(engine, ask(1))
        await collect_tokens(engine, ask(1, temperature=0.0))

    sent = [call.body["sampling_params"] for call in server.calls]
    assert sent == [
        {"temperature": 0.6, "top_k": 20, "max_new_tokens": 64},
        {"temperature": 0.0, "top_k": 20, "max_new_tokens": 64},
    ]


async def test_it_says_first_what_it_had_cached(engine):
    prompt = range(200, 240)
    started = [(await collect_tokens(engine, ask(*prompt, isolation=one)))[0] for one in ("a", "a", "b")]

    assert started == [Started(40, 0), Started(40, 32), Started(40, 0)]


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
@pytest.mark.parametrize("sessions", [0, 1])
async def test_the_engine_is_told_at_once_that_a_call_was_left(server, behaviour, sessions):
    """By itself it would notice two seconds later."""
    async with running(server, SESSIONS=sessions) as engine:
        request = ask(behaviour, max_tokens=None, request_id="resp_a", affinity="7:c")
        task = asyncio.create_task(collect_tokens(engine, request))
        async with asyncio.timeout(DEADLINE):
            await server.arrivals.get()
        task.cancel()
        async with asyncio.timeout(TO_NOTICE):
            assert await server.departures.get() == behaviour
            assert await server.aborts.get() == server.calls[0].call_id
        await asyncio.gather(task, return_exceptions=True)

        assert task.cancelled()


async def test_a_call_that_has_ended_is_not_aborted(server, engine):
    await collect_tokens(engine, ask(1))
    with contextlib.suppress(EngineError):
        await collect_tokens(engine, ask(Behaviour.OVERLONG))
    await engine.aclose()

    assert server.aborts.empty()


async def test_aborting_one_call_aborts_no_other(server, engine):
    """An id aborts all that begin with it."""
    for _ in range(12):
        await collect_tokens(engine, ask(1, request_id="resp_a"))

    ids = [call.call_id for call in server.calls]
    assert not [(one, other) for one in ids for other in ids if one != other and other.startswith(one)]


async def test_connections_are_kept(server, engine):
    for _ in range(20):
        await collect_tokens(engine, ask(1))

    assert len(server.connections) < 5


async def test_health_and_models(server, engine):
    well = await engine.health()
    server.is_healthy = False
    sick = await engine.health()

    assert (well.ok, sick.ok) == (True, False)
    assert [(model.id, model.context_tokens) for model in await engine.models()] == [(MODEL, 4096)]


async def test_the_chat_route_keeps_organisations_apart_too():
    async with ChatServer() as server:
        engine = SGLang("main", {"BASE_URL": server.url})
        async with engine.chat(chat_request("Hi", model="fake-chat", isolation="org-7")) as answer:
            _ = [deltas async for deltas in answer]
        await engine.aclose()

        assert server.requests[0]["extra_key"] == "org-7"


async def turn(engine, log, **fields):
    """One turn of a chain; gives the log with its answer and what was told."""
    deltas = await collect_tokens(engine, token_request((), model=MODEL, prompt=log, **{"affinity": "7:c", **fields}))
    return log.extended(ids_in(deltas), "sampled", messages=log.messages + 1), deltas


def grown(log, *ids):
    return log.extended(ids, "rendered", messages=log.messages + 1)


@pytest.fixture
async def in_sessions(server):
    async with running(server, SESSIONS=2) as engine:
        yield engine


def sent(server):
    """What each call was sent, and whether in a session."""
    return [(call.body["input_ids"], "session_params" in call.body) for call in server.calls]


async def test_a_session_is_told_new_ids_only(server, in_sessions):
    log, first = await turn(in_sessions, ask(1, 2, 3).prompt)
    log, second = await turn(in_sessions, grown(log, 4, 5))
    _, third = await turn(in_sessions, grown(log, 6))

    assert sent(server) == [([1, 2, 3], True), ([4, 5], True), ([6], True)]
    assert server.calls[2].ids == [1, 2, 3, *SAID, 4, 5, *SAID, 6]
    assert [deltas[-1].usage.input_tokens for deltas in (first, second, third)] == [3, 11, 18]


async def test_closing_the_engine_closes_its_sessions(server, in_sessions):
    await turn(in_sessions, ask(1).prompt)
    await turn(in_sessions, ask(2).prompt, affinity="7:d")
    opened = len(server.sessions)

    await in_sessions.aclose()

    assert (opened, server.sessions) == (2, {})


async def test_a_fork_gets_a_session_of_its_own(server, in_sessions):
    log, _ = await turn(in_sessions, ask(1, 2, 3).prompt)
    await turn(in_sessions, grown(log, 4))
    fork, _ = await turn(in_sessions, grown(log, 5, 6))
    await turn(in_sessions, grown(fork, 7))

    assert sent(server)[2:] == [([1, 2, 3, *SAID, 5, 6], True), ([7], True)]
    async with asyncio.timeout(10):
        # Told beside the turn.
        await server.closed_sessions.get()
    assert len(server.sessions) == 1


async def test_a_turn_that_was_left_leaves_the_session_where_it_was(server, in_sessions):
    log, _ = await turn(in_sessions, ask(Behaviour.ENDLESS).prompt, max_tokens=3)
    left = grown(log, 4)
    request = token_request((), model=MODEL, prompt=left, affinity="7:c")
    async with in_sessions.generate(request) as batches:
        batch = await anext(batches)
    async with asyncio.timeout(TO_NOTICE):
        await server.departures.get()
    steered = left.extended(ids_in(batch), "sampled", messages=3)

    await turn(in_sessions, grown(steered, 8), max_tokens=3)

    assert sent(server)[-1] == ([4, *ids_in(batch), 8], True)


async def test_while_a_session_is_busy_the_whole_prompt_is_sent(server, in_sessions):
    first = token_request([Behaviour.ENDLESS], model=MODEL, affinity="7:c")

    async with in_sessions.generate(first):
        deltas = await collect_tokens(in_sessions, ask(1, 2, affinity="7:c"))

    assert sent(server)[1] == ([1, 2], False)
    assert ids_in(deltas) == SAID


async def test_a_session_that_the_server_has_closed_costs_one_more_try(server, in_sessions):
    log, _ = await turn(in_sessions, ask(1, 2, 3).prompt)
    server.sessions.clear()

    _, deltas = await turn(in_sessions, grown(log, 4))

    assert sent(server)[1:] == [([4], True), ([1, 2, 3, *SAID, 4], False)]
    assert deltas[-1] == Finished("stop", Usage(input_tokens=10, output_tokens=6))


async def test_a_session_that_holds_something_else_is_left(server, in_sessions):
    """It drops a leading BOS, for one. What it counts tells."""
    log, _ = await turn(in_sessions, ask(1, 2, 3).prompt)
    (name,) = server.sessions
    server.sessions[name].append(77)

    _, deltas = await turn(in_sessions, grown(log, 4))

    assert sent(server)[-1] == ([1, 2, 3, *SAID, 4], False)
    assert [type(delta) for delta in deltas].count(Started) == 1
    assert deltas[-1].usage.input_tokens == 10


async def test_a_session_that_was_closed_meanwhile_takes_no_other_with_it(server, in_sessions):
    async with in_sessions.generate(ask(Behaviour.ENDLESS, max_tokens=None, affinity="7:c")):
        in_sessions.sessions.close()
        log, _ = await turn(in_sessions, ask(1, 2).prompt)

    await turn(in_sessions, grown(log, 3))

    assert sent(server)[1:] == [([1, 2], True), ([3], True)]


async def test_only_the_sessions_used_last_are_kept(server, in_sessions):
    log, _ = await turn(in_sessions, ask(1).prompt, affinity="a")
    await turn(in_sessions, ask(1).prompt, affinity="b")
    await turn(in_sessions, grown(log, 2), affinity="a")
    await turn(in_sessions, ask(1).prompt, affinity="c")
    async with asyncio.timeout(DEADLINE):
        closed = await server.closed_sessions.get()

    assert len(server.sessions) == 2
    assert closed == server.calls[1].body["session_params"]["id"]


async def test_a_server_without_sessions_is_asked_with_whole_prompts(caplog):
    async with FakeSGLang(with_sessions=False) as server, running(server, SESSIONS=2) as engine:
        with caplog.at_level(logging.WARNING):
            log, _ = await turn(engine, ask(1, 2).prompt)
            await turn(engine, grown(log, 3))

        assert sent(server) == [([1, 2], False), ([1, 2, *SAID, 3], False)]
        assert ["--enable-streaming-session" in record.message for record in caplog.records] == [True]


async def test_a_full_queue_is_no_fault_of_the_session(server, in_sessions):
    log, _ = await turn(in_sessions, ask(1, 2).prompt)
    server.replies.append(load("sglang", "queue_full"))

    with pytest.raises(EngineError) as caught:
        await turn(in_sessions, grown(log, 3))
    await turn(in_sessions, grown(log, 3))

    assert caught.value.kind == "overloaded"
    assert sent(server)[-1] == ([3], True)


async def test_a_warm_up_is_no_part_of_the_session(server, in_sessions):
    usage = await in_sessions.prefill(ask(*range(200, 240), affinity="7:c"))
    await turn(in_sessions, ask(*range(200, 240)).prompt)

    assert usage == Usage(input_tokens=40)
    assert server.calls[0].body["sampling_params"] == {"max_new_tokens": 1}
    assert [is_in_session for _, is_in_session in sent(server)] == [False, True]
