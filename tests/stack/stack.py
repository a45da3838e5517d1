"""The services of docker-compose.yml as processes of this machine."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.live import HAS_NURSERY, nursery
from tests.ports import free_port

from .composefile import Service, read_services
from .images import ROOT, AppImage, Place, Unavailable, stand_in

START_SECONDS = 120.0
# Nothing in the tests runs for ten minutes; a server that needs this long does not drain, it hangs.
STOP_SECONDS = 30.0
TROUBLE = ("Traceback", "never retrieved", "never awaited", "Exception in ASGI")


class Running:
    """One service on this machine."""

    def __init__(self, service: Service, place: Place) -> None:
        self.service = service
        self.place = place
        self.image = stand_in(service)
        self.process: Any = None
        self.is_healthy = False
        self.next_check = 0.0

    @property
    def log(self) -> Path:
        return self.place.home.parent / f"{self.service.name}.log"

    def environment(self) -> dict[str, str]:
        """That of the file, with our addresses, beside what any container has."""
        given = {key: self.place.localise(value) for key, value in self.service.environment.items()}
        base = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
        return base | {"HOME": str(self.place.home)} | given | self.place.environment

    def start(self) -> None:
        self.is_healthy = False
        command = self.image.command(self.service.command, self.place)
        if self.is_forked:
            self.process = nursery().fork(command[1:], log=self.log, environment=self.environment(), anew=True)
            return
        is_app = self.place.environment != {}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT if is_app else self.place.home,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own: what a service leaves behind is ended with it.
                start_new_session=True,
                user=self.place.user,
            )

    @property
    def is_forked(self) -> bool:
        """From a process that has imported everything already."""
        return HAS_NURSERY and isinstance(self.image, AppImage)

    def execute(self, command: tuple[str, ...], *, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command as ``docker compose exec`` would."""
        known = self.image.command(command, self.place)
        if self.is_forked:
            return nursery().call(known[1:], environment=self.environment(), seconds=seconds)
        return subprocess.run(
            known,
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def check(self) -> bool:
        """Whether it is ready for those that wait for it. Raises RuntimeError where it has ended."""
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            if self.service.is_job and code == 0:
                self.is_healthy = True
                return True
            raise RuntimeError(f"{self.service.name} ended with {code}:\n{self.tail()}")
        if self.service.is_job or self.is_healthy or time.monotonic() < self.next_check:
            return self.is_healthy
        self.is_healthy = self.execute(self.service.health, seconds=10).returncode == 0
        self.next_check = time.monotonic() + 0.3
        return self.is_healthy

    def signal(self, number: int) -> None:
        """Send a signal to the service's first process, as docker does."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int | None:
        """Its stop signal, the grace, then SIGKILL for the group; gives the exit code."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.signal(getattr(signal, self.service.stop_signal))
        try:
            self.process.wait(min(self.service.stop_grace_seconds, STOP_SECONDS))
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.process.wait()

    def kill(self) -> None:
        """SIGKILL to the whole group: the machine it ran on is gone."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Stack:
    """Context manager: all services run inside it, and none after it.

    ``environ`` fills the variables of the file; ``say`` is told what happens; ``without`` names services to leave out.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda _line: None,
        without: tuple[str, ...] = (),
    ) -> None:
        environ = environ or {}
        services = read_services(ROOT / "docker-compose.yml", environ)
        asked_for = set(environ.get("COMPOSE_PROFILES", "").split(","))
        self.say = say
        self.directory = Path(tempfile.mkdtemp(prefix="responses_ws_stack_"))
        # PostgreSQL may run as another user.
        self.directory.chmod(0o755)
        names = {(name, port): free_port() for name, service in services.items() for port in service.ports}
        self.services: dict[str, Running] = {}
        self.started: list[Running] = []
        for name, service in services.items():
            if name in without or (service.profiles and asked_for.isdisjoint(service.profiles)):
                continue
            home = self.directory / name
            home.mkdir()
            ports = {port: names[name, port] for port in service.ports}
            self.services[name] = Running(service, Place(home=home, ports=ports, names=names))

    def __getitem__(self, name: str) -> Running:
        return self.services[name]

    def __contains__(self, name: str) -> bool:
        return name in self.services

    def url(self, name: str) -> str:
        """The address of a service that speaks HTTP."""
        return f"http://127.0.0.1:{self[name].place.port}"

    def __enter__(self) -> "Stack":
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def prepare(self) -> None:
        for name, running in list(self.services.items()):
            try:
                running.image.prepare(running.service, running.place)
            except Unavailable as exc:
                self.say(f"SKIPPED {name}: {exc}")
                del self.services[name]

    def start(self) -> None:
        """Start everything in the order of ``depends_on``; returns when all are healthy or, for jobs, done."""
        deadline = time.monotonic() + START_SECONDS
        waiting = list(self.services.values())
        while waiting or not all(running.check() for running in self.started):
            for running in [candidate for candidate in waiting if self.may_start(candidate)]:
                waiting.remove(running)
                running.start()
                self.started.append(running)
                self.say(
                    f"started {running.service.name} ({' '.join(running.service.command) or running.service.image})"
                )
            for running in self.started:
                running.check()
            if time.monotonic() > deadline:
                late = [running.service.name for running in self.started if not running.is_healthy]
                raise RuntimeError(f"not healthy after {START_SECONDS:.0f} s: {late}\n" + self.services[late[0]].tail())
            time.sleep(0.05)

    def start_again(self, name: str) -> None:
        """Start one that was stopped or killed, on its old ports and data; returns when it is healthy."""
        running = self[name]
        running.start()
        deadline = time.monotonic() + START_SECONDS
        while not running.check():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} is not healthy again:\n{running.tail()}")
            time.sleep(0.05)

    def may_start(self, running: Running) -> bool:
        # What was left out cannot be waited for.
        needed = [self.services[name] for name in running.service.depends_on if name in self.services]
        return all(other.is_healthy for other in needed)

    def stop(self) -> None:
        """Stop everything, those that depend on others first."""
        for running in reversed(self.started):
            code = running.stop()
            self.say(f"stopped {running.service.name} (exit code {code})")
        self.started = []

    def trouble(self) -> list[str]:
        """Lines of the logs that no healthy service writes."""
        return [
            f"{running.service.name}: {line}"
            for running in self.services.values()
            if running.log.exists()
            for line in running.log.read_text(errors="replace").splitlines()
            if any(word in line for word in TROUBLE)
        ]

    def discard(self) -> None:
        """Delete the logs and data that a stopped stack leaves."""
        shutil.rmtree(self.directory, ignore_errors=True)
