"""Processes that start in a tenth of a second: forked from one that has imported everything.

A test that kills forty servers has no time to import Django forty times, nor has a suite that starts a hundred. The
parent runs nothing but this file: no thread, no event loop, no database connection; its children are servers, workers
and snippets like any other.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.live import ROOT, START_SECONDS, STOP_SECONDS, Process

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, see prctl(2)
FORKER = [sys.executable, "-m", "tests.forking"]


class Child:
    """A forked process, with as much of `subprocess.Popen` as tests use."""

    def __init__(self, forker: "Forker", pid: int) -> None:
        self._forker = forker
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._forker.ask({"status": self.pid})
            if self.returncode is not None:
                os.close(self._descriptor)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            select.select([self._descriptor], [], [], timeout)
            if self.poll() is None:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """With all that it has forked itself."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)


class Forker(Process):
    """The parent, in one environment: so its children share settings, but for what `fork` is told."""

    def __init__(self, *, directory: Path, environment: dict[str, str]) -> None:
        super().__init__(FORKER, directory=directory, environment=environment)
        self._asking = threading.Lock()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                FORKER,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for whoever has started it, who then ends its children as they want to be ended.
                start_new_session=True,
            )

    def stop(self) -> int | None:
        process = self.process
        if process is None:
            return None
        assert process.stdin is not None and process.stdout is not None
        # Its end of input is its end, and that of its children.
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        code = super().stop()
        process.stdout.close()
        return code

    def ask(self, question: dict[str, Any]) -> Any:
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        with self._asking:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        assert answer, f"the forker has ended:\n{self.output()}"
        return json.loads(answer)

    def fork(
        self,
        command: list[str],
        *,
        log: Path,
        errors: Path | None = None,
        environment: dict[str, str] | None = None,
        anew: bool = False,
    ) -> Child:
        """Run ``manage.py …``, ``celery …``, ``-m module …`` or ``-c code`` in a child. Its output goes to ``log``,
        what is for stderr to ``errors``, if these are named.

        ``environment`` is what it has beside the parent's, or ``anew`` all that it has: its settings are read again.
        """
        log.touch()
        question = {"command": command, "log": str(log), "errors": str(errors or log)}
        return Child(self, self.ask(question | {"environment": environment or {}, "anew": anew}))

    def call(self, command: list[str], *, environment: dict[str, str], seconds: float = START_SECONDS) -> Any:
        """As `subprocess.run`, with all that it prints."""
        paths = [self.directory / f"call-{time.monotonic_ns()}-{name}.txt" for name in ("output", "errors")]
        child = self.fork(command, log=paths[0], errors=paths[1], environment=environment, anew=True)
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise
        printed = [path.read_text() for path in paths]
        for path in paths:
            path.unlink()
        return subprocess.CompletedProcess(command, status, *printed)

    def run(self, code: str, *, name: str = "snippet") -> str:
        """Run Python with Django set up; gives what it printed. Raises RuntimeError where it fails."""
        log = self.directory / f"{name}-{time.monotonic_ns()}.txt"
        status = self.fork(["-c", code], log=log).wait(START_SECONDS)
        printed = log.read_text()
        if status:
            raise RuntimeError(f"{code}\nended with {status}:\n{printed}")
        return printed


def serve() -> None:
    """The parent: a line of JSON in, a line out, until the end of its input."""
    children: set[int] = set()
    for line in sys.stdin:
        question = json.loads(line)
        answer: int | None
        if "status" in question:
            pid, status = os.waitpid(question["status"], os.WNOHANG)
            children.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                become(**question)
            children.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in children:
        os.killpg(pid, signal.SIGKILL)


def become(command: list[str], log: str, errors: str, environment: dict[str, str], *, anew: bool) -> None:
    """In the child: never returns."""
    # A group of its own: what it forks is killed with it. And it does not outlive its parent, whatever becomes of that.
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    output, error = (os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) for path in (log, errors))
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (error, 2)):
        os.dup2(source, target)
    code: Any = 1
    try:
        if anew:
            os.environ.clear()
        os.environ.update(environment)
        if anew:
            read_settings()
        run(command)
        code = 0
    except SystemExit as exit:
        code = exit.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def read_settings() -> None:
    """As this process would have them, had it begun with its environment. Installed apps stay as they were."""
    from asgiref.local import Local
    from django.conf import Settings, settings
    from django.db import connections
    from django.utils.log import configure_logging

    from responses_ws.conf import app_settings

    name = os.environ["DJANGO_SETTINGS_MODULE"]
    for module in ("project.settings", name):
        if module in sys.modules:
            importlib.reload(sys.modules[module])
    installed = settings.INSTALLED_APPS
    settings._wrapped = Settings(name)
    for cached in [key for key in vars(settings) if key.isupper()]:
        del vars(settings)[cached]
    assert installed == settings.INSTALLED_APPS, "these cannot be changed"
    vars(connections).pop("settings", None)
    connections._settings = None
    connections._connections = Local(connections.thread_critical)
    configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
    app_settings.reload(setting="RESPONSES_WS")
    # It looks for static files where it is imported.
    sys.modules.pop("project.asgi", None)


def run(command: list[str]) -> None:
    from django.core.management import execute_from_command_line

    from responses_ws.runtime import faults

    faults.arm(os.environ.get("RESPONSES_WS_FAULT", ""))
    sys.argv = command
    if command[0] == "celery":
        from celery.bin.celery import celery

        celery(command[1:], auto_envvar_prefix="CELERY")
    elif command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        exec(command[1], {"__name__": "__main__"})
    else:
        execute_from_command_line(command)


def main() -> None:
    import django

    django.setup()
    import uvicorn.loops.auto
    import uvicorn.protocols.http.auto
    import uvicorn.protocols.websockets.auto  # noqa: F401
    from django.conf import settings
    from django.urls import get_resolver
    from django.utils.module_loading import import_string

    import project.celery  # noqa: F401
    from responses_ws.conf import app_settings
    from responses_ws.engines.registry import registry

    import_string(settings.ASGI_APPLICATION)
    get_resolver().url_patterns  # noqa: B018
    for name in app_settings.ENGINES:
        registry.engine(name)
    registry.reset()
    # A child that collected garbage would copy every page it was forked with.
    gc.collect()
    gc.freeze()
    serve()


if __name__ == "__main__":
    main()
