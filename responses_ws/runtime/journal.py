"""The journal: an append-only file of this process for what was promised before the database has it.

A plain ``write`` is in the kernel's hands when it returns, so it survives kill -9 of the process, and costs
microseconds; with ``fdatasync`` it survives a loss of power, too. What has become durable in the database is *settled*,
and a file of which all is settled is emptied. The owner holds a lock on its file (``flock``), which the kernel takes
away when the process dies, however it dies: a file that can be locked has no owner any more, and whoever locks it may
replay it.

Source: flock(2), rename(2).
"""

import asyncio
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from responses_ws.conf import app_settings

from .ids import new_id

_HEAD = struct.Struct("<II")
"""Before every record: its length in bytes, and its CRC-32."""
_LARGEST_FILE = 4 * 1024 * 1024
"""Beyond, the next record begins another file: one that is always in use could never be emptied."""


class File:
    """One file of the journal. It exists, locked, from its first record until all of them are settled."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._unsettled = 0
        self._is_retired = False
        self._syncing: asyncio.Task[None] | None = None
        self._next_sync: asyncio.Task[None] | None = None
        self.size = 0
        # Not on Windows, where there is no journal.
        import fcntl

        while True:
            # It gets its name when it is locked: under that name nobody ever finds it without its lock.
            new = directory / f"{new_id('file')}.new"
            self._path = new.with_suffix(".journal")
            self._descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                os.rename(new, self._path)
                break
            except FileNotFoundError:
                # Cleared away as what a dead process has left.
                os.close(self._descriptor)
        # After a loss of power the file must be found, too.
        entries = os.open(directory, os.O_RDONLY)
        os.fsync(entries)
        os.close(entries)

    def append(self, record: bytes) -> None:
        """Raises OSError; then the file ends as it did before."""
        data = _HEAD.pack(len(record), zlib.crc32(record)) + record
        with self._lock:
            written = os.write(self._descriptor, data)
            if written < len(data):
                os.ftruncate(self._descriptor, self.size)
                raise OSError(f"only {written} of {len(data)} bytes could be written")
            self.size += written
            self._unsettled += 1

    async def sync(self) -> None:
        """Make what was appended survive a loss of power. Who comes while one sync runs shares the next one."""
        if self._next_sync is None:
            self._next_sync = asyncio.get_running_loop().create_task(self._sync())
        await asyncio.shield(self._next_sync)

    async def _sync(self) -> None:
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        self._syncing, self._next_sync = self._next_sync, None
        await asyncio.to_thread(os.fdatasync, self._descriptor)

    def settle(self) -> None:
        """One more of its records is in the database. Safe from any thread."""
        with self._lock:
            self._unsettled -= 1
            if self._is_retired:
                self._delete_if_settled()
            elif not self._unsettled:
                # Content should not lie here for longer than it must.
                os.ftruncate(self._descriptor, 0)
                self.size = 0

    def retire(self) -> None:
        """Nothing more is appended."""
        with self._lock:
            self._is_retired = True
            self._delete_if_settled()

    def release(self) -> None:
        """Give up the lock: what is not settled is for others to replay."""
        self.retire()
        with self._lock:
            self._close()

    def _delete_if_settled(self) -> None:
        if not self._unsettled:
            with suppress(FileNotFoundError):
                self._path.unlink()
            self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Journal:
    """This process's journal, in ``RESPONSES_WS["JOURNAL_DIR"]``."""

    def __init__(self) -> None:
        self._file: File | None = None

    def append(self, record: bytes) -> File:
        """Keep a record: from here on it survives this process and, once its file is synced, a loss of power.

        Returns the file that has it, to be told when it is settled.

        Raises:
            OSError: it cannot be kept.
        """
        file = self._file
        if file is None or file.size > _LARGEST_FILE:
            if not app_settings.JOURNAL_DIR:
                raise FileNotFoundError('RESPONSES_WS["JOURNAL_DIR"] is not set')
            if file is not None:
                file.retire()
            file = self._file = File(Path(app_settings.JOURNAL_DIR))
        file.append(record)
        return file

    def close(self) -> None:
        """The process ends. What is not settled is left to whoever replays it."""
        file, self._file = self._file, None
        if file is not None:
            file.release()


journal = Journal()


class Legacy(msgspec.Struct, frozen=True):
    """A file whose owner has died. Its lock is ours while it is looked at."""

    path: Path
    records: list[bytes]
    """In their order; one that was being written when its process died is left out."""

    def delete(self) -> None:
        """All of it is settled."""
        self.path.unlink(missing_ok=True)

    def set_aside(self) -> None:
        """Keep it for a person to look at: nobody replays it again."""
        with suppress(FileNotFoundError):
            self.path.rename(self.path.with_suffix(".broken"))


def legacies(directory: Path) -> Iterator[Legacy]:
    """What dead processes have left there, the oldest first; delete each when its records are settled."""
    import fcntl

    for path in _by_age(directory):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            # Somebody was faster.
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield Legacy(path, _records(path))
        except FileNotFoundError:
            continue
        finally:
            os.close(descriptor)


def _by_age(directory: Path) -> list[Path]:
    ages: list[tuple[int, Path]] = []
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.suffix in (".journal", ".new"):
            with suppress(FileNotFoundError):
                ages.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(ages)]


def _records(path: Path) -> list[bytes]:
    data = path.read_bytes()
    records, at = [], 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        record = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(record) < length or zlib.crc32(record) != checksum:
            break
        records.append(record)
        at += _HEAD.size + length
    return records
