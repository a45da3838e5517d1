"""Ends a Celery worker that hears nothing although there is something to hear, so that another is started.

After its broker was gone a worker may go on without consuming: it lives, its timers run, and nothing is billed. Every
health check of its process is happy with it.

Source: celery issues 8030, 8091 and 10205.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from celery.signals import task_received, worker_ready, worker_shutdown
from celery.worker import state

from responses_ws.conf import app_settings

logger = logging.getLogger(__name__)

LOOKS = 6
"""How often it looks in the time after which it gives up."""
SECONDS_TO_ASK = 5.0
SECONDS_TO_STOP = 30.0
"""How long a worker that was told to stop may take."""
EXIT_CODE = 1


class Watchdog:
    """Looks now and then whether a worker that has nothing to do should have. ``end`` is called once, if so."""

    def __init__(self, app: Any, queues: Collection[str], *, seconds: float, end: Callable[[], None]) -> None:
        self._app = app
        self._queues = queues
        self._seconds = seconds
        self._end = end
        self._heard_at = time.monotonic()
        self._stopping = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="responses_ws-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def heard(self) -> None:
        """A message has come."""
        self._heard_at = time.monotonic()

    def _run(self) -> None:
        times = 0
        while not self._stopping.wait(self._seconds / LOOKS):
            # Twice, since what waits may have come this moment.
            times = times + 1 if self.is_deaf() else 0
            if times == 2:
                logger.error(
                    "Messages wait in %s, and none has come for %.0f s: this worker ends, to be started again",
                    ", ".join(sorted(self._queues)),
                    self._seconds,
                )
                self._end()
                return

    def is_deaf(self) -> bool:
        """Nothing has come for so long, nothing runs, and something waits."""
        if state.reserved_requests or state.active_requests:
            # With enough to do it takes nothing more; that is bounded by the tasks' time limits.
            self.heard()
            return False
        if time.monotonic() - self._heard_at < self._seconds:
            return False
        return self._is_something_waiting()

    def _is_something_waiting(self) -> bool:
        """Asks on a connection of its own. A broker that does not answer says nothing about the worker."""
        options = {"socket_timeout": SECONDS_TO_ASK, "socket_connect_timeout": SECONDS_TO_ASK}
        try:
            with self._app.connection_for_read(connect_timeout=SECONDS_TO_ASK, transport_options=options) as connection:
                connection.ensure_connection(max_retries=0, timeout=SECONDS_TO_ASK)
                return any(_length(connection, queue) for queue in self._queues)
        except Exception as exc:
            # Every transport has errors of its own.
            logger.warning("The broker cannot be asked what waits: %s", type(exc).__name__)
            return False


def _length(connection: Any, queue: str) -> int:
    try:
        with connection.channel() as channel:
            return int(channel.queue_declare(queue=queue, passive=True).message_count)
    except connection.channel_errors:
        # Redis has no empty lists.
        return 0


def _end_worker() -> None:
    """As a warm shutdown, with an exit code by which whoever has started it knows better."""
    last_resort = threading.Timer(SECONDS_TO_STOP, os._exit, (EXIT_CODE,))
    last_resort.daemon = True
    last_resort.start()
    state.should_stop = EXIT_CODE


def watch_workers() -> None:
    """Watch the worker that this process is, if it becomes one."""
    worker_ready.connect(_watch)
    task_received.connect(_note_message)
    worker_shutdown.connect(_note_its_end)


_watchdog: Watchdog | None = None


def _watch(sender: Any, **_kwargs: object) -> None:
    """Ready, for the first time or again. A worker in a thread shares its process with others, and is left alone."""
    global _watchdog
    seconds = app_settings.DEAF_WORKER_SECONDS
    if _watchdog is not None:
        _watchdog.heard()
    elif seconds and threading.current_thread() is threading.main_thread():
        _watchdog = Watchdog(sender.app, list(sender.app.amqp.queues.consume_from), seconds=seconds, end=_end_worker)
        _watchdog.start()


def _note_message(**_kwargs: object) -> None:
    if _watchdog is not None:
        _watchdog.heard()


def _note_its_end(**_kwargs: object) -> None:
    if _watchdog is not None:
        _watchdog.stop()
