"""The connections to one engine, kept: made, taken, given back, closed when nobody wants them."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence

from aiohappyeyeballs import AddrInfoType, start_connection

from .wire import Connection

SECONDS_IDLE = 60.0
SECONDS_RESOLVED = 30.0
SECONDS_PER_ADDRESS = 0.25  # before the next one is tried beside it. Source: RFC 8305 §5

Opener = Callable[[Callable[[], Connection]], Awaitable[None]]
"""Opens a connection on the running loop, given what makes its protocol. Raises OSError."""


class Pool:
    """The connections to one origin on the running loop. ``open`` makes new ones; without ``keeps`` they serve once."""

    def __init__(self, open: Opener, *, keeps: bool = True) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self._open = open
        self._idle: dict[Connection, None] = {}
        """Those used last at the end."""
        self._timer: asyncio.TimerHandle | None = None
        self.keeps = keeps
        self.is_closed = False

    def take(self) -> Connection | None:
        """An idle one, the one used last."""
        return self._idle.popitem()[0] if self._idle else None

    async def connect(self) -> Connection:
        """A new one. Raises OSError."""
        connection = Connection(self)
        try:
            await self._open(lambda: connection)
        except BaseException:
            # Of one that is made in spite of a cancellation uvloop never says that it is lost.
            connection.close()
            self.connections.discard(connection)
            raise
        return connection

    def keep(self, connection: Connection) -> None:
        if self.is_closed or not self.keeps:
            connection.close()
            return
        connection.idle_since = self.loop.time()
        self._idle[connection] = None
        if self._timer is None:
            self._timer = self.loop.call_later(SECONDS_IDLE, self._sweep)

    def forget(self, connection: Connection) -> None:
        """It does not serve again."""
        self._idle.pop(connection, None)

    async def aclose(self) -> None:
        """Closes all, also those in use."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.close()
        # They learn of it in the loop's next turns.
        for _ in range(3):
            await asyncio.sleep(0)

    def _sweep(self) -> None:
        self._timer = None
        now = self.loop.time()
        for connection in list(self._idle):
            if connection.idle_since + SECONDS_IDLE > now:
                self._timer = self.loop.call_at(connection.idle_since + SECONDS_IDLE, self._sweep)
                break
            connection.close()


def tcp(host: str, port: int, *, tls: ssl.SSLContext | None) -> Opener:
    """To any address that ``host`` has, of either family."""
    addresses: Sequence[AddrInfoType] = ()
    known_until = 0.0

    async def open(protocol: Callable[[], Connection]) -> None:
        nonlocal addresses, known_until
        loop = asyncio.get_running_loop()
        if loop.time() >= known_until:
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            known_until = loop.time() + SECONDS_RESOLVED
        try:
            raw = await start_connection(addresses, happy_eyeballs_delay=SECONDS_PER_ADDRESS)
        except OSError:
            # It may have moved.
            known_until = 0.0
            raise
        try:
            # Not every loop does so for a socket that it is given.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.create_connection(protocol, sock=raw, ssl=tls, server_hostname=host if tls else None)
        except BaseException:
            raw.close()
            raise

    return open


def unix(path: str) -> Opener:
    """To a Unix socket."""

    async def open(protocol: Callable[[], Connection]) -> None:
        await asyncio.get_running_loop().create_unix_connection(protocol, path)

    return open
