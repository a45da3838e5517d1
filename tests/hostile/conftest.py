"""A server of their own for clients that mean no good, with scaled times."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.raw import Door
from tests.live import Server

UNREAD_SECONDS = 2.0
PING_SECONDS = 0.5
PONG_SECONDS = 5.0

LIMITS = {
    "unread_seconds": UNREAD_SECONDS,
    "ping_seconds": PING_SECONDS,
    "pong_seconds": PONG_SECONDS,
    # Those that are tried here send more than a client may.
    "frames_per_second": 1e6,
    "frames_at_once": 10**6,
    "faults_per_minute": 10**6,
    "open_sockets": 12_000,
}


@pytest.fixture(scope="session")
def hostile_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("hostile")
    Server(directory=home, name="migrate").migrate()
    return home


@pytest.fixture(scope="session")
def server(hostile_home: Path) -> Iterator[Server]:
    # Ten thousand sockets are as many files, on either side.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    with Server(directory=hostile_home, limits=LIMITS) as running:
        yield running
        assert not running.trouble(), running.output()[-5000:]


@pytest.fixture(scope="session")
def door(hostile_home: Path, server: Server) -> Door:
    return Door(server, Server(directory=hostile_home, name="createkey").create_key("hostile"))


class Vitals:
    """What the kernel says of a server's process."""

    def __init__(self, server: Server) -> None:
        assert server.process is not None
        self._home = Path(f"/proc/{server.process.pid}")

    @property
    def memory(self) -> int:
        """Bytes of it that are in memory."""
        return int((self._home / "statm").read_text().split()[1]) * resource.getpagesize()

    @property
    def files(self) -> int:
        return len(os.listdir(self._home / "fd"))


@pytest.fixture
def vitals(server: Server) -> Vitals:
    if not Path("/proc/self/statm").exists():
        pytest.skip("only Linux tells what a process takes")
    return Vitals(server)
