"""A Responses upstream for tests that says what it is told to, over HTTP and on sockets, and misbehaves."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from aiohttp import WSMsgType, web


class Answer(msgspec.Struct, kw_only=True):
    """What becomes of one request."""

    events: Sequence[dict[str, Any]] = ()
    status: int = 200
    """Another: a refusal with ``error``, before any event."""
    error: dict[str, Any] = {}
    headers: dict[str, str] = {}
    end: Literal["close", "cut", "hang"] = "close"
    """After the events: nothing more, the connection cut, or silence until the client leaves."""


def words(text: str, response_id: str) -> list[dict[str, Any]]:
    """The events of an answer."""
    response = {"id": response_id, "status": "in_progress"}
    usage = {"input_tokens": 3, "output_tokens": 1}
    return [
        {"type": "response.created", "response": response},
        {"type": "response.output_text.delta", "output_index": 0, "delta": text},
        {"type": "response.completed", "response": {**response, "status": "completed", "usage": usage}},
    ]


class ResponsesServer:
    """``answers`` are given in order, then ``up_1`` and so on say their number; ``requests`` are the bodies, in order.

    ``sockets`` are those that were ever opened; ``departures`` gets the number of every request whose client left
    before its answer had ended, ``closed`` an entry for every socket that ended.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.request_headers: list[dict[str, str]] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.refuses_sockets = 0
        """A status for every handshake from now on."""
        self.counts = True
        """How many tokens an input has: 7; or it does not say."""
        self.redirects_to = ""
        """Where everybody is sent from now on."""
        self.departures: asyncio.Queue[int] = asyncio.Queue()
        self.closed: asyncio.Queue[int] = asyncio.Queue()
        self.answers_pings = True
        self.pinged: asyncio.Queue[bytes] = asyncio.Queue()
        self.pongs: asyncio.Queue[bytes] = asyncio.Queue()
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/responses", self._post)
        app.router.add_get("/v1/responses", self._connect)
        app.router.add_post("/v1/responses/input_tokens", self._count)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)

    async def __aenter__(self) -> "ResponsesServer":
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self._runner.cleanup()

    def _next(self, body: dict[str, Any]) -> Answer:
        self.requests.append(body)
        number = len(self.requests)
        return self.answers.pop(0) if self.answers else Answer(events=words(f"answer {number}", f"up_{number}"))

    def _hear(self, request: web.Request) -> None:
        self.request_headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.redirects_to:
            raise web.HTTPTemporaryRedirect(self.redirects_to)

    async def _count(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        return web.json_response({"object": "response.input_tokens", "input_tokens": 7} if self.counts else {})

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def _post(self, request: web.Request) -> web.StreamResponse:
        self._hear(request)
        answer = self._next(await request.json())
        number = len(self.requests)
        if answer.status != 200:
            return web.json_response({"error": answer.error}, status=answer.status, headers=answer.headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for event in answer.events:
                await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")
            if answer.end == "hang":
                await asyncio.Event().wait()
            if answer.end == "cut":
                assert request.transport is not None, "the client is still there"
                request.transport.abort()
            return response
        except (asyncio.CancelledError, ConnectionError):
            self.departures.put_nowait(number)
            raise

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        self._hear(request)
        if self.refuses_sockets:
            return web.json_response({"error": {"message": "no"}}, status=self.refuses_sockets)
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        self.sockets.append(socket)
        number = len(self.sockets)
        try:
            await self._serve(request, socket)
        finally:
            self.closed.put_nowait(number)
        return socket

    async def _serve(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        while True:
            message = await socket.receive()
            if message.type is WSMsgType.PING:
                self.pinged.put_nowait(message.data)
                if self.answers_pings:
                    await socket.pong(message.data)
                continue
            if message.type is WSMsgType.PONG:
                self.pongs.put_nowait(message.data)
                continue
            if message.type is not WSMsgType.TEXT:
                return
            answer = self._next(msgspec.json.decode(message.data))
            if answer.status != 200:
                frame = {"type": "error", "status": answer.status, "error": answer.error, "headers": answer.headers}
                await socket.send_str(msgspec.json.encode(frame).decode())
            for event in answer.events:
                await socket.send_str(msgspec.json.encode(event).decode())
            if answer.end == "cut":
                assert request.transport is not None, "the client is still there"
                request.transport.abort()
