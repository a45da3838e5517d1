"""A model server for tests that is asked in token ids. What it speaks is its subclasses' business.

The prompt says how it is answered: a first id below `FIRST_TOKEN` is the number of a behaviour, anything else gets
`PLAIN`. Its tokens are counted up from `FIRST_TOKEN`, so that a test can tell them from the prompt's.
"""

import asyncio
from collections import deque
from enum import IntEnum
from typing import Any

import msgspec
from aiohttp import web

from .transcripts import Transcript

MODEL = "fake-tokens"
EOS = 2
FIRST_TOKEN = 100
BLOCK = 16
"""A prefix is cached in whole blocks of so many ids."""


class Behaviour(IntEnum):
    """How a call is answered, told by its prompt's first id."""

    PLAIN = 10
    """Five tokens and the end of turn."""
    ENDLESS = 11
    """Tokens until it is left."""
    SLOW_PROMPT = 12
    """The head, and then nothing until it is left: a long prompt."""
    OVERLONG = 13
    """Refused, as prompts beyond the context are."""
    BREAKS = 14
    """Two tokens, then an error in the stream."""
    CUT = 15
    """Two tokens, then the connection breaks."""
    STALLS = 16
    """Two tokens, then nothing until it is left."""
    ABORTED = 17
    """Two tokens, then the server is told by somebody else to abort it."""
    BUSY = 18
    """503 with retry hints."""
    UNREADABLE = 19
    """Two tokens, then no JSON."""


class Call:
    """One call as it came, and what has become of it."""

    def __init__(self, path: str, body: dict[str, Any], headers: dict[str, str], ids: list[int]) -> None:
        self.path = path
        self.body = body
        self.headers = headers
        self.ids = ids
        """The whole prompt."""
        self.call_id = ""
        self.cached = 0
        self.sampled: list[int] = []
        self.is_aborted = asyncio.Event()


class TokenServer:
    """``calls`` in order; ``departures`` gets the prompt's first id of every call whose client left before its end;
    ``aborts`` what was named to the abort route. A transcript in ``replies`` is the answer to the next call.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.arrivals: asyncio.Queue[int] = asyncio.Queue()
        self.departures: asyncio.Queue[int] = asyncio.Queue()
        self.aborts: asyncio.Queue[Any] = asyncio.Queue()
        self.replies: deque[Transcript] = deque()
        self.connections: set[Any] = set()
        self.app = web.Application(client_max_size=64 * 1024 * 1024)
        self.app.router.add_get("/v1/models", self.list_models)
        self.app.router.add_get("/health", self.tell_health)
        self.is_healthy = True
        self._cached: dict[str, set[tuple[int, ...]]] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Any:
        # With cancellation a handler that waits learns of a departure at once, not at its next write.
        self._runner = web.AppRunner(self.app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def list_models(self, _request: web.Request) -> web.Response:
        listed = {"id": MODEL, "object": "model", "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [listed]})

    async def tell_health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def arrived(self, request: web.Request, ids_key: str) -> Call:
        body = msgspec.json.decode(await request.read())
        headers = {name.lower(): value for name, value in request.headers.items()}
        call = Call(request.path, body, headers, body[ids_key])
        self.calls.append(call)
        self.connections.add(request.transport)
        return call

    async def answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        if self.replies:
            reply = self.replies.popleft()
            return web.Response(status=reply.status, body=reply.body, content_type=reply.content_type)
        behaviour = Behaviour(call.ids[0]) if call.ids[0] in list(Behaviour) else Behaviour.PLAIN
        self.arrivals.put_nowait(behaviour)
        try:
            return await self._behave(request, call, behaviour)
        except (asyncio.CancelledError, ConnectionError):
            self.departures.put_nowait(behaviour)
            raise

    async def _behave(self, request: web.Request, call: Call, behaviour: Behaviour) -> web.StreamResponse:
        if behaviour is Behaviour.BUSY:
            error = {"error": {"message": "queue full", "type": "overloaded", "code": 503}}
            return web.json_response(error, status=503, headers={"Retry-After": "7"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if behaviour is Behaviour.SLOW_PROMPT:
            await self._until_aborted(call)
        elif behaviour is Behaviour.OVERLONG:
            await self._write(response, self.error("longer than the maximum model length of 4096"))
        else:
            self._remember(call)
            await self._sample(request, response, call, behaviour)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _sample(
        self, request: web.Request, response: web.StreamResponse, call: Call, behaviour: Behaviour
    ) -> None:
        limit = self.limit(call)
        endless = behaviour is Behaviour.ENDLESS
        made = 5 if behaviour is Behaviour.PLAIN else 2
        for number in range(limit if endless else min(limit, made)):
            call.sampled.append(FIRST_TOKEN + number)
            await self._write(response, *self.chunks(call))
            if endless:
                await asyncio.sleep(0.002)
                if call.is_aborted.is_set():
                    break
        if behaviour is Behaviour.BREAKS:
            await self._write(response, self.error("boom", code=500))
        elif behaviour is Behaviour.UNREADABLE:
            await response.write(b"data: {oops\n\n")
        elif behaviour is Behaviour.CUT:
            assert request.transport is not None, "the client is still there"
            request.transport.abort()
        elif behaviour is Behaviour.STALLS:
            await self._until_aborted(call)
        if behaviour in (Behaviour.ABORTED, Behaviour.ENDLESS, Behaviour.STALLS) and len(call.sampled) < limit:
            await self._write(response, *self.chunks(call, "abort"))
        elif behaviour is Behaviour.PLAIN and len(call.sampled) < limit:
            call.sampled.append(EOS)
            await self._write(response, *self.chunks(call, "stop"))
        elif behaviour in (Behaviour.PLAIN, Behaviour.ENDLESS):
            await self._write(response, *self.chunks(call, "length"))

    async def _until_aborted(self, call: Call) -> None:
        await call.is_aborted.wait()

    def abort(self, call_id: Any) -> None:
        self.aborts.put_nowait(call_id)
        for call in self.calls:
            if call.call_id == call_id:
                call.is_aborted.set()

    def _remember(self, call: Call) -> None:
        """Counts what of the prompt its domain has sent before."""
        known = self._cached.setdefault(self.domain(call), set())
        for end in range(BLOCK, len(call.ids), BLOCK):
            prefix = tuple(call.ids[:end])
            if prefix in known:
                call.cached = end
            known.add(prefix)

    @staticmethod
    async def _write(response: web.StreamResponse, *events: dict[str, Any]) -> None:
        await response.write(b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events))

    def error(self, message: str, code: int = 400) -> dict[str, Any]:
        return {"error": {"message": message, "type": "BadRequestError", "code": code}}

    def limit(self, call: Call) -> int:
        """How many tokens may be sampled."""
        raise NotImplementedError

    def domain(self, call: Call) -> str:
        """Who shares a prefix cache."""
        raise NotImplementedError

    def chunks(self, call: Call, reason: str | None = None) -> list[dict[str, Any]]:
        """The events of one step: the last of ``call.sampled``, or, with a ``reason``, of the end."""
        raise NotImplementedError
