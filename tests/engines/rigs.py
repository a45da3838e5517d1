"""Every engine with its server, brought into a long prompt or a long answer by what a client says.

A rig tells what its engine's side sees, on that side: which calls are there, and that one of them is no more.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from responses_ws.protocol.sampling import Delta, FinishReason, TextDelta
from responses_ws.rendering.base import Ask, Draft, OutputParser, Renderer
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tokens import TokenLog
from tests.fakes.chat_server import MODEL as CHAT_MODEL
from tests.fakes.chat_server import ChatServer
from tests.fakes.llama_server import KEY, LlamaServer
from tests.fakes.llama_server import MODEL as LLAMA_MODEL
from tests.fakes.responses_server import Answer, ResponsesServer, words
from tests.fakes.sglang_server import FakeSGLang
from tests.fakes.tiny_gguf import FIRST_BYTE
from tests.fakes.token_server import EOS, Behaviour, TokenServer
from tests.fakes.token_server import MODEL as TOKEN_MODEL
from tests.fakes.vllm_server import FakeVllm
from tests.waiting import until


class Rig:
    """``options`` are the engine's, ``model`` is its entry without the engine's name."""

    engine = ""
    options: dict[str, Any] = {}
    model: dict[str, Any] = {}
    prefill = "!ttft 60000 Hi"
    """What to say so that the engine reads, or thinks, for long and says nothing."""
    decode = "!tokens 100000 !rate 50 Go on"
    brief = "Hi"
    """What to say for a short answer."""

    def expect(self, phase: str) -> None:
        """What is said next is ``prefill`` or ``decode``: for servers that cannot tell."""

    async def arrived(self) -> None:
        """Returns once a call is there."""
        raise NotImplementedError

    async def departed(self) -> None:
        """Returns once the engine's side sees that the call is no more."""
        raise NotImplementedError


class ScriptedRig(Rig):
    """In our own process: its log says when it was left."""

    engine = "responses_ws.engines.scripted.Scripted"

    def __init__(self, folder: Path) -> None:
        self._log = folder / "tokens.jsonl"
        self.options = {"TOKEN_LOG": str(self._log)}
        self.model = {"UPSTREAM": "scripted"}

    async def arrived(self) -> None:
        """It has no way to say so: the client has been told that the response has begun."""

    async def departed(self) -> None:
        await until(lambda: self._outcomes(), "a line in its log")
        assert self._outcomes()[0] == "aborted"

    def _outcomes(self) -> list[str]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [json.loads(line)["outcome"] for line in lines]


class ChatRig(Rig):
    engine = "responses_ws.engines.openai_chat.OpenAIChat"
    model = {"UPSTREAM": CHAT_MODEL}

    def __init__(self, server: ChatServer) -> None:
        self._server = server
        self.options = {"BASE_URL": server.url}

    async def arrived(self) -> None:
        await self._server.arrivals.get()

    async def departed(self) -> None:
        await self._server.departures.get()


class SilentChatRig(ChatRig):
    """Not even the head of its answer comes."""

    def __init__(self, server: ChatServer) -> None:
        super().__init__(server)
        self.model = {"UPSTREAM": "fault:slow-head"}


class TokenRig(Rig):
    """A fake that is asked in token ids: the prompt's first id says how it answers."""

    model = {"UPSTREAM": TOKEN_MODEL, "RENDERER": {"CLASS": f"{__name__}.Numbers"}}
    prefill, decode, brief = (str(int(one)) for one in (Behaviour.SLOW_PROMPT, Behaviour.ENDLESS, Behaviour.PLAIN))

    def __init__(self, server: TokenServer) -> None:
        self._server = server
        self.options = {"BASE_URL": server.url}

    async def arrived(self) -> None:
        await self._server.arrivals.get()

    async def departed(self) -> None:
        await self._server.departures.get()


class VllmRig(TokenRig):
    engine = "responses_ws.engines.vllm.Vllm"

    def __init__(self, server: FakeVllm) -> None:
        super().__init__(server)
        self.options = {"BASE_URL": f"{server.url}/v1"}


class SGLangRig(TokenRig):
    engine = "responses_ws.engines.sglang.SGLang"

    def __init__(self, server: FakeSGLang) -> None:
        super().__init__(server)


class LlamaRig(Rig):
    """A real llama.cpp. ``number`` keeps its prompt from being cached from another test."""

    engine = "responses_ws.engines.llama_cpp.LlamaCpp"
    model = {"UPSTREAM": LLAMA_MODEL, "RENDERER": {"CLASS": f"{__name__}.Numbers"}}

    def __init__(self, server: LlamaServer, number: int) -> None:
        self._server = server
        self.options = {"BASE_URL": server.url, "API_KEY": KEY}
        token = FIRST_BYTE + ord("a") + number
        self.prefill, self.decode, self.brief = f"{token}*15000", f"{token}*20", f"{token}*5"

    async def arrived(self) -> None:
        self._task = (await self._tasks_when(bool)).pop()

    async def departed(self) -> None:
        await self._tasks_when(lambda tasks: self._task not in tasks)

    async def _tasks_when(self, enough: Any) -> set[int]:
        # It cannot tell; it can only be asked.
        while not enough(tasks := await asyncio.to_thread(self._server.tasks)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return tasks


class ResponsesRig(Rig):
    """Another server of the Responses API."""

    engine = "responses_ws.engines.responses.Responses"

    def __init__(self, server: ResponsesServer, transport: str) -> None:
        self._server = server
        self._transport = transport
        self.options = {"BASE_URL": server.url, "TRANSPORT": transport}

    def expect(self, phase: str) -> None:
        events = words("and so on ", "up_1")[: 1 if phase == "prefill" else 2]
        self._server.answers.append(Answer(events=events, end="hang"))

    async def arrived(self) -> None:
        await until(lambda: self._server.requests, "its request")

    async def departed(self) -> None:
        # On a socket there is no other way to stop a response than to close it.
        await (self._server.departures if self._transport == "http" else self._server.closed).get()


class Numbers(Renderer):
    """Renders the last user message alone, which is ids: ``12`` or ``50*15000``. Says a full stop for every id."""

    stop_ids = (EOS,)

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "Numbers":
        return cls()

    def draft(self, prompt: ChatPrompt, ask: Ask) -> Draft:
        return _NumbersDraft(prompt)

    def parser(self, log: TokenLog, ask: Ask) -> OutputParser:
        return _NumbersParser()


class _NumbersDraft(Draft):
    path = "full"
    kept_tokens = 0
    size = 0

    def __init__(self, prompt: ChatPrompt) -> None:
        self._messages = len(prompt.log)
        said = next(message for message in prompt.newest_first() if message["role"] == "user")["content"]
        token, _, times = said.partition("*")
        self._ids = [int(token)] * int(times or 1)

    def make(self) -> None:
        """Nothing is left to do."""

    def log(self) -> TokenLog:
        return TokenLog().extended(self._ids, "rendered", messages=self._messages)


class _NumbersParser(OutputParser):
    def feed(self, ids: Sequence[int], logprobs: Sequence[dict[str, Any]] = ()) -> list[Delta]:
        return [TextDelta("." * len(ids))]

    def finish(self, reason: FinishReason) -> list[Delta]:
        return []
