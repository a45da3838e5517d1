"""Several server processes on one listening socket: kept alive, replaced one by one, ended together."""

import asyncio
import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from types import FrameType

import msgspec

from responses_ws.protocol.errors import Overloaded

from .launcher import LEFT

logger = logging.getLogger(__name__)

# What uvicorn exits with when the application does not start; where none ever has, another try would not help.
STARTUP_FAILURE = 3
# A worker that lives for less than this has failed; after so many failures in a row, the next waits for …
STEADY_SECONDS = 30.0
# … 1, 2, 4 … seconds, and never longer than this.
LONGEST_PAUSE = 30.0
# From its start to its first word.
START_SECONDS = 300.0
# Between SIGABRT, at which it says where it hangs, and SIGKILL.
ABORT_SECONDS = 2.0
POLL_SECONDS = 0.1
# A supervisor that was itself stopped for longer has not heard what was said meanwhile.
ABSENT_SECONDS = 5.0
TURN_AWAY_SECONDS = 1.0


class Worker:
    """One of the processes, and the line on which it says that it lives."""

    def __init__(self, process: "subprocess.Popen[bytes]", line: socket.socket, replaces: "Worker | None") -> None:
        self.process = process
        self.line = line
        self.replaces = replaces
        """Who goes when this one serves."""
        self.started_at = time.monotonic()
        self.heard_at: float | None = None
        """None: it does not serve yet."""
        self.listens = True
        self.leaves_by: float | None = None
        """When it has to be gone; None: it stays."""
        self.aborted_at: float | None = None

    def overdue(self, now: float, hung_seconds: float) -> str:
        """Why it has to be killed; empty: it need not."""
        if self.leaves_by is not None and now > self.leaves_by:
            return "has not ended in time"
        if self.heard_at is None:
            return f"does not serve after {START_SECONDS:.0f} s" if now - self.started_at > START_SECONDS else ""
        return f"hangs since {now - self.heard_at:.0f} s" if now - self.heard_at > hung_seconds else ""


class Supervisor:
    """Keeps so many workers serving.

    ``command`` starts one; it is given ``--fd`` (the listening socket), ``--line`` (a socket on which it speaks, and
    which closes when this process dies) and ``--siblings`` (a directory where workers find each other).

    SIGTERM and SIGINT are handed on as SIGTERM, a second SIGINT as SIGINT. SIGHUP replaces all workers, one after the
    other: the new one serves before the old one is told to go.

    Args:
        grace_seconds: from SIGTERM to SIGKILL.
        hung_seconds: how long an event loop may stand still.
        most_bytes: a worker that holds more memory is replaced; 0: no limit.
    """

    def __init__(
        self,
        command: list[str],
        listener: socket.socket,
        *,
        workers: int,
        grace_seconds: float,
        hung_seconds: float = 30.0,
        most_bytes: int = 0,
    ) -> None:
        self.command = command
        self.listener = listener
        self.count = workers
        self.grace_seconds = grace_seconds
        self.hung_seconds = hung_seconds
        self.most_bytes = most_bytes
        self.workers: list[Worker] = []
        self.to_replace: list[Worker] = []
        self.selector = selectors.DefaultSelector()
        self.looked_at = time.monotonic()
        self.has_served = False
        self.failures = 0
        self.start_after = 0.0
        self.should_exit = False
        self.should_roll = False
        self.hurry = False
        self.code: int | None = None

    def run(self) -> int:
        """Run until a signal, or until it is clear that no worker can start; gives the exit code."""
        handlers = {signal.SIGTERM: self.handle_exit, signal.SIGINT: self.handle_exit, signal.SIGHUP: self.handle_roll}
        previous = {sig: signal.signal(sig, handler) for sig, handler in handlers.items()}
        self.siblings = tempfile.TemporaryDirectory(prefix="responses_ws_", ignore_cleanup_errors=True)
        # Python rings it at every signal, so that none has to wait for the next look.
        self.bell, ringer = socket.socketpair()
        ringer.setblocking(False)
        previous_fd = signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
        self.selector.register(self.bell, selectors.EVENT_READ, None)
        try:
            while self.code is None and not self.should_exit:
                self.renew()
                self.hear()
                self.look_after()
            return self.code or 0
        finally:
            self.stop()
            self.siblings.cleanup()
            signal.set_wakeup_fd(previous_fd)
            self.bell.close()
            ringer.close()
            for sig, handler in previous.items():
                signal.signal(sig, handler)

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        self.hurry = self.hurry or (self.should_exit and sig == signal.SIGINT)
        self.should_exit = True

    def handle_roll(self, _sig: int, _frame: FrameType | None) -> None:
        self.should_roll = True

    def start(self, replaces: Worker | None = None) -> None:
        """One more worker, in a session of its own: Ctrl-C reaches it through us, once."""
        ours, theirs = socket.socketpair()
        with theirs:
            fds = (self.listener.fileno(), theirs.fileno())
            command = [*self.command, "--fd", str(fds[0]), "--line", str(fds[1]), "--siblings", self.siblings.name]
            try:
                process = subprocess.Popen(command, pass_fds=fds, start_new_session=True)
            except OSError:
                ours.close()
                raise
        worker = Worker(process, ours, replaces)
        self.workers.append(worker)
        self.selector.register(ours, selectors.EVENT_READ, worker)

    def hear(self, seconds: float = POLL_SECONDS) -> None:
        """What workers say, waiting so long for it."""
        for key, _events in self.selector.select(seconds):
            worker: Worker | None = key.data
            if worker is None:
                self.bell.recv(4096)
                continue
            words = worker.line.recv(4096)
            if not words:
                # It is dying.
                self.selector.unregister(worker.line)
                continue
            worker.heard_at = time.monotonic()
            self.has_served = True
            if LEFT in words:
                # If nobody has told it to: somebody has sent a signal to it alone.
                worker.listens = False
                worker.leaves_by = worker.leaves_by or time.monotonic() + self.grace_seconds

    def look_after(self) -> None:
        """Bury the dead, end what hangs, mark who has grown too large."""
        now = time.monotonic()
        if now - self.looked_at > ABSENT_SECONDS:
            for worker in self.workers:
                worker.heard_at = worker.heard_at and now
        self.looked_at = now
        for worker in list(self.workers):
            code = worker.process.poll()
            if code is not None:
                self.ended(worker, code)
            elif reason := worker.overdue(now, self.hung_seconds):
                self.kill(worker, reason, now)
            elif self.is_too_large(worker):
                logger.warning("worker %d holds too much memory; another takes its place", worker.process.pid)
                self.to_replace.append(worker)
                self.begin_pause(now - worker.started_at)

    def renew(self) -> None:
        """Start what is missing; let those go that have been replaced, and start the next replacement."""
        if self.should_roll:
            self.should_roll = False
            self.to_replace = list(self.workers)
        for worker in self.workers:
            if worker.replaces is not None and worker.heard_at is not None:
                logger.info("worker %d takes the place of %d", worker.process.pid, worker.replaces.process.pid)
                self.dismiss(worker.replaces)
                worker.replaces = None
        if time.monotonic() < self.start_after:
            return
        try:
            self.start_missing()
        except OSError as exc:
            logger.error("no worker can be started: %s", exc)
            self.begin_pause(0.0)

    def start_missing(self) -> None:
        while sum(worker.leaves_by is None and worker.replaces is None for worker in self.workers) < self.count:
            self.start()
        if any(worker.replaces is not None for worker in self.workers):
            return
        self.to_replace = [worker for worker in self.to_replace if worker in self.workers and worker.leaves_by is None]
        if self.to_replace:
            self.start(replaces=self.to_replace.pop(0))

    def ended(self, worker: Worker, code: int) -> None:
        """It is no more; what it was to replace stays."""
        self.workers.remove(worker)
        with contextlib.suppress(KeyError):
            self.selector.unregister(worker.line)
        worker.line.close()
        for other in self.workers:
            if other.replaces is worker:
                other.replaces = None
        if worker.leaves_by is not None:
            if code:
                logger.error("worker %d ended with exit code %d", worker.process.pid, code)
            return
        if code == STARTUP_FAILURE and not self.has_served:
            logger.error("worker %d could not start; giving up", worker.process.pid)
            self.code = 1
            return
        if worker.replaces is not None:
            logger.error("worker %d could not start (exit code %d); the old ones go on", worker.process.pid, code)
            self.to_replace = []
        else:
            logger.error("worker %d died (exit code %d); another takes its place", worker.process.pid, code)
        self.begin_pause(time.monotonic() - worker.started_at)

    def begin_pause(self, lived: float) -> None:
        """Before the next start, the longer the more have failed in a row; ``lived``: the last one, in seconds."""
        self.failures = self.failures + 1 if lived < STEADY_SECONDS else 0
        pause = min(LONGEST_PAUSE, 2.0 ** (self.failures - 1)) if self.failures else 0.0
        self.start_after = time.monotonic() + pause

    def dismiss(self, worker: Worker) -> None:
        if worker.leaves_by is None:
            worker.leaves_by = time.monotonic() + self.grace_seconds
            worker.process.terminate()

    def kill(self, worker: Worker, reason: str, now: float) -> None:
        if worker.aborted_at is None:
            logger.error("worker %d %s; killed", worker.process.pid, reason)
            worker.aborted_at = now
            worker.process.send_signal(signal.SIGABRT)
        elif now - worker.aborted_at > ABORT_SECONDS:
            worker.process.kill()

    def is_too_large(self, worker: Worker) -> bool:
        if not self.most_bytes or worker.heard_at is None or worker.leaves_by is not None:
            return False
        if worker in self.to_replace or any(other.replaces is worker for other in self.workers):
            return False
        return resident_bytes(worker.process.pid) > self.most_bytes

    def stop(self) -> None:
        """Let all of them go, and see to it that they do."""
        for worker in self.workers:
            self.dismiss(worker)
        # Whoever is not accepted by a worker any more is by us, until nobody listens: then the kernel refuses.
        asyncio.run(self.turn_away())
        while self.workers:
            self.hear()
            self.look_after()
            if self.hurry:
                self.hurry = False
                for worker in self.workers:
                    worker.process.send_signal(signal.SIGINT)
        self.selector.close()

    async def turn_away(self) -> None:
        """Answer 503 to whoever connects until no worker listens; then close the socket, here too."""
        server = await asyncio.start_server(_refuse, sock=self.listener)
        deadline = time.monotonic() + TURN_AWAY_SECONDS
        while any(worker.listens for worker in self.workers) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            self.hear(0)
            self.look_after()
        server.close()
        # Those who have connected are answered, or late for it.
        while asyncio.all_tasks() - {asyncio.current_task()}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    error = Overloaded("The server is about to restart. Please try again.")
    body = msgspec.json.encode({"error": error.body()})
    head = f"HTTP/1.1 {error.status} Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
        # A connection that is closed with something unread is reset, and its answer may be lost.
        async with asyncio.timeout(TURN_AWAY_SECONDS):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head.encode() + body)
            await writer.drain()
    writer.close()


def resident_bytes(pid: int) -> int:
    """What a process holds of the machine's memory; 0 where that cannot be known. Source: proc_pid_statm(5)."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def own_command(name: str) -> list[str]:
    """How to start another management command the way this process was started."""
    script = sys.argv[0]
    if os.path.basename(script) == "__main__.py":
        return [sys.executable, "-m", "django", name]
    return [sys.executable, script, name]
