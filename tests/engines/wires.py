"""A server of bare bytes, for clients that should bear any."""

import asyncio
import contextlib
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from responses_ws.engines.http import HttpClient

Conduct = Callable[["Caller"], Awaitable[None]]

DEADLINE = 30.0
OK = b"HTTP/1.1 200 OK\r\n"


def answered(body: bytes, *lines: bytes, start: bytes = b"HTTP/1.1 200 OK") -> bytes:
    """An answer with its length."""
    return b"\r\n".join([start, *lines, b"Content-Length: %d" % len(body), b"", body])


def chunked(*pieces: bytes, trailers: bytes = b"") -> bytes:
    """An answer in chunks."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"


class Caller:
    """One connection of a client. ``number`` counts them from 1."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer

    async def head(self) -> bytes:
        """Of its next request; raises IncompleteReadError once it has left."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def asked(self) -> tuple[bytes, bytes]:
        """Head and body of its next request."""
        head = await self.head()
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        return head, await self.reader.readexactly(int(length[1])) if length else b""

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def left(self) -> None:
        """Returns once the client has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass

    def reset(self) -> None:
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class RawServer:
    """Treats every connection as ``conduct`` says, then closes it. A context manager."""

    def __init__(self, conduct: Conduct, *, tls: ssl.SSLContext | None = None) -> None:
        self._conduct = conduct
        self._tls = tls
        self._tasks: set[asyncio.Task[Any]] = set()
        self.connections = 0
        """Made so far."""

    async def __aenter__(self) -> "RawServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._conduct(Caller(self.connections, reader, writer))
        finally:
            self._tasks.discard(task)
            writer.close()


def always(answer: bytes) -> Conduct:
    """The same to every request."""

    async def conduct(caller: Caller) -> None:
        while True:
            await caller.asked()
            await caller.say(answer)

    return conduct


@contextlib.asynccontextmanager
async def served(
    conduct: Conduct, *, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[tuple[RawServer, HttpClient]]:
    """The server, and a client of it."""
    async with asyncio.timeout(DEADLINE), RawServer(conduct, tls=tls) as server:
        client = HttpClient(server.url, **options)
        try:
            yield server, client
        finally:
            await client.aclose()
