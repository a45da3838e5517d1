"""The processes a benchmark needs: our fake engine, and the server in front of it on a database of its own."""

import contextlib
import os
import secrets
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .wire import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60
_OPEN_RECORDS = "SELECT count(*) FROM responses_ws_usagerecord WHERE status = 'in_progress'"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: ``url`` ends in ``/v1``. ``pid`` is 0, and ``database`` None, where the process is not ours."""

    url: str
    key: str = ""
    pid: int = 0
    database: Path | None = None

    def rendered_tokens(self) -> int | None:
        """How many token ids it has made of text so far, by its usage records; None where it makes none."""
        if self.database is None:
            return None
        deadline = time.monotonic() + START_SECONDS
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            # A response that was left by its client is closed a moment later.
            while connection.execute(_OPEN_RECORDS).fetchone() != (0,) and time.monotonic() < deadline:
                time.sleep(0.05)
            (total,) = connection.execute("SELECT sum(rendered_tokens) FROM responses_ws_usagerecord").fetchone()
        return total


@contextlib.contextmanager
def running(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    """End a process when the block ends, patiently first."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def fake_engine(models: Iterable[str] = ("fake",)) -> Iterator[Server]:
    """Our engine in a process of its own. It serves any name; ``models`` are those it also lists."""
    command = [sys.executable, "-m", "benchmarks.fake_engine", "--models", ",".join(models)]
    with running(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout, "piped above"
        with process.stdout:
            port = process.stdout.readline().strip()
        if not port:
            raise BenchmarkError("the fake engine did not start")
        yield Server(f"http://127.0.0.1:{port}/v1", pid=process.pid)


@contextlib.contextmanager
def responses_server(engine_url: str = "") -> Iterator[Server]:
    """The server as in production: one worker on a fresh SQLite database, billing left to a worker that does not run.

    Without ``engine_url`` it answers with the embedded model.

    Raises:
        BenchmarkError: a command failed, or the server does not answer; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="responses-ws-bench-") as var:
        key = "sk-bench-" + secrets.token_hex(16)
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "RESPONSES_WS_VAR": var,
            "ENGINE_URL": engine_url,
            "EMBEDDED_MODEL": "" if engine_url else "1",
            "DEBUG": "0",  # with DEBUG Django remembers every query
            "SECRET_KEY": secrets.token_hex(32),
        }
        for name in ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL"):
            env.pop(name, None)
        manage = [sys.executable, str(ROOT / "manage.py")]
        for command in (["migrate", "--verbosity", "0"], ["responses_ws_createkey", "bench", "--key", key]):
            done = subprocess.run(manage + command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise BenchmarkError(f"manage.py {command[0]} failed:\n{done.stdout}{done.stderr}")
        port = free_port()
        serve = [*manage, "responses_ws_serve", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        log_path = Path(var) / "server.log"
        with log_path.open("w") as log:
            process = subprocess.Popen(serve, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        server = Server(f"http://127.0.0.1:{port}/v1", key, process.pid, Path(var) / "db.sqlite3")
        with running(process):
            try:
                wait_ready(server, process)
                yield server
            except BenchmarkError as error:
                raise BenchmarkError(f"{error}\n\nThe server's log ends:\n{log_path.read_text()[-3000:]}") from error


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_ready(server: Server, process: subprocess.Popen) -> None:
    """Wait until ``GET /v1/models`` answers.

    Raises:
        BenchmarkError: the process ended, or a minute has passed.
    """
    request = urllib.request.Request(f"{server.url}/models", headers={"Authorization": f"Bearer {server.key}"})
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchmarkError(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except urllib.error.HTTPError as error:
            raise BenchmarkError(f"GET /v1/models: {error.code} {error.read()[:500]!r}") from error
        except OSError:
            time.sleep(0.1)
    raise BenchmarkError("the server does not answer")


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process and its children so far, ended threads included; None where the system cannot tell."""
    if not pid or not sys.platform.startswith("linux"):
        return None
    total = 0.0
    family = [pid]
    while family:
        member = family.pop()
        try:
            # A process's own CPU clock, in nanoseconds. Source: clock_getcpuclockid(3).
            total += time.clock_gettime_ns((~member << 3) | 2) / 1e9
            for children in Path(f"/proc/{member}/task").glob("*/children"):
                family.extend(int(child) for child in children.read_text().split())
        except OSError:
            continue
    return total
