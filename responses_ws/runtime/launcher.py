"""The production launcher: uvicorn with our settings, draining before it closes.

uvicorn alone sends 1012 to every socket at the first SIGTERM, whatever is running, and waits for ever on a peer that
does not read. Here nothing new begins, idle sockets close one after the other, running turns end (until a deadline),
and each socket closes when its own have. Several of these on one socket: `supervisor`.
"""

import asyncio
import contextlib
import faulthandler
import logging
import os
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import uvicorn

from responses_ws.conf import app_settings

from . import connections, drain
from .protocols import HttpProtocol, SocketProtocol

logger = logging.getLogger(__name__)

# Behind the deadline of the drain, all in all less than five seconds: turns that are told to end do,
INTERRUPT_SECONDS = 1.5
# peers that read answer our Close within a round trip,
HANDSHAKE_SECONDS = 1.5
# and the application's tasks see that their clients have gone.
CLOSE_SECONDS = 1
# Then what is owed is written (`lifespan.SETTLE_SECONDS`). A process that is not gone by then does not go by itself.
EXIT_SECONDS = 9.0
# Who has connected by now is told to come back, and so is whoever has been accepted and asks within this.
BACKLOG_SECONDS = 0.1
REQUEST_SECONDS = 1.0
# Of the files that a process may open, so many are for engines, databases and itself; before those come so many for
# connections that are to be refused, and so many for HTTP only.
SPARE_FILES = 64
FRONT_FILES = 16

# Of uvicorn's, ten a second, between two words to the supervisor.
TICKS = 5
ALIVE = b"."
"""What a worker says on its line, twice a second: that its event loop runs. The first time, that it serves."""
LEFT = b"L"
"""That it listens no longer."""


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises OSError with ``errno.EADDRINUSE`` where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def server_config(application: Any, *, log_level: str = "info") -> uvicorn.Config:
    """uvicorn's settings for this app.

    ``application``: an ASGI application, or its ``module:attribute``.
    """
    logging.getLogger("uvicorn.error").addFilter(_without_client_faults)
    limits = app_settings.limits
    return uvicorn.Config(
        application,
        http=HttpProtocol,
        ws=SocketProtocol,
        # Compression would cost a third more CPU a frame, and memory per socket.
        ws_per_message_deflate=False,
        # Above our own limit, so that a frame over it is answered by an error and not by 1009.
        ws_max_size=2 * limits.max_frame_bytes,
        ws_ping_interval=limits.ping_seconds,
        # At uvicorn's 20 s healthy clients were dropped.
        ws_ping_timeout=limits.pong_seconds,
        timeout_keep_alive=limits.http_keep_alive_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=CLOSE_SECONDS,
        access_log=False,
        log_config=None,
        log_level=log_level,
        server_header=False,
    )


class Work(Protocol):
    """What a process has to finish, and how it is told to."""

    def begin_drain(self) -> None:
        """No new turns from now on; idle sockets begin to close."""

    def is_busy(self) -> bool:
        """Whether a turn runs."""

    def has_sockets(self) -> bool:
        """Whether a socket is open."""

    def interrupt(self) -> None:
        """Turns that run end now."""

    def close_sockets(self) -> None:
        """So do sockets."""


class ProcessWork:
    """That of this process."""

    def __init__(self, exit_seconds: float) -> None:
        self.exit_seconds = exit_seconds

    def begin_drain(self) -> None:
        drain.begin_drain()
        connections.restart()
        # A thread that waits for a database which does not answer would hold the exit for as long.
        last_resort = threading.Timer(self.exit_seconds, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()

    def is_busy(self) -> bool:
        return drain.is_busy() or connections.is_busy()

    def has_sockets(self) -> bool:
        return connections.live_sockets() > 0

    def interrupt(self) -> None:
        drain.interrupt_turns()

    def close_sockets(self) -> None:
        connections.close_sockets()


class Server(uvicorn.Server):
    """A uvicorn server that drains.

    The first signal stops new work and sets one deadline for what runs. A second SIGINT brings it forward to now; a
    second SIGTERM changes nothing. None is raised again afterwards: a server that drained has ended well, with exit
    code 0.

    ``line`` leads to a supervisor, if there is one, and is told that the event loop runs.
    """

    def __init__(
        self, config: uvicorn.Config, *, drain_seconds: float, work: Work, line: socket.socket | None = None
    ) -> None:
        super().__init__(config)
        self.drain_seconds = drain_seconds
        self.work = work
        self.line = line
        self.loop: asyncio.AbstractEventLoop | None = None
        self.left_at: float | None = None
        self.is_listening = True
        self.hurry = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS == 0:
            self.tell(ALIVE)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would skip the application's own shutdown at the second SIGINT; what is owed is written there.
        if self.should_exit and sig == signal.SIGINT:
            self.hurry = True
        self.should_exit = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.leave)

    def leave(self) -> None:
        """Take nothing new from now on. Idempotent; before it has started it does so when it has."""
        if self.left_at is not None or not self.started:
            return
        self.left_at = time.monotonic()
        if self.line is not None:
            # Whoever connects is for the other workers, or for the supervisor.
            self.stop_listening()
        self.work.begin_drain()

    def stop_listening(self) -> None:
        for server in self.servers:
            server.close()
        self.is_listening = False
        self.tell(LEFT)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.leave()
        assert self.left_at is not None, "it leaves"
        if self.is_listening:
            # Closing it resets those whom nobody has accepted yet.
            await asyncio.sleep(BACKLOG_SECONDS)
            self.stop_listening()
        deadline = self.left_at + self.drain_seconds
        await self.wait_while(self.is_working, deadline)
        idle_seconds = app_settings.limits.restart_seconds
        await self.wait_while(self.work.has_sockets, min(deadline, self.left_at + idle_seconds + 0.5))
        if self.is_working():
            self.work.interrupt()
            await self.wait_while(self.is_working, time.monotonic() + INTERRUPT_SECONDS, may_hurry=False)
        self.work.close_sockets()
        # Our turns' tasks see to the Close frames; then the peers answer them.
        await asyncio.sleep(0)
        await self.wait_while(self.shakes_hands, time.monotonic() + HANDSHAKE_SECONDS, may_hurry=False)
        for connection in list(self.server_state.connections):
            # Of whoever has not read by now uvicorn would wait for the end.
            connection.transport.abort()
        await super().shutdown(sockets)

    async def wait_while(self, condition: Callable[[], bool], deadline: float, *, may_hurry: bool = True) -> None:
        """Wait as long as the condition holds, but no longer than to the deadline, nor when in a hurry."""
        # Polled, as uvicorn does: what ends the wait is set in a signal handler.
        while condition() and not (may_hurry and self.hurry) and time.monotonic() < deadline:
            self.tell(ALIVE)
            self.close_idle_http()
            await asyncio.sleep(0.05)

    def is_working(self) -> bool:
        return self.work.is_busy() or any(map(self.is_owed_an_answer, self.server_state.connections))

    def is_owed_an_answer(self, connection: Any) -> bool:
        """Whether its HTTP response is not complete yet, or its handshake; or whether it was accepted so late that its
        request is still under way."""
        if isinstance(connection, SocketProtocol):
            return not connection.handshake_complete
        if connection.cycle is None:
            return self.left_at is not None and time.monotonic() < self.left_at + REQUEST_SECONDS
        return not connection.cycle.response_complete

    def close_idle_http(self) -> None:
        """End kept connections between two requests, so that a proxy's next one goes elsewhere; the others after their
        answer. Who has not asked anything yet is waited for."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpProtocol) and connection.cycle is not None:
                connection.shutdown()

    def shakes_hands(self) -> bool:
        """Whether a peer has still to answer our Close.

        uvicorn's shutdown drops the TCP connection right behind the frame: clients that have not read everything
        by then (Node's WebSocket, for one) report 1006, and lose what came before.
        """
        return any(getattr(connection, "close_sent", False) for connection in self.server_state.connections)

    def tell(self, word: bytes) -> None:
        """Say a word to the supervisor, who may be too busy to hear it."""
        if self.line is not None:
            with contextlib.suppress(OSError):
                self.line.send(word, socket.MSG_DONTWAIT)


def _without_client_faults(record: logging.LogRecord) -> bool:
    """Keeps out of the error log what anybody can cause from outside.

    uvicorn takes a handshake that was answered by an HTTP status for one without an answer, logs a traceback for text
    that is not UTF-8, and of every socket its path with the query, and that it opens and closes.
    """
    if record.msg in ("connection open", "connection closed") or record.msg.startswith('%s - "WebSocket %s"'):
        return False
    if record.msg.startswith("Invalid UTF-8 sequence"):
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return record.msg != "ASGI callable returned without completing handshake."


def serve(
    listener: socket.socket, config: uvicorn.Config, *, drain_seconds: float, line: socket.socket | None = None
) -> None:
    """Serve on ``listener`` in this process until a signal; returns after the drain."""
    limit_process()
    # Where it hangs, when a supervisor has lost patience.
    faulthandler.enable()
    server = Server(config, drain_seconds=drain_seconds, work=ProcessWork(drain_seconds + EXIT_SECONDS), line=line)
    # A terminal that closes. To a worker it means nothing: a supervisor's SIGHUP is for the supervisor.
    signal.signal(signal.SIGHUP, server.handle_exit if line is None else signal.SIG_IGN)
    if line is not None:
        threading.Thread(target=_exit_with_parent, args=(line,), name="responses_ws-lifeline", daemon=True).start()
    server.run([listener])


def limit_process() -> None:
    """No core dumps, which would hold prompts; as many files as this process may open, and no connection without."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1_048_576 if most == resource.RLIM_INFINITY else most
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections.allow(max(FRONT_FILES, files - SPARE_FILES), FRONT_FILES)


def _exit_with_parent(line: socket.socket) -> None:
    """Drain when the other end of the line closes: the supervisor was killed and cannot say so."""
    select.select([line], [], [])
    os.kill(os.getpid(), signal.SIGTERM)
