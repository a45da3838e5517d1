"""The production launcher: uvicorn with our settings, draining before it closes; and several of it on one socket.

uvicorn alone sends 1012 to every socket at the first SIGTERM, whatever is running, and waits for ever on a peer that
does not read. Here the listener closes first, running turns end (until a deadline), and then the sockets close.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from responses_ws.conf import app_settings

from .protocols import HttpProtocol, SocketProtocol

logger = logging.getLogger(__name__)

# What uvicorn exits with when the application does not start; restarting would not help.
STARTUP_FAILURE = 3
# After the drain: what is left gets this long to take its close frame and be gone.
CLOSE_SECONDS = 5
# Before that: peers that read answer our Close within a round trip.
HANDSHAKE_SECONDS = 2
RESTART_SECONDS = 1.0


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


class Server(uvicorn.Server):
    """A uvicorn server that drains.

    The first signal stops new work and waits for running turns. A second one ends the wait. Neither is raised again
    afterwards: a server that drained has ended well, with exit code 0.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain_seconds: float,
        begin_drain: Callable[[], None],
        is_busy: Callable[[], bool],
        close_sockets: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.drain_seconds = drain_seconds
        self.begin_drain = begin_drain
        self.is_busy = is_busy
        self.close_sockets = close_sockets
        self.hurry = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would skip the application's own shutdown at the second SIGINT; what is owed is written there.
        # A second SIGTERM, which supervisors like to send, changes nothing.
        if self.should_exit and sig == signal.SIGINT:
            self.hurry = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        self.begin_drain()
        await self.wait_while(lambda: self.is_busy() or self.answers_http(), self.drain_seconds)
        self.close_sockets()
        # Our turns' tasks see to the Close frames; then the peers answer them.
        await asyncio.sleep(0)
        await self.wait_while(self.shakes_hands, HANDSHAKE_SECONDS)
        await super().shutdown(sockets)

    async def wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait as long as the condition holds, but no longer than this, nor when in a hurry."""
        deadline = time.monotonic() + seconds
        # Polled, as uvicorn does: what ends the wait is set in a signal handler.
        while condition() and not self.hurry and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def answers_http(self) -> bool:
        """Whether an HTTP response is not complete yet; sockets have no ``cycle``."""
        cycles = [getattr(connection, "cycle", None) for connection in self.server_state.connections]
        return any(cycle is not None and not cycle.response_complete for cycle in cycles)

    def shakes_hands(self) -> bool:
        """Whether a peer has still to answer our Close.

        uvicorn's shutdown drops the TCP connection right behind the frame: clients that have not read everything
        by then (Node's WebSocket, for one) report 1006, and lose what came before.
        """
        return any(getattr(connection, "close_sent", False) for connection in self.server_state.connections)


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


def serve(listener: socket.socket, config: uvicorn.Config, *, drain_seconds: float) -> None:
    """Serve on ``listener`` in this process until a signal; returns after the drain."""
    from .connections import close_sockets
    from .drain import begin_drain, is_busy

    server = Server(
        config, drain_seconds=drain_seconds, begin_drain=begin_drain, is_busy=is_busy, close_sockets=close_sockets
    )
    server.run([listener])


def exit_with_parent(lifeline: int) -> None:
    """Drain when the other end of the pipe ``lifeline`` closes: the supervisor was killed and cannot say so."""

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="responses_ws-lifeline", daemon=True).start()


class Supervisor:
    """Several server processes on one listening socket.

    ``command`` starts one of them; it is given ``--fd`` (the listening socket), ``--lifeline`` (a pipe that closes
    when this process dies) and ``--siblings`` (a directory where workers find each other). A worker that dies is
    started again; SIGTERM and SIGINT are handed on as SIGTERM.
    """

    def __init__(self, command: list[str], listener: socket.socket, *, workers: int, grace_seconds: float) -> None:
        self.command = command
        self.listener = listener
        self.grace_seconds = grace_seconds
        self.workers = workers
        self.processes: list[subprocess.Popen[bytes]] = []
        self.should_exit = threading.Event()

    def run(self) -> int:
        """Run until a signal or until a worker cannot start; gives the exit code."""
        previous = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGTERM, signal.SIGINT)}
        self.lifeline, self.held = os.pipe()
        self.siblings = tempfile.TemporaryDirectory(prefix="responses_ws_", ignore_cleanup_errors=True)
        try:
            self.processes = [self.start() for _ in range(self.workers)]
            return self.watch()
        finally:
            self.stop()
            os.close(self.lifeline)
            os.close(self.held)
            self.siblings.cleanup()
            for sig, handler in previous.items():
                signal.signal(sig, handler)

    def handle_exit(self, _sig: int, _frame: FrameType | None) -> None:
        self.should_exit.set()

    def start(self) -> subprocess.Popen[bytes]:
        """One more worker, in a session of its own: Ctrl-C reaches it through us, once."""
        fds = (self.listener.fileno(), self.lifeline)
        command = [*self.command, "--fd", str(fds[0]), "--lifeline", str(fds[1])]
        command += ["--siblings", self.siblings.name]
        return subprocess.Popen(command, pass_fds=fds, start_new_session=True)

    def watch(self) -> int:
        """Start again what dies, until told to stop."""
        while not self.should_exit.wait(RESTART_SECONDS):
            for position, process in enumerate(self.processes):
                code = process.poll()
                if code is None:
                    continue
                if code == STARTUP_FAILURE:
                    logger.error("worker %d could not start; giving up", process.pid)
                    return 1
                logger.error("worker %d died (exit code %d); starting another", process.pid, code)
                self.processes[position] = self.start()
        return 0

    def stop(self) -> None:
        """SIGTERM to all, then SIGKILL to what is left after the grace."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + self.grace_seconds
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.error("worker %d did not end within %.0f s; killed", process.pid, self.grace_seconds)
                process.kill()
                process.wait()


def own_command(name: str) -> list[str]:
    """How to start another management command the way this process was started."""
    script = sys.argv[0]
    if os.path.basename(script) == "__main__.py":
        return [sys.executable, "-m", "django", name]
    return [sys.executable, script, name]
