"""A TCP relay between a client and a server of a test: counts what goes through, and cuts it."""

import asyncio
import contextlib
import threading
from typing import Any
from urllib.parse import urlsplit, urlunsplit


class Tap:
    """Listens on a port of its own; ``url`` is the server's, reached through it. A context manager."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.sent = 0
        """Bytes that went to the server."""
        self.opened = 0
        """Connections that were made to it."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Tap":
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._relay, "127.0.0.1", 0))
        port = self._server.sockets[0].getsockname()[1]
        self.url = urlunsplit(self._target._replace(netloc=f"127.0.0.1:{port}"))
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._server.close()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._writers) // 2

    def cut(self) -> None:
        """Reset all connections."""

        async def abort() -> None:
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.gather(*self._relays)

        self._run(abort())

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        self.opened += 1
        relay = asyncio.current_task()
        assert relay is not None, "a server's callback runs as a task"
        self._writers |= {writer, server_writer}
        self._relays.add(relay)
        try:
            await asyncio.gather(
                self._pump(reader, server_writer, counted=True), self._pump(server_reader, writer, counted=False)
            )
        finally:
            self._writers -= {writer, server_writer}
            self._relays.discard(relay)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.sent += len(data) if counted else 0
                writer.write(data)
                await writer.drain()
        # Whoever leaves takes the other side along.
        writer.close()
