"""A TCP relay between a client and a server of a test: counts what goes through, and makes the network a bad one."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

R = TypeVar("R")

_READ_BYTES = 65_536
_SLICES_PER_SECOND = 50
"""Into so many pieces a limited rate is divided: fine enough to look steady."""


class Way:
    """One direction of a proxy, over all of its connections. Change it by the proxy's methods, or set a field."""

    def __init__(self) -> None:
        self.passed = 0
        """Bytes that have gone through."""
        self.heal()

    def heal(self) -> None:
        self.delay_seconds = 0.0
        self.bytes_per_second: float | None = None
        self.left: int | None = None
        """Bytes that may still go through before all connections are reset; None: any number."""
        self.is_open = asyncio.Event()
        """Not set: a black hole."""
        self.is_open.set()


class Proxy:
    """Listens on a port of its own. A context manager, whose loop runs in a thread: any test may use it.

    ``target``: an URL, of which ``url`` is the same through this proxy; ``host:port``; or the path of a Unix socket.
    ``up`` is the way from clients to the server, ``down`` the way back. Faults hold for open and for new connections,
    until `heal`.
    """

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target if "://" in target else f"//{target}")
        self._path = target if target.startswith("/") else None
        self.up, self.down = Way(), Way()
        self.port = 0
        self.opened = 0
        """Connections that were made to the server."""
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._run(self._listen)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        credentials, at, _host = self._target.netloc.rpartition("@")
        return urlunsplit(self._target._replace(netloc=f"{credentials}{at}127.0.0.1:{self.port}"))

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._connections)

    def heal(self) -> None:
        """A good network again. What a black hole held goes through; what was cut stays cut."""

        async def heal() -> None:
            holes = [way.is_open for way in (self.up, self.down)]
            self.up.heal()
            self.down.heal()
            for hole in holes:
                hole.set()

        self._run(heal)
        self.accept()

    def delay(self, seconds: float) -> None:
        """Every byte takes so long, each way."""
        self.up.delay_seconds = self.down.delay_seconds = seconds

    def limit(self, bytes_per_second: float) -> None:
        """So many bytes a second, each way and for each connection."""
        self.up.bytes_per_second = self.down.bytes_per_second = bytes_per_second

    def black_hole(self) -> None:
        """Nothing goes through, not even an end; both sides are kept connected, and new clients are."""

        async def close() -> None:
            self.up.is_open.clear()
            self.down.is_open.clear()

        self._run(close)

    def cut(self) -> None:
        """Reset all connections, now. New ones are served."""

        async def cut() -> None:
            # Not those of clients that come back meanwhile.
            cut = set(self._tasks)
            self._reset()
            if cut:
                await asyncio.wait(cut)

        self._run(cut)

    def cut_after(self, count: int, *, up: bool = False) -> None:
        """Let ``count`` more bytes through on the way down (or ``up``), then reset all connections."""
        (self.up if up else self.down).left = count

    def half_close(self, *, up: bool = False) -> None:
        """Say to clients (or, ``up``, to the server) that nothing more will come, and go on with the other way."""

        async def half_close() -> None:
            for connection in list(self._connections):
                (connection.to_server if up else connection.to_client).write_eof()

        self._run(half_close)

    def refuse(self) -> None:
        """As if nothing listened: connections are reset, new ones refused."""

        async def refuse() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None

        self._run(refuse)
        self.cut()

    def accept(self) -> None:
        """Listen again, on the same port."""
        if self._server is None:
            self._run(self._listen)

    def _run(self, work: Callable[[], Awaitable[R]]) -> R:
        async def run() -> R:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _reset(self) -> None:
        for connection in self._connections:
            connection.reset()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server's callback runs as a task"
        self._tasks.add(task)
        try:
            # The task ends well, whatever becomes of the connection: the server would log it.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._relay(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await self.up.is_open.wait()
        if self._path is not None:
            from_server, to_server = await asyncio.open_unix_connection(self._path)
        else:
            from_server, to_server = await asyncio.open_connection(self._target.hostname, self._target.port)
        self.opened += 1
        connection = _Connection(to_client, to_server)
        self._connections.add(connection)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(self.up, from_client, to_server))
                both.create_task(self._pump(self.down, from_server, to_client))
        except* OSError:
            # A side has gone without a word; the other learns of it.
            connection.reset()
        finally:
            self._connections.discard(connection)
            to_server.close()

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Everything from one side to the other, up to its end."""
        loop = asyncio.get_running_loop()
        read: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)

        async def read_ahead() -> None:
            data = None
            while data != b"":
                # Not read, so not acknowledged for long: a black hole fills the sender's buffers.
                await way.is_open.wait()
                data = await reader.read(_READ_BYTES)
                await read.put((loop.time() + way.delay_seconds, data))

        async with asyncio.TaskGroup() as ahead:
            ahead.create_task(read_ahead())
            data = None
            while data != b"":
                due, data = await read.get()
                await asyncio.sleep(due - loop.time())
                await way.is_open.wait()
                await self._write(way, data, writer)
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _write(self, way: Way, data: bytes, writer: asyncio.StreamWriter) -> None:
        while data:
            rate = way.bytes_per_second
            size = len(data) if rate is None else max(1, int(rate / _SLICES_PER_SECOND))
            if way.left is not None:
                size = min(size, way.left)
                way.left -= min(size, len(data))
            piece, data = data[:size], data[size:]
            if rate is not None:
                await asyncio.sleep(len(piece) / rate)
            writer.write(piece)
            way.passed += len(piece)
            await writer.drain()
            if way.left == 0:
                # What was let through is on its way before the reset overtakes it.
                await asyncio.sleep(0.01)
                way.left = None
                self._reset()


class _Connection(NamedTuple):
    to_client: asyncio.StreamWriter
    to_server: asyncio.StreamWriter

    def reset(self) -> None:
        for writer in self:
            raw = writer.get_extra_info("socket")
            # RST instead of FIN, where it is not closed already.
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
