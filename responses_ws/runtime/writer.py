"""The group writer: one thread, one connection, one commit for everything that is waiting."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
from django.db import Error, OperationalError, connection, transaction

from responses_ws.conf import app_settings

from .dbpool import unavailable
from .sql import UNAVAILABLE

logger = logging.getLogger(__name__)

R = TypeVar("R")

PATIENCE_SECONDS = 5.0
"""How long a write waits for a database that is down, unless it says otherwise."""
LINGER_SECONDS = 0.05
"""How long a write that nobody waits for lets others join its commit."""
_TRIES = 3
"""Of one write in which the database gives up, as in a deadlock, though it is there."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


class Stalled(OperationalError):
    """The database neither takes a write nor refuses it. It may still come to pass."""


async def durable(written: "Future[R]") -> R:
    """The result of a write, when it is durable.

    Who gives up waiting, or is cancelled, leaves the write where it is.

    Raises:
        Stalled: it has not come in ``LIMITS["database_seconds"]`` beyond a write's patience.
    """
    if not written.done():
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        seconds = PATIENCE_SECONDS + app_settings.limits.database_seconds
        overdue = loop.call_later(seconds, _tell, told)
        written.add_done_callback(lambda _written: None if loop.is_closed() else loop.call_soon_threadsafe(_tell, told))
        try:
            await told
        finally:
            overdue.cancel()
        if not written.done():
            raise Stalled(f"the database has not answered for {seconds:g} s")
    return written.result()


def _tell(told: "asyncio.Future[None]") -> None:
    if not told.done():
        told.set_result(None)


class _Entry(msgspec.Struct, eq=False):
    write: Callable[[], Any]
    future: "Future[Any]"
    gives_up_at: float
    """By ``time.monotonic``."""
    tries: int = 0
    is_begun: bool = False


class GroupWriter:
    """Runs small write functions, many per transaction, in the order of their submission.

    What has been submitted while one commit ran is the next batch; who waits waits for no timer. A future is resolved
    only after its commit, so a resolved future means *durable*: it survives kill -9 of any process. When a batch fails,
    its functions are tried again one by one, so that one bad write does not take others with it. While the database is
    down all of them wait, each for as long as its patience lasts. Functions must therefore be repeatable after a
    rollback; and after a commit, where the connection was lost before the database could say so.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._queue: list[_Entry] = []
        self._due_at = math.inf
        """When the queue is to be written, by ``time.monotonic``."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def submit(
        self, write: Callable[[], R], *, patience: float = PATIENCE_SECONDS, lingers: bool = False
    ) -> "Future[R]":
        """Queue a write; returns at once. Safe from any thread.

        Args:
            patience: seconds to wait for a database that is down; infinite: until this process ends.
            lingers: nobody waits for it: it is written within `LINGER_SECONDS`, with what comes meanwhile.
        """
        future: Future[R] = Future()
        now = time.monotonic()
        with self._lock:
            if self._thread is None:
                self._stopping.clear()
                self._thread = threading.Thread(target=self._run, name="responses_ws-writer", daemon=True)
                self._thread.start()
            self._queue.append(_Entry(write, future, now + patience))
            due_at = now + LINGER_SECONDS if lingers else now
            if due_at < self._due_at:
                self._due_at = due_at
                self._lock.notify()
        return future

    @property
    def waiting(self) -> int:
        """Writes that no commit has begun with."""
        return len(self._queue)

    async def write(self, write: Callable[[], R]) -> R:
        """Queue a write and wait until it is durable.

        Raises:
            Overloaded: the database is down for longer than a write has patience, or does not answer.
        """
        try:
            return await durable(self.submit(write))
        except UNAVAILABLE as exc:
            raise unavailable(type(exc).__name__) from exc

    def stop(self) -> None:
        """Write what is waiting, if the database takes it; end the thread, close its connection."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopping.set()
            self._lock.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        pause = _SHORTEST_PAUSE
        is_down = False
        while True:
            with self._lock:
                while (seconds := self._due_at - time.monotonic()) > 0 and not self._stopping.is_set():
                    self._lock.wait(None if seconds == math.inf else seconds)
                batch, self._queue = self._queue, []
                self._due_at = math.inf
            if not batch:
                break
            for entry in batch:
                if not entry.is_begun:
                    # From here on nobody can cancel it, which would make setting its result an error of this thread.
                    entry.future.set_running_or_notify_cancel()
                    entry.is_begun = True
            held = self._commit(batch)
            del batch
            if held and not is_down:
                logger.warning("The database takes no writes; %d are waiting", len(held))
            elif is_down and not held:
                logger.warning("The database takes writes again")
            is_down = bool(held)
            if not held:
                pause = _SHORTEST_PAUSE
                continue
            with self._lock:
                # In front: order is part of what is written.
                self._queue[:0] = held
                self._due_at = 0.0
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        connection.close()

    def _commit(self, batch: list[_Entry]) -> list[_Entry]:
        """Write these in one transaction, or else one by one. Returns those to be tried again."""
        results: list[Any] = []
        has_begun = False
        try:
            with transaction.atomic():
                has_begun = True
                for entry in batch:
                    results.append(entry.write())
        except Exception as exc:
            is_down = isinstance(exc, UNAVAILABLE) and not (has_begun and _is_connected())
            # A connection that the server has dropped is replaced by the next batch.
            connection.close()
            if is_down:
                return self._patient(batch, exc)
            if len(batch) > 1:
                return [held for entry in batch for held in self._commit([entry])]
            batch[0].tries += 1
            if isinstance(exc, UNAVAILABLE) and batch[0].tries < _TRIES:
                return self._patient(batch, exc)
            if not isinstance(exc, Error):
                logger.exception("A queued write failed")
            _fail(batch[0], exc)
            return []
        for entry, result in zip(batch, results, strict=True):
            if not entry.future.cancelled():
                entry.future.set_result(result)
        return []

    def _patient(self, batch: list[_Entry], exc: Exception) -> list[_Entry]:
        """Those that wait on; the others fail."""
        now = float("inf") if self._stopping.is_set() else time.monotonic()
        for entry in batch:
            if entry.gives_up_at <= now:
                _fail(entry, exc)
        return [entry for entry in batch if entry.gives_up_at > now]


def _fail(entry: _Entry, exc: Exception) -> None:
    if not entry.future.cancelled():
        entry.future.set_exception(exc)


def _is_connected() -> bool:
    try:
        return connection.connection is not None and connection.is_usable()
    except Exception:
        return False


writer = GroupWriter()
