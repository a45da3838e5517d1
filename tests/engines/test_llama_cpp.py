"""A real llama.cpp with random weights: ids, counts and life. What it says means nothing."""

import asyncio
import contextlib

import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.llama_cpp import LlamaCpp
from responses_ws.protocol.sampling import Constraint, Finished, Progress, Started, TextDelta, Tokens
from responses_ws.rendering.tokens import TokenLog
from responses_ws.testing import TokenContract, chat_request, collect, collect_tokens, ids_in, token_request
from tests.fakes.llama_server import CONTEXT_TOKENS, KEY, MODEL, SLOTS, LlamaServer
from tests.fakes.tiny_gguf import END, FIRST_BYTE, MARKERS, text_of

pytest.importorskip("xllamacpp", reason="pip install xllamacpp==2026.10.11549")

DEADLINE = 60.0
SECONDS_TO_SEE_A_DEPARTURE = 0.5


def spelled(text):
    """The ids of a text's bytes."""
    return [FIRST_BYTE + byte for byte in text.encode()]


PROMPT = spelled("The quick brown fox jumps over the lazy dog. " * 5)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LlamaServer(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture
async def engine(server):
    async with asyncio.timeout(DEADLINE), running(server) as engine:
        yield engine


@contextlib.asynccontextmanager
async def running(server, **options):
    engine = LlamaCpp("llama", {"BASE_URL": server.url, "API_KEY": KEY, **options})
    try:
        yield engine
    finally:
        await engine.aclose()


def ask(prompt=PROMPT, **fields):
    return token_request(prompt, model=MODEL, **fields)


def held_to(kind, value, **fields):
    return ask(constraint=Constraint(kind, value), **{"max_tokens": 60, "stop_ids": (END,), **fields})


async def until_true(ask_server, seconds=DEADLINE):
    async with asyncio.timeout(seconds):
        # It cannot tell; it can only be asked.
        while not await asyncio.to_thread(ask_server):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def wait_until_free(server):
    await until_true(lambda: not server.busy(), SECONDS_TO_SEE_A_DEPARTURE)


async def until(kind, answer):
    async for deltas in answer:
        if any(isinstance(delta, kind) for delta in deltas):
            return


class TestContract(TokenContract):
    model = MODEL
    prompt = PROMPT
    seconds_to_answer = DEADLINE

    @pytest.fixture(autouse=True)
    def use(self, server):
        self.server = server

    def engine(self):
        return running(self.server)

    def endless(self):
        return ask(max_tokens=CONTEXT_TOKENS // 2)

    def limited(self):
        return ask(max_tokens=5)

    def stopped(self):
        return held_to("gbnf", 'root ::= "hello"')

    def overlong(self):
        return ask(PROMPT * (CONTEXT_TOKENS // len(PROMPT) + 1))

    def refused(self):
        return held_to("gbnf", "root ::= (")

    async def wait_until_free(self, engine):
        await wait_until_free(self.server)


async def test_the_prompt_is_read_once_and_then_only_what_is_new(engine):
    log = TokenLog().extended(spelled("Nobody has said this before. " * 5), "rendered", messages=1)
    for turn in range(3):
        deltas = await collect_tokens(engine, ask(prompt=log, max_tokens=6))
        usage = deltas[-1].usage
        new = len(log) - usage.cached_tokens

        assert usage.input_tokens == len(log)
        # The last token is always read again, and the server's cache lacks the last that was sampled.
        assert new <= 64 if turn else new == len(log)
        log = log.extended(ids_in(deltas), "sampled", messages=2).extended(spelled("Go on."), "rendered", messages=3)


async def test_progress_is_told_while_the_prompt_is_read(engine):
    prompt = spelled("Another prompt altogether. " * 20)

    deltas = await collect_tokens(engine, ask(prompt, max_tokens=1))

    assert deltas[0] == Started(len(prompt), 0)
    assert [delta for delta in deltas if isinstance(delta, Progress)][-1] == Progress(len(prompt), len(prompt))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("gbnf", 'root ::= "yes, " "or no"', "yes, or no"),
        ("json_schema", {"const": "yes"}, '"yes"'),
    ],
    ids=["gbnf", "json_schema"],
)
async def test_an_answer_is_held_to_its_constraint(engine, kind, value, text):
    deltas = await collect_tokens(engine, held_to(kind, value))

    *said, last = ids_in(deltas)
    assert last == END
    assert text_of(said) == text
    assert deltas[-1].reason == "stop"


async def test_markers_can_be_part_of_a_prompt(engine):
    """A control token in the prompt is one id, wherever it stands."""
    prompt = [*PROMPT, END, *range(len(MARKERS))]

    deltas = await collect_tokens(engine, ask(prompt, max_tokens=1))

    assert deltas[-1].usage.input_tokens == len(prompt)


async def test_no_token_of_a_character_is_lost(engine):
    """The server streams whole characters and tells only the last token of each."""
    text = "aé😀b"

    deltas = await collect_tokens(engine, held_to("gbnf", f'root ::= "{text}"'))

    assert ids_in(deltas) == [*spelled(text), END]
    assert deltas[-1].usage.output_tokens == len(spelled(text)) + 1


async def test_logprobs_are_one_a_token(engine):
    deltas = await collect_tokens(engine, held_to("gbnf", 'root ::= "aé"', top_logprobs=2))

    tokens = [delta for delta in deltas if isinstance(delta, Tokens)]
    told = [one for delta in tokens for one in delta.logprobs]
    assert [len(delta.ids) for delta in tokens] == [len(delta.logprobs) for delta in tokens]
    assert [one["token"] for one in told] == ["a", "", "é", ""]
    assert told[0].keys() == {"token", "bytes", "logprob", "top_logprobs"}
    assert told[0]["bytes"] == [97] and told[0]["logprob"] < 0
    assert [top.keys() for top in told[0]["top_logprobs"]] == [{"token", "bytes", "logprob"}] * 2


async def test_logprobs_without_alternatives(engine):
    deltas = await collect_tokens(engine, ask(top_logprobs=0, max_tokens=1))

    (one,) = next(delta.logprobs for delta in deltas if isinstance(delta, Tokens))
    assert one["top_logprobs"] == []


async def test_who_leaves_while_the_prompt_is_read_is_seen_at_once(server, engine):
    prompt = spelled("z") * (CONTEXT_TOKENS - 100)

    async with engine.generate(ask(prompt, max_tokens=1)) as answer:
        await until(Progress, answer)
        busy = await asyncio.to_thread(server.busy)

    await wait_until_free(server)
    assert busy == 1


async def test_who_leaves_the_queue_is_seen_too(server, engine):
    async with contextlib.AsyncExitStack() as others:
        for _ in range(SLOTS):
            answer = await others.enter_async_context(engine.generate(ask(max_tokens=CONTEXT_TOKENS // 2)))
            await until(Tokens, answer)
        waiting = asyncio.create_task(collect_tokens(engine, ask(max_tokens=CONTEXT_TOKENS // 2)))
        await until_true(lambda: server.deferred() == 1)
        waiting.cancel()
        await asyncio.wait({waiting})

    await wait_until_free(server)
    assert waiting.cancelled()


async def test_more_answers_than_slots_wait_for_one(engine):
    answers = await asyncio.gather(*(collect_tokens(engine, ask(max_tokens=20)) for _ in range(SLOTS * 3)))

    assert [len(ids_in(deltas)) for deltas in answers] == [20] * SLOTS * 3


async def test_a_reader_that_pauses_holds_no_more_than_a_buffer(server, engine):
    """The engine goes on to its limit, as llama.cpp does; what we hold of it is bounded."""
    request = ask(max_tokens=1000, top_logprobs=20)

    async with engine.generate(request) as answer:
        await until(Tokens, answer)
        await until_true(lambda: not server.busy())
        steps = [ids_in(deltas) async for deltas in answer]

    assert sum(map(len, steps)) > 900
    assert max(map(len, steps)) < 500


async def test_a_server_that_dies_breaks_its_answers_and_comes_back(server, engine):
    async with engine.generate(ask(max_tokens=CONTEXT_TOKENS // 2)) as answer:
        await until(Tokens, answer)
        server.kill()
        with pytest.raises(EngineError) as broken:
            async for _ in answer:
                pass
    with pytest.raises(EngineError) as refused:
        await collect_tokens(engine, ask(max_tokens=1))
    down = await engine.health()
    server.start()
    deltas = await collect_tokens(engine, ask(max_tokens=1))

    assert (broken.value.kind, refused.value.kind) == ("unavailable", "unavailable")
    assert not down.ok
    assert isinstance(deltas[-1], Finished)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (ask([10**6]), "bad_request"),
        (ask([]), "bad_request"),
        (held_to("gbnf", "root ::= ("), "bad_request"),
        (ask(PROMPT * 100), "context_length"),
    ],
    ids=["unknown id", "no id", "bad grammar", "overlong"],
)
async def test_what_is_wrong_with_a_request_is_said(engine, request_, kind):
    with pytest.raises(EngineError) as caught:
        await collect_tokens(engine, request_)

    assert caught.value.kind == kind
    assert caught.value.message


async def test_a_wrong_key_is_ours_to_mend(server):
    async with running(server, API_KEY="wrong") as engine:
        with pytest.raises(EngineError) as caught:
            await collect_tokens(engine, ask(max_tokens=1))

    assert caught.value.kind == "auth"


async def test_a_model_has_the_room_of_one_slot(engine):
    (model,) = await engine.models()

    assert (model.id, model.context_tokens) == (MODEL, CONTEXT_TOKENS)
    assert (await engine.health()).ok


async def test_short_questions_share_a_connection(server, engine):
    for letter in "éèê":
        assert await engine.spelling(letter) == spelled(letter)

    assert len(engine._client._pool.connections) == 1


async def test_models_without_a_renderer_are_asked_in_messages(engine):
    deltas = await collect(engine, chat_request("Hello", model=MODEL, max_output_tokens=5))

    assert any(isinstance(delta, TextDelta) for delta in deltas)
    assert deltas[-1].usage.output_tokens == 5
