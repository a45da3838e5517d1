"""Instruments that count work, and the whole server in this process for them: no clock, and nothing replaced.

The real ASGI application runs behind our protocols in the test's own event loop, in front of a model server that says
as much as the test wants, when the test wants it.
"""

import asyncio
import base64
import contextlib
import json
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

from django.db import connection
from django.db.backends.signals import connection_created

import responses_ws
from benchmarks.fake_answers import TOOL, Answer, Asked, chat, hermes, hermes_renderer
from benchmarks.fake_engine import END, HEAD, Conversation, Pace, chunk
from responses_ws import lifespan
from responses_ws.engines.scripted_tokens import TOKENIZER
from responses_ws.models import ApiKey
from responses_ws.runtime import background
from responses_ws.runtime.writer import writer
from responses_ws.serving.checkpoints import Checkpointer
from tests.runtime.echo import SECONDS, echoing
from tests.runtime.raw import frame

PACKAGE = os.path.dirname(responses_ws.__file__) + os.sep
TOOLS = [{"type": "function", "name": TOOL, "parameters": {"type": "object"}}]
_TERMINAL = (b'{"type":"response.completed"', b'{"type":"response.failed"', b'{"type":"error"')

_BY_THE_CLOCK = Checkpointer._run.__code__


@dataclass
class Work:
    """Calls that were made."""

    ours: int = 0
    """Of functions of the package."""
    made_by_us: int = 0
    """Of functions in C, by these."""
    by_name: Counter[str] = field(default_factory=Counter)
    """Of all functions in Python: ``base_events.create_task``."""
    noted: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """What was to be noted of the calls of single functions, by their names."""


class Calls:
    """The calls that are made within a block, as Python itself tells of them.

    ``watched``: functions, and what to note of each call, given its frame; of these the calls in threads that begin in
    the block are seen, too, of all others those in the thread of the event loop. A coroutine is told of each time it
    goes on. What the checkpointer does is left out: it goes by the clock.
    """

    def __init__(self, watched: Mapping[Any, Callable[[FrameType], Any]] | None = None) -> None:
        self._watched = {function.__code__: (function.__qualname__, note) for function, note in (watched or {}).items()}
        self._names: dict[CodeType, tuple[str, bool]] = {}
        self._work = Work()
        self._thread = threading.get_ident()
        self._is_left_out = False

    def __enter__(self) -> Self:
        threading.setprofile(self._told)
        sys.setprofile(self._told)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def take(self) -> Work:
        """What was done since this was last asked."""
        work, self._work = self._work, Work()
        return work

    def _told(self, frame: FrameType, event: str, _what: Any) -> None:
        code = frame.f_code
        if event == "call" and code in self._watched:
            name, note = self._watched[code]
            self._work.noted[name].append(note(frame))
        if threading.get_ident() != self._thread:
            return
        if code is _BY_THE_CLOCK and event in ("call", "return"):
            self._is_left_out = event == "call"
        if self._is_left_out:
            return
        name, is_ours = self._names.get(code) or self._named(code)
        if event == "call":
            self._work.by_name[name] += 1
            self._work.ours += is_ours
        elif event == "c_call":
            self._work.made_by_us += is_ours

    def _named(self, code: CodeType) -> tuple[str, bool]:
        file = code.co_filename
        module = Path(file).parent.name if file.endswith("__init__.py") else Path(file).stem
        named = f"{module}.{code.co_name}", file.startswith(PACKAGE)
        self._names[code] = named
        return named


class Statements(list[tuple[str, int]]):
    """(kind, bytes of parameters) of the statements of every connection that is opened from now on, in any thread;
    ``in_loop`` are those of the event loop's own. A kind is as ``INSERT usagerecord``."""

    def __init__(self) -> None:
        super().__init__()
        self.in_loop: list[str] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> "Statements":
        connection_created.connect(self._watch)
        # That of this thread is there already.
        connection.execute_wrappers.append(self._note)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        connection_created.disconnect(self._watch)
        connection.execute_wrappers.remove(self._note)

    def kinds(self) -> Counter[str]:
        return Counter(kind for kind, _ in self)

    def _watch(self, **opened: Any) -> None:
        wrappers = opened["connection"].execute_wrappers
        if self._note not in wrappers:
            wrappers.append(self._note)

    def _note(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if threading.get_ident() == self._thread:
            self.in_loop.append(sql)
        verb, _, rest = sql.partition(" ")
        table = rest.partition('"responses_ws_')[2].partition('"')[0]
        rows = params if many else [params or ()]
        size = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
        self.append((f"{verb} {table}".strip(), size))
        return execute(sql, params, many, context)


class Stepped(Conversation):
    """A model server's connection that says ``engine.step`` events and waits for `send_due`; 0: all at once."""

    engine: "SteppedEngine"

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.engine.connections += 1
        self.engine.now = self

    def answer(self, path: str, body: bytes) -> None:
        self.engine.bodies.append(len(body))
        super().answer(path, body)

    def send_due(self) -> None:
        """Say the next step, and with the last one the end."""
        if self.sent == len(self.events):
            return
        said, self.sent = self.sent, min(self.sent + (self.engine.step or len(self.events)), len(self.events))
        has_ended = self.sent == len(self.events) and not self.engine.is_held
        head, end = b"" if said else HEAD, self.closing if has_ended else b""
        self.transport.write(head + chunk(b"".join(self.events[said : self.sent]) + end) + END * has_ended)


@dataclass
class SteppedEngine:
    """What its connections share, and what was asked on them."""

    pace: Pace = Pace(tokens=10)
    models: bytes = b'{"object":"list","data":[]}'
    forms: dict[bytes, Any] = field(default_factory=lambda: {b"completions": chat, b"generate": in_ids})
    step: int = 0
    is_held: bool = False
    """An answer that has said everything does not end."""
    connections: int = 0
    bodies: list[int] = field(default_factory=list)
    """Sizes of what was posted, in order."""
    now: Stepped | None = None


@cache
def _ids() -> Callable[[Asked], Answer]:
    return hermes(TOKENIZER)


def in_ids(asked: Asked) -> Answer:
    """What ``chat`` says, in the ids of our own tokenizer, which takes a moment to be read."""
    return _ids()(asked)


@dataclass
class Served:
    """The server of a test, its model server, and what else there is to count."""

    port: int
    key: str
    engine: SteppedEngine
    statements: Statements

    @contextlib.asynccontextmanager
    async def socket(self, *, after: "Client | None" = None) -> AsyncIterator["Client"]:
        """A client; ``after``: it goes on where that one has left."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            "GET /v1/responses HTTP/1.1",
            "Host: localhost",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {key}",
            f"Authorization: Bearer {self.key}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(SECONDS):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        try:
            yield Client(self, reader, writer, last=after.last if after is not None else {})
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def settled(self) -> None:
        """Everything that turns have left to be done beside them is done, and in the database."""
        await background.settle()
        await asyncio.to_thread(writer.stop)
        await background.settle()


class Client:
    """One socket, without a task of its own."""

    def __init__(
        self, served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, last: dict[str, Any]
    ) -> None:
        self._engine = served.engine
        self._reader, self._writer = reader, writer
        self.frames: list[int] = []
        """Sizes of the frames of the last turn."""
        self.last = last
        """The response before the next one."""

    async def create(self, **fields: Any) -> None:
        event = {"type": "response.create", "model": "chat", "store": False, "tools": TOOLS, **fields}
        self._writer.write(frame(json.dumps(event).encode()))
        self.frames = []

    async def receive(self) -> bytes:
        head = await self._reader.readexactly(2)
        size = head[1]
        if size > 125:
            size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8))
        payload = await self._reader.readexactly(size)
        assert head[0] == 0x81, head
        self.frames.append(size)
        return payload

    async def until(self, kind: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            while kind not in await self.receive():
                pass

    async def rest(self) -> dict[str, Any]:
        """The response at the end of a turn, whose engine says its next step when all of the last has come."""
        step, told = self._engine.step, 0
        while not (said := await self.receive()).startswith(_TERMINAL):
            if step and said.startswith(b'{"type":"response.output_text.delta"'):
                told += 1
                if told % step == 0 and self._engine.now is not None:
                    self._engine.now.send_due()
        event = json.loads(said)
        assert event["type"] == "response.completed", event
        self.last = event["response"]
        return self.last

    async def turn(self, given: str | list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """One more turn of an agent's loop: what its last call gives, or a message; or items, behind that."""
        if self.last:
            fields = {"previous_response_id": self.last["id"], **fields}
        calls = [item["call_id"] for item in self.last.get("output", ()) if item["type"] == "function_call"]
        text, items = (given, []) if isinstance(given, str) else ("done", given)
        outputs = [{"type": "function_call_output", "call_id": call_id, "output": text} for call_id in calls]
        await self.create(input=[*outputs, *items] or given, **fields)
        async with asyncio.timeout(SECONDS):
            return await self.rest()


def models(*tokens: int) -> dict[str, Any]:
    """``chat`` and ``ids`` answer with ten tokens, ``chat-200`` and ``ids-200`` with so many."""
    said: dict[str, Any] = {}
    for name, more in (("chat", {}), ("ids", {"RENDERER": hermes_renderer(TOKENIZER)})):
        said[name] = {"ENGINE": name, "UPSTREAM": f"fake-{name}", "CONTEXT": 100_000_000, **more}
        for count in tokens:
            said[f"{name}-{count}"] = {**said[name], "UPSTREAM": f"fake-{name}-t{count}"}
    return said


@contextlib.asynccontextmanager
async def serving(settings: Any, api_key: ApiKey, *tokens: int, **more: Any) -> AsyncIterator[Served]:
    """The server with these ``models``, and ``more`` in its settings."""
    from project.asgi import application

    engine = SteppedEngine()
    loop = asyncio.get_running_loop()
    upstream = await loop.create_server(lambda: Stepped(engine), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
    settings.RESPONSES_WS = {
        **settings.RESPONSES_WS,
        "ENGINES": {
            "chat": {"ENGINE": "responses_ws.engines.openai_chat.OpenAIChat", "BASE_URL": f"{url}/v1"},
            "ids": {"ENGINE": "responses_ws.engines.vllm.Vllm", "BASE_URL": f"{url}/v1"},
        },
        "MODELS": models(*tokens),
        # What looks around by a timer would be counted, too.
        "LIMITS": {**settings.RESPONSES_WS["LIMITS"], "control_poll_seconds": 3600.0, "ping_seconds": 3600.0},
        **more,
    }
    with Statements() as statements:
        try:
            async with echoing(application, lifespan="off") as port:
                yield Served(port, str(api_key.secret), engine, statements)
        finally:
            await lifespan.close()
            upstream.close()
