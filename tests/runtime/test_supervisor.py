"""The supervisor: keeps its workers alive, replaces them, and ends with them."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from responses_ws.runtime.launcher import listen
from responses_ws.runtime.supervisor import LONGEST_PAUSE, Supervisor

DEADLINE = 10.0

# Says that it serves, and what it is by a file in its directory; SIGTERM ends it.
WORKER = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
directory = sys.argv[1]
if os.path.exists(os.path.join(directory, "broken")):
    sys.exit(3)
line = socket.socket(fileno=int(sys.argv[sys.argv.index("--line") + 1]))
line.send(b".")
open(os.path.join(directory, str(os.getpid())), "w").close()
while True:
    time.sleep(0.1)
    line.send(b".")
"""


@pytest.fixture
def listener() -> Any:
    with listen("127.0.0.1", 0) as opened:
        yield opened


def supervisor_of(listener: socket.socket, directory: Path, script: str = WORKER) -> Supervisor:
    """A supervisor of two workers that run ``script``. Its ``run`` belongs into the main thread, for its signals."""
    return Supervisor([sys.executable, "-c", script, str(directory)], listener, workers=2, grace_seconds=5)


def run_beside(supervisor: Supervisor, story: Callable[[], None]) -> int:
    """Run it, and tell the story beside; then SIGTERM. Gives the exit code."""
    failures: list[BaseException] = []

    def tell() -> None:
        try:
            story()
        except BaseException as exc:
            failures.append(exc)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    beside = threading.Thread(target=tell)
    beside.start()
    code = supervisor.run()
    beside.join()
    if failures:
        raise failures[0]
    return code


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def started(directory: Path) -> list[int]:
    """Everybody who has ever served."""
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_dies_is_replaced_and_all_end_with_the_supervisor(
    listener: socket.socket, tmp_path: Path
) -> None:
    def kill_one() -> None:
        wait_until(lambda: len(started(tmp_path)) == 2)
        os.kill(started(tmp_path)[0], signal.SIGKILL)
        wait_until(lambda: len(started(tmp_path)) == 3)

    code = run_beside(supervisor_of(listener, tmp_path), kill_one)

    assert code == 0
    assert not any(map(is_there, started(tmp_path)))


def test_a_worker_that_is_told_to_go_by_somebody_else_is_replaced_while_it_drains(
    listener: socket.socket, tmp_path: Path
) -> None:
    takes_its_time = WORKER.replace(
        "lambda *_: sys.exit(0)", "lambda *_: (line.send(b'L'), time.sleep(1), sys.exit(0))"
    )

    def tell_one() -> None:
        wait_until(lambda: len(started(tmp_path)) == 2)
        told = started(tmp_path)[0]
        os.kill(told, signal.SIGTERM)
        wait_until(lambda: len(started(tmp_path)) == 3)
        assert is_there(told)

    assert run_beside(supervisor_of(listener, tmp_path, takes_its_time), tell_one) == 0


def test_where_no_process_can_be_made_it_tries_again(
    listener: socket.socket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = supervisor_of(listener, tmp_path)
    command, supervisor.command = supervisor.command, ["/nowhere/python"]

    def repair() -> None:
        wait_until(lambda: "no worker can be started" in caplog.text)
        supervisor.command = command
        wait_until(lambda: len(started(tmp_path)) == 2)

    assert run_beside(supervisor, repair) == 0


def test_workers_that_cannot_start_are_not_started_for_ever(listener: socket.socket, tmp_path: Path) -> None:
    supervisor = supervisor_of(listener, tmp_path, "import sys; sys.exit(3)")

    code = supervisor.run()

    assert code == 1


def test_sighup_replaces_all_and_never_is_nobody_there(listener: socket.socket, tmp_path: Path) -> None:
    served: list[int] = []

    def roll() -> None:
        wait_until(lambda: len(started(tmp_path)) == 2)
        old = started(tmp_path)
        os.kill(os.getpid(), signal.SIGHUP)
        while any(map(is_there, old)):
            served.append(sum(map(is_there, started(tmp_path))))
            time.sleep(0.01)
        wait_until(lambda: len(started(tmp_path)) == 4)

    code = run_beside(supervisor_of(listener, tmp_path), roll)

    assert code == 0
    assert min(served) >= 2


def test_where_the_new_ones_do_not_start_the_old_ones_go_on(
    listener: socket.socket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def roll() -> None:
        wait_until(lambda: len(started(tmp_path)) == 2)
        (tmp_path / "broken").touch()
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: "the old ones go on" in caplog.text)
        assert all(map(is_there, started(tmp_path)))

    code = run_beside(supervisor_of(listener, tmp_path), roll)

    assert code == 0
    assert len(started(tmp_path)) == 2


def test_whoever_has_connected_and_was_not_served_is_told_to_come_back(listener: socket.socket, tmp_path: Path) -> None:
    address = listener.getsockname()
    with socket.create_connection(address) as client:
        client.sendall(b"GET /v1/responses HTTP/1.1\r\nHost: here\r\n\r\n")

        run_beside(supervisor_of(listener, tmp_path), lambda: wait_until(lambda: len(started(tmp_path)) == 2))

        client.settimeout(DEADLINE)
        head, _, body = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in head
    assert b"server_is_overloaded" in body
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_the_more_fail_in_a_row_the_longer_the_next_waits(listener: socket.socket, tmp_path: Path) -> None:
    supervisor = supervisor_of(listener, tmp_path)
    pauses: list[int] = []

    for lived in (1, 1, 1, 1, 1, 1, 1, 1000, 1):
        supervisor.begin_pause(lived)
        pauses.append(round(supervisor.start_after - time.monotonic()))

    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE, 0, 1]


def test_a_supervisor_that_was_stopped_itself_does_not_take_its_workers_for_hung(
    listener: socket.socket, tmp_path: Path
) -> None:
    supervisor = supervisor_of(listener, tmp_path)
    supervisor.hung_seconds = 1.0

    def be_away() -> None:
        wait_until(lambda: len(started(tmp_path)) == 2)
        away = time.monotonic() - 100
        for worker in supervisor.workers:
            worker.heard_at = away
        supervisor.looked_at = away
        time.sleep(0.3)

    code = run_beside(supervisor, be_away)

    assert code == 0
    assert len(started(tmp_path)) == 2
