"""Whoever wants no more of an answer frees the engine, whichever it is, while it reads and while it writes.

Turns go through the real doors; what counts is what the engine's own side has seen.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey
from responses_ws.runtime import background
from responses_ws.serving import background as jobs
from responses_ws.testing import ResponsesCommunicator
from tests.fakes.chat_server import ChatServer
from tests.fakes.llama_server import LlamaServer
from tests.fakes.responses_server import ResponsesServer
from tests.fakes.sglang_server import FakeSGLang
from tests.fakes.vllm_server import FakeVllm
from tests.transports.test_views import KeyClient, post

from .rigs import ChatRig, LlamaRig, ResponsesRig, Rig, ScriptedRig, SGLangRig, SilentChatRig, VllmRig

# What none of them needs to end by itself, and a busy machine to tell of it.
SECONDS_TO_SEE_IT = 5.0
SECONDS_TO_GET_THERE = 30.0
# By the event that says so.
PHASES = {"prefill": "response.in_progress", "decode": "response.output_text.delta"}
NUMBERS = itertools.count()
ENGINES = ["scripted", "chat", "llama", "vllm", "vllm completions", "sglang", "responses", "responses socket"]
SITUATIONS = [*itertools.product(ENGINES, PHASES), ("silent chat", "prefill")]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Starts the one real server when it is first wanted."""
    pytest.importorskip("xllamacpp", reason="pip install xllamacpp==2026.10.11549")
    with LlamaServer(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path, settings: Any) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        rig = await rig_for(request.param, stack, tmp_path, request)
        settings.RESPONSES_WS = {
            "ENGINES": {"main": {"ENGINE": rig.engine, **rig.options}},
            "MODELS": {"m": {"ENGINE": "main", **rig.model}},
        }
        yield rig
        jobs.stop()
        await background.settle()
        await registry.aclose_all()


async def rig_for(name: str, stack: AsyncExitStack, folder: Path, request: pytest.FixtureRequest) -> Rig:
    enter = stack.enter_async_context
    match name:
        case "scripted":
            return ScriptedRig(folder)
        case "chat":
            return ChatRig(await enter(ChatServer()))
        case "silent chat":
            return SilentChatRig(await enter(ChatServer()))
        case "llama":
            return LlamaRig(request.getfixturevalue("llama"), next(NUMBERS))
        case "vllm" | "vllm completions":
            return VllmRig(await enter(FakeVllm(scale_out=name == "vllm")))
        case "sglang":
            return SGLangRig(await enter(FakeSGLang()))
    transport = "websocket" if name == "responses socket" else "http"
    return ResponsesRig(await enter(ResponsesServer()), transport)


@pytest.mark.parametrize(("rig", "phase"), SITUATIONS, indirect=["rig"])
async def test_a_client_that_leaves(api_key: ApiKey, rig: Rig, phase: str) -> None:
    socket = ResponsesCommunicator(api_key.secret)
    async with asyncio.timeout(SECONDS_TO_GET_THERE):
        await socket.__aenter__()
        await ask(socket, rig, phase)

        async with asyncio.timeout(SECONDS_TO_SEE_IT):
            leaving = asyncio.create_task(socket.__aexit__())
            await rig.departed()

        await leaving


@pytest.mark.parametrize(("rig", "phase"), SITUATIONS, indirect=["rig"])
async def test_a_client_that_steers(api_key: ApiKey, rig: Rig, phase: str) -> None:
    async with asyncio.timeout(SECONDS_TO_GET_THERE), ResponsesCommunicator(api_key.secret) as socket:
        response_id = await ask(socket, rig, phase)

        await socket.send({"type": "response.steer", "previous_response_id": response_id, "input": rig.brief})
        async with asyncio.timeout(SECONDS_TO_SEE_IT):
            await rig.departed()


@pytest.mark.parametrize(("rig", "phase"), SITUATIONS, indirect=["rig"])
async def test_a_client_that_cancels(api_key: ApiKey, rig: Rig, phase: str) -> None:
    client = KeyClient(api_key.secret)
    rig.expect(phase)
    async with asyncio.timeout(SECONDS_TO_GET_THERE):
        body = {"model": "m", "input": getattr(rig, phase), "background": True, "stream": True}
        answer = await post(client, body)
        said = ""
        async with aclosing(aiter(answer)) as chunks:
            while f"event: {PHASES[phase]}\n" not in said:
                said += (await anext(chunks)).decode()
        await rig.arrived()
        response_id = said.split('"id":"')[1].split('"')[0]

        async with asyncio.timeout(SECONDS_TO_SEE_IT):
            cancelling = asyncio.create_task(client.post(f"/v1/responses/{response_id}/cancel"))
            await rig.departed()

        assert (await cancelling).json()["status"] == "cancelled"


async def ask(socket: ResponsesCommunicator, rig: Rig, phase: str) -> str:
    """The id of a response that is in this phase."""
    rig.expect(phase)
    await socket.create(model="m", input=getattr(rig, phase), store=False)
    event = await socket.receive()
    response_id: str = event["response"]["id"]
    while event["type"] != PHASES[phase]:
        event = await socket.receive()
    await rig.arrived()
    return response_id
