"""A Django project from nothing, set up as the README says, and served."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 120.0
STOP_SECONDS = 60.0

SETTINGS = """
INSTALLED_APPS = ["daphne", *INSTALLED_APPS, "channels", "rest_framework", "responses_ws"]
ASGI_APPLICATION = "house.asgi.application"
RESPONSES_WS = {
    "ENGINES": {"main": {"ENGINE": "responses_ws.engines.scripted.Scripted"}},
    "MODELS": {"scripted": {"ENGINE": "main"}},
}
"""
URLS = """
from django.urls import include
urlpatterns += [path("v1/", include("responses_ws.urls"))]
"""
ASGI = """
from channels.routing import ProtocolTypeRouter
from responses_ws.routing import http_router, websocket_application
application = ProtocolTypeRouter({"http": http_router(application, "v1/"), "websocket": websocket_application})
"""


class FreshProject:
    """The project ``house`` in a directory of its own, served by whatever ``serving`` is told."""

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self.directory = directory
        self.python = python
        self.server: subprocess.Popen[bytes] | None = None
        # Not ours: a project finds the app where pip put it.
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("DJANGO")}

    def build(self) -> str:
        """Write the project, migrate, and create a key; gives the key."""
        self.run("-m", "django", "startproject", "house", ".")
        for name, text in (("settings", SETTINGS), ("urls", URLS), ("asgi", ASGI)):
            with (self.directory / "house" / f"{name}.py").open("a") as file:
                file.write(text)
        self.run("manage.py", "migrate", "--verbosity", "0")
        return self.run("manage.py", "responses_ws_createkey", "test").strip()

    def run(self, *arguments: str) -> str:
        result = subprocess.run(
            [self.python, *arguments], cwd=self.directory, env=self.environment, capture_output=True, text=True
        )
        if result.returncode:
            raise RuntimeError(f"{arguments}: {result.stdout}{result.stderr}")
        return result.stdout

    @contextlib.contextmanager
    def serving(self, *arguments: str, port: int) -> Iterator[str]:
        """Run a server command; gives the base URL once it answers."""
        log = self.directory / "server.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [self.python, *arguments],
                cwd=self.directory,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.server = process
        try:
            url = f"http://127.0.0.1:{port}/v1"
            wait_for(url, process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server answers anything at all."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{log.read_text()}")
        try:
            urllib.request.urlopen(f"{url}/models", timeout=5)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"no answer from {url}:\n{log.read_text()}")


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
