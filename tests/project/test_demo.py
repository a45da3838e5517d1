"""``make run``: what it prints works as pasted, and Ctrl-C leaves nothing behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port

from .fresh_project import children, is_gone

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 90.0
# The tests themselves run under other settings.
NOT_FOR_IT = ("DJANGO_SETTINGS_MODULE", "ENGINE_URL", "DEBUG")


@dataclass
class Demo:
    """A running demo and what it has printed."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text()

    def said(self, pattern: str) -> str:
        """Wait for a line; gives the first group of the pattern."""
        deadline = time.monotonic() + SECONDS
        while (found := re.search(pattern, self.output, re.MULTILINE)) is None:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.output}"
            time.sleep(0.05)
        return found[1]

    def reconciled(self, pattern: str) -> str:
        """Wait until the demo's own worker has billed what ``pattern`` says; gives what reconcile prints."""
        deadline = time.monotonic() + SECONDS
        while True:
            result = subprocess.run(
                [sys.executable, "manage.py", "responses_ws_reconcile"],
                cwd=ROOT,
                env=environment(self.log.parent),
                capture_output=True,
                text=True,
            )
            if re.search(pattern, result.stdout, re.MULTILINE):
                return result.stdout
            assert time.monotonic() < deadline, result.stdout + result.stderr

    def between(self, start: str, end: str) -> str:
        """A part of the banner, as one would copy it."""
        text = self.output
        return text[text.index(start) : text.index(end)]


def environment(var: Path) -> dict[str, str]:
    """That of a shell in which nothing is set up, but for where the demo keeps its files."""
    given = {name: value for name, value in os.environ.items() if name not in NOT_FOR_IT}
    return given | {"RESPONSES_WS_VAR": str(var), "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def running(var: Path, *options: str) -> Iterator[Demo]:
    """The demo with its files in ``var``; killed at the end if it has not ended."""
    var.mkdir(exist_ok=True)
    log = var / "log.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "responses_ws_demo", *options],
            cwd=ROOT,
            env=environment(var),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Demo(process, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.conformance
def test_what_the_demo_prints_works_as_pasted(tmp_path: Path) -> None:
    with running(tmp_path / "var", "--port", str(free_port())) as demo:
        demo.said(r"(Ctrl-C stops everything)")
        curl = demo.between("curl -N", "  With Python").strip()
        example = demo.between("from openai", "  Ctrl-C")

        by_http = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=SECONDS)
        by_socket = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=SECONDS)
        billed = demo.reconciled(r"^2 journals, 0 records waiting")
        engines = children(demo.process.pid)
        os.killpg(demo.process.pid, signal.SIGINT)
        code = demo.process.wait(SECONDS)
        output = demo.output

    assert re.search(r"^event: response.(completed|incomplete)$", by_http.stdout, re.MULTILINE), by_http.stdout
    assert by_http.returncode == 0
    assert by_socket.stdout.strip()
    assert by_socket.returncode == 0, by_socket.stderr
    assert "The books agree." in billed
    assert code == 0
    assert "Traceback" not in output
    assert [pid for pid in engines if not is_gone(pid)] == []


def test_the_demo_keeps_its_key(tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        with running(tmp_path / "var", "--port", str(free_port())) as demo:
            keys.append(demo.said(r"API key +(\S+)"))
    kept = tmp_path / "var" / "demo.key"

    assert keys[0] == keys[1] == kept.read_text().strip()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "var" / "demo.admin").stat().st_mode & 0o777 == 0o600


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path / "one", "--port", str(port)) as first:
        first.said(r"(Base URL)")

        with running(tmp_path / "two", "--port", str(port)) as second:
            code = second.process.wait(SECONDS)
            output = second.output

    assert code == 1
    assert f"Port {port} is taken. Name another: make run PORT={port + 1}" in output
    assert "Traceback" not in output


def test_an_engine_that_is_not_there_is_named(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with running(tmp_path / "var", "--port", str(free_port()), "--engine-url", url, "--api-key", "sk-mine") as demo:
        key = demo.said(r"API key +(\S+)")
        models = demo.said(r"Models +(.+)$")
        reason = demo.said(rf"({re.escape(url)} does not list its models)")

    assert key == "sk-mine"
    assert models == "scripted"
    assert reason
    assert not (tmp_path / "var" / "demo.key").exists()
