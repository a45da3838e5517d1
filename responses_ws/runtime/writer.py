"""The group writer: one thread, one connection, one commit for everything that is waiting."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from django.db import Error, connection, transaction

logger = logging.getLogger(__name__)

R = TypeVar("R")


class GroupWriter:
    """Runs small write functions, many per transaction.

    No timer: what has been submitted while one commit ran is the next batch. A future is resolved only after its
    commit, so a resolved future means *durable*: it survives kill -9 of any process. When a batch fails, its
    functions are tried again one by one, so that one bad write does not take others with it. Functions must
    therefore be repeatable after a rollback.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._queue: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._thread: threading.Thread | None = None
        self._stopping = False

    def submit(self, write: Callable[[], R]) -> "Future[R]":
        """Queue a write; returns at once. Safe from any thread."""
        future: Future[R] = Future()
        with self._lock:
            if self._thread is None:
                self._stopping = False
                self._thread = threading.Thread(target=self._run, name="responses_ws-writer", daemon=True)
                self._thread.start()
            self._queue.append((write, future))
            self._lock.notify()
        return future

    @property
    def waiting(self) -> int:
        """Writes that no commit has begun with."""
        return len(self._queue)

    async def write(self, write: Callable[[], R]) -> R:
        """Queue a write and wait until it is durable."""
        return await asyncio.wrap_future(self.submit(write))

    def stop(self) -> None:
        """Write what is waiting, end the thread, close its connection."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopping = True
            self._lock.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._stopping:
                    self._lock.wait()
                batch, self._queue = self._queue, []
                if not batch:
                    break
            for _write, future in batch:
                # From here on nobody can cancel it, which would make setting its result an error of this thread.
                future.set_running_or_notify_cancel()
            if not self._commit(batch) and len(batch) > 1:
                for entry in batch:
                    self._commit([entry], last_try=True)
            del batch
        connection.close()

    def _commit(self, batch: list[tuple[Callable[[], Any], "Future[Any]"]], *, last_try: bool = False) -> bool:
        results: list[Any] = []
        try:
            with transaction.atomic():
                for write, _future in batch:
                    results.append(write())
        except Exception as exc:
            # A connection that the server has dropped is replaced by the next batch.
            connection.close()
            if len(batch) > 1 and not last_try:
                return False
            if not isinstance(exc, Error):
                logger.exception("A queued write failed")
            if not batch[0][1].cancelled():
                batch[0][1].set_exception(exc)
            return True
        for (_write, future), result in zip(batch, results, strict=True):
            if not future.cancelled():
                future.set_result(result)
        return True


writer = GroupWriter()
