"""WebSockets to one upstream. Each remembers the last response that was made on it, so a chain returns to its own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Annotated
from urllib.parse import urlsplit

import aiohttp
import msgspec

from responses_ws.protocol.sampling import Delta
from responses_ws.runtime import logs

from .base import EngineError
from .chat_errors import refusal
from .http import MAX_ANSWER_BYTES, PORTS, HttpClient
from .responses_stream import Forgotten, ResponsesReader

# Frames read ahead of a slow turn. Behind them the upstream is held back.
MAX_FRAMES = 256
# A close frame is all that the upstream needs; its answer is not waited for any longer.
SECONDS_TO_CLOSE = 1.0


class SocketLimits(msgspec.Struct, frozen=True, rename="upper", forbid_unknown_fields=True):
    """How many there may be, and for how long."""

    most: Annotated[int, msgspec.Meta(ge=1)] = 256
    """Open at once, used and idle. When all are used, a further turn is refused as ``overloaded``."""
    idle_seconds: float = 300.0
    """Since its last response."""
    age_seconds: float = 3300.0
    """Since it was opened, at the end of a response. OpenAI closes after 60 minutes: we go first."""
    ping_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """Between pings. One that is not answered before the next is due closes the socket."""


class Socket:
    """One connection. A task reads it always, so that pings are answered and a close is noticed while it is idle."""

    def __init__(self, connection: aiohttp.ClientWebSocketResponse, *, ping_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.opened_at = self._loop.time()
        self.response_id: str | None = None
        """The upstream's id of the last response that was made on it, and is all that it remembers."""
        self.is_open = True
        self.is_used = True
        self.timer: asyncio.TimerHandle | None = None
        self._connection = connection
        self._frames: asyncio.Queue[str | bytes | None] = asyncio.Queue(MAX_FRAMES)
        self.reading = self._loop.create_task(self._read(), context=logs.of_nobody())
        """Ends with the connection."""
        self._ping_seconds = ping_seconds
        self._is_pinged = False
        self._beat = self._loop.call_later(ping_seconds, self._ping)
        self._pinging: asyncio.Task[None] | None = None

    async def send(self, frame: bytes) -> None:
        """Raises OSError or aiohttp.ClientError."""
        # What was said to nobody, as rate limits, is not an answer.
        while not self._frames.empty():
            self._frames.get_nowait()
        if not self.is_open:
            raise ConnectionResetError("the socket is closed")
        await self._connection.send_frame(frame, aiohttp.WSMsgType.TEXT)

    async def frames(self) -> list[str | bytes]:
        """All that has come, at least one; nothing once it is closed."""
        got: list[str | bytes | None] = []
        if self.is_open or not self._frames.empty():
            got.append(await self._frames.get())
        while not self._frames.empty():
            got.append(self._frames.get_nowait())
        return [frame for frame in got if frame is not None]

    async def aclose(self) -> None:
        self.is_open = False
        self._beat.cancel()
        tasks = [task for task in (self.reading, self._pinging) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._connection.close()

    async def _read(self) -> None:
        try:
            while True:
                message = await self._connection.receive()
                self._is_pinged = False
                if message.type is aiohttp.WSMsgType.PING:
                    await self._connection.pong(message.data)
                elif message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    await self._frames.put(message.data)
                elif message.type is not aiohttp.WSMsgType.PONG:
                    return
        except (aiohttp.ClientError, OSError):
            pass
        finally:
            self.is_open = False
            with contextlib.suppress(asyncio.QueueFull):
                self._frames.put_nowait(None)

    def _ping(self) -> None:
        # While a slow turn holds the upstream back nothing is read, no pong either: the client library's own heartbeat
        # would close the socket then.
        if self._is_pinged and not self._frames.full():
            self.reading.cancel()
            return
        self._is_pinged = True
        self._pinging = self._loop.create_task(self._send_ping())
        self._beat = self._loop.call_later(self._ping_seconds, self._ping)

    async def _send_ping(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._connection.ping()


class Sockets:
    """The sockets of one engine on one event loop."""

    def __init__(self, client: HttpClient, limits: SocketLimits, *, connect_seconds: float) -> None:
        self._client = client
        self._limits = limits
        self._connect_seconds = connect_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sockets: dict[Socket, None] = {}
        """Idle ones in the order of their last use."""
        self._opening = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        """For handshakes. Of the same loop."""

    def __len__(self) -> int:
        return len(self._sockets)

    def take(self, socket: Socket) -> None:
        """Use a socket again that `is_free`."""
        socket.is_used = True
        if socket.timer is not None:
            socket.timer.cancel()
            socket.timer = None

    def is_free(self, socket: Socket) -> bool:
        return socket in self._sockets and socket.is_open and not socket.is_used

    async def open(self) -> Socket:
        """A new one, in use.

        Raises:
            EngineError: there are too many, or the upstream refuses.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Those of another loop (tests have many) are left to that loop's end.
            self._loop, self._sockets, self._opening, self._closing, self._session = loop, {}, 0, set(), None
        if len(self._sockets) + self._opening >= self._limits.most:
            oldest = next((socket for socket in self._sockets if not socket.is_used), None)
            if oldest is None:
                raise EngineError("overloaded", f"all {self._limits.most} sockets to the upstream are in use")
            self.drop(oldest)
        self._opening += 1
        try:
            connection = await self._connect()
        finally:
            self._opening -= 1
        socket = Socket(connection, ping_seconds=self._limits.ping_seconds)
        socket.reading.add_done_callback(lambda _task: None if socket.is_used else self.drop(socket))
        self._sockets[socket] = None
        return socket

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                headers=self._client.headers,
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(self._stay,),
            )
        try:
            async with asyncio.timeout(self._connect_seconds):
                return await self._session.ws_connect(
                    f"{self._client.base_url}/responses",
                    autoping=False,
                    max_msg_size=MAX_ANSWER_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=SECONDS_TO_CLOSE),
                )
        except aiohttp.WSServerHandshakeError as exc:
            refused = refusal(exc.status, b"", exc.headers or {})
            if refused.kind not in ("bad_request", "protocol"):
                raise refused from exc
            # Of no request's making: the upstream, or something on the way to it, has no sockets.
            message = f"{self._client.base_url} refuses WebSockets with status {exc.status}"
            raise EngineError("unavailable", message, status=exc.status) from exc
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self._client.unreachable(exc) from exc

    async def _stay(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Follow no redirect to another host, which would be told our keys."""
        here, there = urlsplit(self._client.base_url), request.url
        if (here.scheme, here.hostname, here.port or PORTS[here.scheme]) != (there.scheme, there.host, there.port):
            raise aiohttp.ClientConnectionError(f"it redirects to {there.host}:{there.port}")
        return await handler(request)

    def give_back(self, socket: Socket, response_id: str | None) -> None:
        """It has made this response, and waits for the next of its chain."""
        loop = asyncio.get_running_loop()
        if not socket.is_open or loop.time() - socket.opened_at > self._limits.age_seconds:
            self.drop(socket)
            return
        socket.response_id = response_id
        socket.is_used = False
        socket.timer = loop.call_later(self._limits.idle_seconds, self.drop, socket)
        self._sockets[socket] = self._sockets.pop(socket, None)

    def drop(self, socket: Socket) -> None:
        """Close it: which also is how the upstream learns that nobody wants its answer. Idempotent."""
        if socket not in self._sockets:
            return
        del self._sockets[socket]
        if socket.timer is not None:
            socket.timer.cancel()
        task = asyncio.get_running_loop().create_task(socket.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close them all. Idempotent."""
        if self._loop is not asyncio.get_running_loop():
            return
        for socket in list(self._sockets):
            self.drop(socket)
        await asyncio.gather(*self._closing, return_exceptions=True)
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class SocketAnswer(AbstractAsyncContextManager[AsyncIterator[list[Delta]]]):
    """One call on a socket, as `Engine` promises it; on a ``socket`` that was used before, or on a new one.

    Entering waits for the upstream's first word. A used socket that ends before it has told nothing: `Forgotten`.
    """

    def __init__(self, sockets: Sockets, frame: bytes, reader: ResponsesReader, socket: Socket | None) -> None:
        self.socket = socket
        self._is_known = socket is not None
        self._sockets = sockets
        self._frame = frame
        self._reader = reader
        self._deltas: list[Delta] = []
        self._error: EngineError | None = None
        self._ended = self._is_whole = False

    async def __aenter__(self) -> "SocketAnswer":
        if self.socket is None:
            self.socket = await self._sockets.open()
        else:
            self._sockets.take(self.socket)
        frame, self._frame = self._frame, b""
        try:
            try:
                await self.socket.send(frame)
                frames = await self.socket.frames()
            except (aiohttp.ClientError, OSError):
                frames = []
            if not frames:
                kind = Forgotten if self._is_known else EngineError
                raise kind("unavailable", "the upstream closed the socket before it answered")
            self._feed(frames)
        except BaseException:
            self._sockets.drop(self.socket)
            raise
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        assert self.socket is not None, "entered before it is left"
        self._ended = True
        if self._is_whole:
            self._sockets.give_back(self.socket, self._reader.response_id)
        else:
            self._sockets.drop(self.socket)

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        return self

    async def __anext__(self) -> list[Delta]:
        assert self.socket is not None, "entered before it is read"
        while not self._deltas:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._ended:
                raise StopAsyncIteration
            frames = await self.socket.frames()
            if not frames:
                self._ended = True
                raise EngineError("unavailable", "the upstream closed the socket in the middle of its answer")
            self._feed(frames)
        deltas, self._deltas = self._deltas, []
        return deltas

    def _feed(self, frames: list[str | bytes]) -> None:
        try:
            for frame in frames:
                self._reader.feed(frame, self._deltas)
                if self._reader.is_done:
                    self._reader.finish(self._deltas)
                    self._ended = self._is_whole = True
                    return
        except EngineError as exc:
            self._ended = True
            if not self._deltas:
                raise
            # What came in the same read before the fault was made, and counts.
            self._error = exc
