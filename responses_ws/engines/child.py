"""A model server as a child process, and the connections to it."""

import asyncio
import logging
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from responses_ws.runtime import logs

from .base import EngineError
from .http import Body, HttpClient, Unreachable
from .pool import Pool, unix
from .wire import Connection

logger = logging.getLogger(__name__)

SECONDS_TO_END = 5.0  # between asking the child to end and killing it
SECONDS_BETWEEN_PROBES = 0.05

_SCRIPT = Path(__file__).with_name("llama_child.py")


class ChildClient(HttpClient):
    """The connections to a llama.cpp of our own.

    The child is spawned at the first call and again after a crash, listens on a Unix socket only we can open, wants
    a random key, and ends with us. ``told`` gives its parameters, as `llama_child` documents them, or raises
    EngineError.
    """

    def __init__(self, name: str, told: Callable[[], dict[str, Any]], *, seconds_to_start: float) -> None:
        self._api_key = secrets.token_urlsafe(24)
        super().__init__("http://embedded", api_key=self._api_key)
        self._name = name
        self._told = told
        self._seconds_to_start = seconds_to_start
        self.child: Child | None = None
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Spawn the child unless it runs, and wait until it has loaded its model. Raises EngineError."""
        if self.child is not None and self.child.is_ready and self.child.is_alive:
            return
        loop = asyncio.get_running_loop()
        if self._starting is None or self._starting.get_loop() is not loop or self._starting.done():
            self._starting = loop.create_task(self._spawn(), name=f"spawn {self._name}", context=logs.of_nobody())
        # Shielded: whoever gives up waiting does not take the child from the others.
        await asyncio.shield(self._starting)

    def new_pool(self) -> Pool:
        assert self.child is not None, "the pool is opened after start()"
        # llama.cpp closes after a streamed answer, keep-alive or not.
        return Pool(unix(str(self.child.socket)), keeps=False)

    async def post(self, path: str, body: Body, headers: Mapping[str, str] | None = None) -> Connection:
        await self.start()
        child = self.child
        try:
            return await super().post(path, body, headers)
        except Unreachable:
            if child is None:
                raise
        # Nobody listens: it is dying, though the system may not have told us yet.
        child.is_ready = False
        await self.start()
        return await super().post(path, body, headers)

    async def aclose(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None and starting.get_loop() is asyncio.get_running_loop():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await super().aclose()
        child, self.child = self.child, None
        if child is not None:
            await asyncio.to_thread(child.end)

    async def _spawn(self) -> None:
        told = self._told()
        await super().aclose()
        if self.child is not None:
            logger.warning(
                "engine %s: its process has ended, spawning another: %s", self._name, self.child.last_words()
            )
            await asyncio.to_thread(self.child.end)
        self.child = child = Child({**told, "api_key": self._api_key})
        try:
            await self._wait_for(child)
        except EngineError:
            # With its pipe and its folder.
            self.child = None
            await asyncio.to_thread(child.end)
            raise
        child.is_ready = True

    async def _wait_for(self, child: "Child") -> None:
        """Returns when it answers. Raises EngineError."""
        try:
            async with asyncio.timeout(self._seconds_to_start):
                # It cannot tell us when it has loaded; it can only be asked.
                while not await self._is_up(child):  # noqa: ASYNC110
                    await asyncio.sleep(SECONDS_BETWEEN_PROBES)
        except TimeoutError as exc:
            message = f"the embedded engine was not up after {self._seconds_to_start} s: {child.last_words()}"
            raise EngineError("unavailable", message) from exc

    async def _is_up(self, child: "Child") -> bool:
        if not child.is_alive:
            raise EngineError("unavailable", f"the embedded engine does not start: {child.last_words()}")
        if not child.socket.exists():
            return False
        try:
            await self.get("/health", seconds=self._seconds_to_start)
        except EngineError:
            return False
        return True


class Child:
    """The process, its socket and its log, in a folder that goes with it.

    A plain Popen and not asyncio's: it outlives the loops that tests have many of.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="llama-"))
        # llama.cpp takes a host name for a path by this ending.
        self.socket = self.folder / "llama.sock"
        self.is_ready = False
        with open(self.folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPT)], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
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
