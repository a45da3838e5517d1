"""The journal: what is in it survives its process, and nobody replays what still has an owner."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from responses_ws.runtime.journal import File, journal, legacies


def left_in(directory: Path) -> list[bytes]:
    return [record for legacy in legacies(directory) for record in legacy.records]


def test_what_was_written_is_read_again_once_its_owner_has_gone(tmp_path: Path) -> None:
    file = File(tmp_path)
    records = [b"", b"one", os.urandom(100_000)]
    for record in records:
        file.append(record)

    while_it_lives = left_in(tmp_path)
    file.release()

    assert while_it_lives == []
    assert left_in(tmp_path) == records


@pytest.mark.parametrize("torn", [1, 8, 11], ids=["checksum", "head", "body"])
def test_a_record_that_was_being_written_is_left_out(tmp_path: Path, torn: int) -> None:
    file = File(tmp_path)
    file.append(b"whole")
    file.append(b"half")
    file.release()
    [path] = tmp_path.iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:-torn] if torn > 1 else data[:-1] + b"?")

    assert left_in(tmp_path) == [b"whole"]


def test_a_file_is_empty_when_all_of_it_is_settled_and_gone_with_its_owner(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.append(b"secret")
    file.append(b"another")
    [path] = tmp_path.iterdir()

    file.settle()
    half_way = path.stat().st_size
    file.settle()
    settled = path.stat().st_size
    file.append(b"later")
    file.settle()
    file.release()

    assert half_way > 0 and settled == 0
    assert list(tmp_path.iterdir()) == []


def test_a_retired_file_keeps_its_lock_until_it_is_settled(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.append(b"open")
    file.retire()

    before = left_in(tmp_path)
    file.settle()

    assert before == []
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    file = File(directory)
    [path] = directory.iterdir()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    file.release()


def test_a_record_that_does_not_fit_leaves_the_ones_before_it_whole(tmp_path: Path) -> None:
    """A disk that is full writes half of it."""
    program = f"""
import resource, signal
from pathlib import Path
from responses_ws.runtime.journal import File
file = File(Path({str(tmp_path)!r}))
file.append(b"whole")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for size in (5000, 10):
    try:
        file.append(b"x" * size)
    except OSError:
        print("refused", size)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stdout == "refused 5000\n", done.stderr
    assert left_in(tmp_path) == [b"whole", b"x" * 10]


def test_kill_9_takes_the_lock_and_leaves_the_records(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from responses_ws.runtime.journal import File
file = File(Path({str(tmp_path)!r}))
file.append(b"promised")
print("written", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGSTOP)
        while_stopped = left_in(tmp_path)
        process.kill()
        process.wait()

    # Stopped is not dead: it may go on at any moment.
    assert while_stopped == []
    assert left_in(tmp_path) == [b"promised"]


def test_it_goes_on_in_another_file_before_one_grows_too_large(tmp_path: Path, settings) -> None:
    settings.RESPONSES_WS = {"JOURNAL_DIR": str(tmp_path)}

    files = [journal.append(bytes(1_500_000)) for _ in range(6)]

    assert len({id(file) for file in files}) == 2
    for file in files:
        file.settle()
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]


async def test_syncs_are_shared_and_all_are_told(tmp_path: Path, settings) -> None:
    settings.RESPONSES_WS = {"JOURNAL_DIR": str(tmp_path)}

    async with asyncio.timeout(30):
        await asyncio.gather(*(journal.append(b"x").sync() for _ in range(100)))
        await journal.append(b"x").sync()

    journal.close()
    assert len(left_in(tmp_path)) == 101


def test_without_a_directory_nothing_can_be_kept(settings) -> None:
    settings.RESPONSES_WS = {"JOURNAL_DIR": ""}

    with pytest.raises(OSError, match="JOURNAL_DIR"):
        journal.append(b"x")
