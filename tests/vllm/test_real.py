"""The adapter against a real vLLM; `run.py` starts it. Assertions are on ids, counts and shapes, never on words."""

import asyncio
import contextlib
import os
import re

import msgspec
import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.vllm import Vllm
from responses_ws.protocol.sampling import Constraint, Finished, Tokens
from responses_ws.rendering.tokens import TokenLog
from responses_ws.testing import TokenContract, collect_tokens, ids_in, token_request
from tests.live import until
from tests.rendering.referees import QUESTION, WEATHER

from .asking import calls_in, rendered, said
from .record import SCHEMA, calls_of_weather
from .server import MODEL

pytestmark = pytest.mark.vllm

EOS = 2
BLOCK = 128  # of the prefix cache on a CPU


@pytest.fixture(params=["VLLM_URL", "VLLM_BARE_URL"], ids=["generate", "completions"])
async def engine(request):
    """On its better route, and on the one that servers without --enable-scale-out have."""
    if request.param not in os.environ:
        pytest.skip(f"{request.param} names no server")
    engine = Vllm("main", {"BASE_URL": f"{os.environ[request.param]}/v1"})
    yield engine
    await engine.aclose()


class TestContract(TokenContract):
    model = MODEL
    prompt = range(1000, 1000 + 3 * BLOCK)
    seconds_to_answer = 120.0

    @contextlib.asynccontextmanager
    async def engine(self):
        # What it says to random ids means nothing, and should not end by itself.
        engine = Vllm("main", {"BASE_URL": f"{os.environ['VLLM_URL']}/v1", "SAMPLING": {"ignore_eos": True}})
        try:
            yield engine
        finally:
            await engine.aclose()

    def endless(self):
        return token_request(self.prompt, model=MODEL)

    def limited(self):
        return self.brief(max_tokens=5)

    def overlong(self):
        return token_request([7] * 5000, model=MODEL)

    def refused(self):
        return token_request([10**6], model=MODEL)

    async def wait_until_free(self, engine):
        await asyncio.to_thread(until, lambda: calls_in(engine.root) == 0, "the call to end", seconds=30)


def ask(ids, **fields):
    fields = {"max_tokens": 16, "temperature": 0.0, "stop_ids": (EOS,), **fields}
    return token_request(ids, model=MODEL, **fields)


async def sample(engine, request):
    deltas = await collect_tokens(engine, request)
    ids = ids_in(deltas)
    assert isinstance(deltas[-1], Finished)
    assert deltas[-1].usage.output_tokens == len(ids)
    assert deltas[-1].usage.input_tokens == len(request.prompt)
    return ids, deltas[-1], deltas


def question(words=QUESTION, **fields):
    return rendered(messages=[{"role": "user", "content": words}], **fields)


async def test_an_answer_ends_with_its_end_of_turn(engine):
    ids, finished, _ = await sample(engine, ask(question(), max_tokens=100))

    assert finished.reason == "stop"
    assert ids[-1] == EOS


async def test_the_output_limit_is_kept(engine):
    ids, finished, _ = await sample(engine, ask(question(), max_tokens=3))

    assert (len(ids), finished.reason) == (3, "length")


async def test_a_turn_behind_what_was_sampled_finds_it_cached(engine):
    log = TokenLog().extended(question("Tell me about Paris. " * 60), "rendered", messages=1)
    ids, _, _ = await sample(engine, ask((), prompt=log))
    log = log.extended(ids, "sampled", messages=2).extended(question("And now?"), "rendered", messages=3)

    _, finished, _ = await sample(engine, ask((), prompt=log))

    # How much a server without --enable-prompt-tokens-details has cached it does not tell.
    if engine._generate_is_back_at == 0.0:
        assert finished.usage.cached_tokens >= len(log.until(1)) // BLOCK * BLOCK


async def test_a_warm_up_fills_the_cache_of_its_organisation_alone(engine):
    request = ask(question("How far is it from Rome to Milan? " * 40), isolation="org-1")
    usage = await engine.prefill(request)

    _, warm, _ = await sample(engine, request)
    _, cold, _ = await sample(engine, ask((), prompt=request.prompt, isolation="org-2"))

    assert usage.input_tokens == len(request.prompt) and usage.output_tokens == 0
    if engine._generate_is_back_at == 0.0:
        assert warm.usage.cached_tokens >= BLOCK
    assert cold.usage.cached_tokens == 0


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint("json_schema", SCHEMA), None),
        (Constraint("regex", "(yes|no) indeed"), r"(yes|no) indeed"),
        (Constraint("gbnf", 'root ::= "red" | "green"'), r"red|green"),
    ],
    ids=["json_schema", "regex", "gbnf"],
)
async def test_an_answer_is_held_to_its_form(engine, constraint, pattern):
    ids, finished, _ = await sample(engine, ask(question(), constraint=constraint, max_tokens=80))

    text = said([one for one in ids if one != EOS])
    assert finished.reason == "stop"
    if pattern is None:
        assert msgspec.json.decode(text).keys() == {"city"}
    else:
        assert re.fullmatch(pattern, text)


async def test_a_call_can_be_demanded_by_a_structural_tag(engine):
    prompt = question("Is it warm in Paris?", tools=[WEATHER])
    constraint = Constraint("structural_tag", calls_of_weather(is_required=True))

    ids, finished, _ = await sample(engine, ask(prompt, constraint=constraint, max_tokens=100))

    text = said([one for one in ids if one != EOS])
    call = msgspec.json.decode(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert finished.reason == "stop"
    assert call["name"] == "get_weather" and isinstance(call["arguments"]["city"], str)


async def test_a_call_that_is_not_demanded_need_not_come(engine):
    prompt = question("Is it warm in Paris?", tools=[WEATHER])
    constraint = Constraint("structural_tag", calls_of_weather(is_required=False))

    ids, _, _ = await sample(engine, ask(prompt, constraint=constraint, max_tokens=30))

    assert 0 < len(ids) <= 30


async def test_logprobs_are_one_a_token(engine):
    _, _, deltas = await sample(engine, ask(question(), top_logprobs=2, max_tokens=4))

    told = [one for delta in deltas if isinstance(delta, Tokens) for one in delta.logprobs]
    assert len(told) == 4
    assert all(one["logprob"] <= 0 and len(one["top_logprobs"]) == 2 for one in told)


@pytest.mark.parametrize("prompt", [[7] * 5000, [10**6]], ids=["overlong", "no such id"])
async def test_a_prompt_that_it_refuses_is_refused_on_entering(engine, prompt):
    with pytest.raises(EngineError) as caught:
        async with engine.generate(ask(prompt)):
            raise AssertionError("was accepted")

    assert caught.value.kind == ("context_length" if len(prompt) > 1 else "bad_request")


@pytest.mark.parametrize("phase", ["prompt", "answer"])
async def test_a_call_that_was_left_runs_no_longer(engine, phase):
    running = asyncio.Event()
    prompt = question("Tell me a very long story. " * (400 if phase == "prompt" else 1))

    async def listen():
        running.set()
        async with engine.generate(ask(prompt, max_tokens=2000)) as batches:
            async for _ in batches:
                if phase == "answer":
                    left.set()

    left = asyncio.Event()
    task = asyncio.create_task(listen())
    await (running if phase == "prompt" else left).wait()
    await asyncio.to_thread(until, lambda: calls_in(engine.root) == 1, "the call to run", seconds=30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    # It notices between two steps; one may take a while on a CPU.
    await asyncio.to_thread(until, lambda: calls_in(engine.root) == 0, "the call to end", seconds=30)


async def test_it_lists_its_model_and_is_healthy(engine):
    models = await engine.models()

    assert [(model.id, model.context_tokens) for model in models] == [(MODEL, 4096)]
    assert (await engine.health()).ok
