"""The processes a benchmark needs: our fake engine, and the server in front of it on a database of its own."""

import contextlib
import json
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from responses_ws.engines.embedded import bundled_model
from responses_ws.engines.scripted_tokens import TOKENIZER
from responses_ws.runtime.writer import LINGER_SECONDS

from .fake_answers import HARMONY_RENDERER, hermes_renderer
from .wire import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60
IDS, HARMONY, INSTANT = "fake-ids", "fake-harmony", "instant"
"""How names of models begin that are asked in token ids, as Qwen or as gpt-oss reads them, and of those that answer
inside of the server's process."""
EVERYTHING = {
    # So much that nobody is refused, and everything is counted.
    "RATES": {
        "requests_per_minute": 100_000_000,
        "tokens_per_minute": 100_000_000_000,
        "concurrent_turns": 100_000,
        "open_sockets": 100_000,
    },
    "METRICS_TOKEN": "benchmark",
}
"""Over the demo project's settings: limits and metrics, beside keys, validation and usage records."""
SERVICES = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "ENGINE_URL")
"""Of whoever runs a benchmark: not for its servers."""
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
        # What is in the journal only is written soon, with what comes meanwhile.
        time.sleep(4 * LINGER_SECONDS)
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


def tokenizer() -> Path:
    """The file of a real tokenizer that is here: SmolLM2's, or the smaller one of the scripted engine."""
    return bundled_model() or TOKENIZER


@contextlib.contextmanager
def fake_engine(models: Sequence[str] = ("fake",)) -> Iterator[Server]:
    """Our engine in a process of its own. It serves any name; ``models`` are those it also lists."""
    command = [sys.executable, "-m", "benchmarks.fake_engine", "--models", ",".join(models)]
    if any(name.startswith(IDS) for name in models):
        command += ["--tokenizer", str(tokenizer())]
    if any(name.startswith(HARMONY) for name in models):
        command.append("--harmony")
    with running(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout, "piped above"
        with process.stdout:
            port = process.stdout.readline().strip()
        if not port:
            raise BenchmarkError("the fake engine did not start")
        yield Server(f"http://127.0.0.1:{port}/v1", pid=process.pid)


def engines(url: str, models: Sequence[str]) -> dict[str, Any]:
    """``RESPONSES_WS`` in front of our engine: ``models`` says by their names which are asked in something else."""
    served: dict[str, Any] = {"*": {"ENGINE": "chat"}}
    for name in models:
        if name.startswith(IDS):
            served[name] = {"ENGINE": "ids", "RENDERER": hermes_renderer(tokenizer())}
        elif name.startswith(HARMONY):
            served[name] = {"ENGINE": "ids", "RENDERER": HARMONY_RENDERER}
        elif name.startswith(INSTANT):
            served[name] = {"ENGINE": "instant"}
    return {
        "ENGINES": {
            "chat": {"ENGINE": "responses_ws.engines.openai_chat.OpenAIChat", "BASE_URL": url},
            "ids": {"ENGINE": "responses_ws.engines.vllm.Vllm", "BASE_URL": url},
            "instant": {"ENGINE": "benchmarks.instant.Instant"},
        },
        "MODELS": served,
    }


@contextlib.contextmanager
def responses_server(
    engine_url: str = "",
    models: Sequence[str] = (),
    *,
    workers: int = 1,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    beside: Sequence[Sequence[str]] = (),
    launcher: Callable[[int], Sequence[str]] | None = None,
) -> Iterator[Server]:
    """The server as in production with `EVERYTHING` on, on a fresh SQLite database unless something else is said.

    Args:
        engine_url: of our engine; without it, the embedded model answers.
        models: those that are not asked in messages.
        settings: Django's, over those of the demo project; ``RESPONSES_WS`` key by key.
        environment: more variables, as a ``DATABASE_URL``. With ``BENCHMARK_SCHEMA`` that schema is made in it.
        beside: commands that run as long as the server does, as a worker that bills.
        launcher: what serves the application in place of our own, by its port: arguments of Python.

    Raises:
        BenchmarkError: a command failed, or the server does not answer; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="responses-ws-bench-") as var, contextlib.ExitStack() as stack:
        key = "sk-bench-" + secrets.token_hex(16)
        given = dict(settings or {})
        ours = EVERYTHING | (engines(engine_url, models) if engine_url else {})
        given["RESPONSES_WS"] = ours | given.get("RESPONSES_WS", {})
        base = {name: value for name, value in os.environ.items() if name not in SERVICES}
        env = base | {
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "BENCHMARK_SETTINGS": json.dumps(given),
            "RESPONSES_WS_VAR": var,
            "EMBEDDED_MODEL": "" if engine_url else "1",
            "DEBUG": "0",  # with DEBUG Django remembers every query
            "SECRET_KEY": secrets.token_hex(32),
            **(environment or {}),
        }
        manage = [sys.executable, str(ROOT / "manage.py")]
        port = free_port()
        serve = [*manage, "responses_ws_serve", "--host", "127.0.0.1", "--port", str(port), "--workers", str(workers)]
        if launcher is not None:
            serve = [sys.executable, *launcher(port)]
        for command in (*_preparations(env), ["responses_ws_createkey", "bench", "--key", key]):
            done = subprocess.run(manage + command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise BenchmarkError(f"manage.py {command[0]} failed:\n{done.stdout}{done.stderr}")
        log_path = Path(var) / "server.log"
        log = stack.enter_context(log_path.open("w"))
        for other in beside:
            stack.enter_context(running(subprocess.Popen(other, env=env, cwd=ROOT, stdout=log, stderr=log)))
        process = subprocess.Popen(serve, env=env, cwd=ROOT, stdout=log, stderr=log)
        stack.enter_context(running(process))
        database = None if env.get("DATABASE_URL") else Path(var) / "db.sqlite3"
        server = Server(f"http://127.0.0.1:{port}/v1", key, process.pid, database)
        try:
            wait_ready(server, process)
            yield server
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}\n\nThe server's log ends:\n{log_path.read_text()[-3000:]}") from error


def _preparations(env: Mapping[str, str]) -> list[list[str]]:
    """What ``manage.py`` does for a fresh database."""
    migrate = ["migrate", "--verbosity", "0"]
    if "BENCHMARK_SCHEMA" not in env:
        return [migrate]
    schema = f"CREATE SCHEMA {env['BENCHMARK_SCHEMA']}"
    create = f"from django.db import connection; connection.cursor().execute({schema!r})"
    return [["shell", "--no-imports", "-c", create], migrate]


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
