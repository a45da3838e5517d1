"""HTTP/1.1 as engines are asked: a request to one origin, its answer as it comes, on a connection that is kept.

Nothing is followed, decoded, cached or remembered. An engine's bytes are read by llhttp, which is strict, and trusted
no further.

Source: RFC 9112.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import httptools

from .base import EngineError

if TYPE_CHECKING:
    from .pool import Pool

MAX_HEAD_BYTES = 64 * 1024
"""Without a byte of body among them: heads, and whatever chunks and trailers say beside."""
MAX_WAITING_BYTES = 64 * 1024
"""Read and not taken. With more, and what one read brings, the engine is held back."""
BYTES_WRITTEN_AT_ONCE = 1024 * 1024
"""A larger body is written as the engine takes it, which may answer meanwhile."""
BYTES_IN_ONE_WRITE = 256 * 1024
SECONDS_TO_DRAIN = 1.0  # between the last event and the end of the body, to keep the connection


class Connection(asyncio.Protocol):
    """One connection to an engine, and the answer that is coming on it. One task uses it at a time."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._loop = pool.loop
        self._transport = cast(asyncio.Transport, None)
        """From `connection_made` on."""
        self._waiter: asyncio.Future[None] | None = None
        self._drain: asyncio.TimerHandle | None = None
        self._is_busy = False
        """Between a request and the end of its answer."""
        self._is_full = False
        """More is waiting to be written than the transport likes."""
        self._is_held = False
        """It is not being read."""
        self._error: str | None = None
        """Why there will be nothing more."""
        self.idle_since = 0.0
        self._begin()

    def _begin(self) -> None:
        self._fields: dict[bytes, bytes] = {}
        """Of the head that is coming, and of trailers."""
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        # Called for every field and every chunk: no step is shorter.
        self.on_header = self._fields.__setitem__
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._waiting = 0
        """Bytes that have come since somebody read."""
        self._bare = 0
        """Bytes that have come since the last one of a body."""
        self.status = 0
        self.is_whole = False
        """All of the answer has come."""
        self._has_come = False
        """A byte of it has."""
        self._has_head = False
        self._ends_with_it = False
        """The body ends where the connection does."""
        self._is_clean = True
        """Both sides know where the next answer begins."""

    async def send(self, head: bytes, body: Sequence[bytes | memoryview], size: int) -> None:
        """Make a request whose body has ``size`` bytes, and wait for the head of its answer.

        Raises:
            ConnectionError: it ended without a byte of an answer.
            EngineError: ``unavailable``: it broke, or what came is no HTTP.
        """
        self._begin()
        self._is_busy = True
        try:
            if size <= BYTES_WRITTEN_AT_ONCE and not self._transport.is_closing():
                self._transport.writelines((head, *body))
            else:
                await self._write(head, body)
            while not self._has_head:
                if self._error is not None:
                    raise self._broken() if self._has_come else ConnectionResetError(self._error)
                await self._news()
        except BaseException:
            self.close()
            raise

    def header(self, name: bytes) -> str:
        """The last one called so (in lower case); empty where there is none."""
        return self._headers.get(name, b"").decode("latin-1")

    @property
    def headers(self) -> dict[str, str]:
        """All, their names in lower case."""
        return {name.decode(): value.decode("latin-1") for name, value in self._headers.items()}

    async def read(self) -> bytes:
        """All that has come of the body, at least a byte; nothing at its end.

        Raises:
            EngineError: ``unavailable``.
        """
        while not self._pieces:
            if self.is_whole:
                return b""
            if self._error is not None:
                raise self._broken()
            await self._news()
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        self._go_on()
        return piece

    async def read_all(self, limit: int) -> bytes:
        """The body, up to ``limit`` bytes; a longer one is cut. Raises EngineError."""
        parts: list[bytes] = []
        size = 0
        while size < limit and (piece := await self.read()):
            parts.append(piece)
            size += len(piece)
        return b"".join(parts)[:limit]

    def give_back(self, *, is_done: bool = False) -> None:
        """Nobody wants more of the answer. Keeps the connection if all of it has come, otherwise closes it.

        ``is_done``: all that matters has come; then the rest is waited for, for a moment and beside whatever goes on.
        """
        self._pieces.clear()
        if self.is_whole:
            self._keep()
        elif is_done and self._pool.keeps and self._error is None:
            self._drain = self._loop.call_later(SECONDS_TO_DRAIN, self.close)
            self._go_on()
        else:
            self.close()

    def close(self) -> None:
        """At once: which also is how an engine learns that nobody wants its answer. Idempotent."""
        if self._error is None:
            self._error = "it was closed"
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._error is None:
            self._pool.connections.add(self)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ends_with_it and exc is None and self._error is None:
            self.is_whole = True
        if self._error is None:
            self._error = f"{type(exc).__name__}: {exc}" if exc is not None else "the engine closed it"
        if self._drain is not None:
            self._drain.cancel()
        self._pool.forget(self)
        self._pool.connections.discard(self)
        # It holds us, too.
        del self._parser
        self._wake()

    def data_received(self, data: bytes) -> None:
        if not self._is_busy:
            # Whatever this is would be taken for the next answer.
            self._fail("it spoke without being asked")
            return
        self._has_come = True
        pieces = len(self._pieces)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._is_clean = False
            if not self.is_whole:
                self._fail(f"what came is no HTTP: {exc}")
        self._waiting += len(data)
        self._bare = self._bare + len(data) if len(self._pieces) == pieces else 0
        if self._bare > MAX_HEAD_BYTES and not self.is_whole:
            self._fail(f"more than {MAX_HEAD_BYTES} bytes came without any of a body")
        if self._drain is not None:
            self._pieces.clear()
            if self.is_whole:
                self._drain.cancel()
                self._drain = None
                self._keep()
            return
        if self._waiting > MAX_WAITING_BYTES and self._pieces and not self._is_held and self._error is None:
            self._is_held = True
            self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    def on_message_begin(self) -> None:
        if self.is_whole:
            raise ValueError("a second answer")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            # Informational; an answer follows.
            if status < 100:
                raise ValueError("no status")
            self._fields.clear()
            return
        self._headers = {name.lower(): value for name, value in self._fields.items()}
        coding = self._headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise ValueError("a transfer coding that nobody asked for")
        if not self._parser.should_keep_alive():
            self._is_clean = False
            self._ends_with_it = coding is None and b"content-length" not in self._headers
        self.status = status
        self._has_head = True

    def on_message_complete(self) -> None:
        if self._has_head:
            self.is_whole = True

    async def _write(self, head: bytes, body: Sequence[bytes | memoryview]) -> None:
        """As the engine takes it, and as long as it has not refused it."""
        for part in (head, *body):
            view = memoryview(part)
            for start in range(0, len(view), BYTES_IN_ONE_WRITE):
                while self._is_full and not self._is_in_vain:
                    await self._news()
                if self._is_in_vain:
                    self._is_clean = False
                    return
                self._transport.write(view[start : start + BYTES_IN_ONE_WRITE])

    @property
    def _is_in_vain(self) -> bool:
        """Whatever of the request is still to be written is of no use."""
        return self.is_whole or self.status >= 300 or self._error is not None or self._transport.is_closing()

    async def _news(self) -> None:
        self._waiter = waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _go_on(self) -> None:
        if self._is_held and not self._transport.is_closing():
            self._is_held = False
            self._transport.resume_reading()

    def _fail(self, error: str) -> None:
        self._error = error
        self.close()

    def _broken(self) -> EngineError:
        return EngineError("unavailable", f"the connection to the engine broke: {self._error}")

    def _keep(self) -> None:
        """Its answer is whole: it serves again, if it can."""
        if self._is_busy and self._is_clean and self._error is None and not self._transport.get_write_buffer_size():
            self._is_busy = False
            self._go_on()
            self._pool.keep(self)
        else:
            self.close()
