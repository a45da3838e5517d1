"""Kicks: tell Celery that there is something to bill, without ever waiting for the broker.

Publishing blocks, so it happens in a thread of its own. A kick carries nothing: losing or doubling one changes
nothing, because the billing task looks for unbilled rows itself and beat calls it every few seconds anyway.
"""

import logging
import threading

from celery import Celery, current_app
from celery.signals import worker_ready, worker_shutdown

from responses_ws.conf import app_settings

from .faults import faultpoint

logger = logging.getLogger(__name__)

_MIN_SECONDS_BETWEEN = 0.05
"""More kicks than twenty a second would only find what the last one found."""


class Dispatcher:
    """Publishes one message for any number of kicks that came meanwhile."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._app: Celery | None = None
        """Whose settings have been looked at."""
        self._is_local = False

    def kick(self) -> None:
        """There is work for ``responses_ws.bill_batch``. Returns at once; safe from any thread."""
        if self._wanted.is_set() or not self._is_heard():
            return
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="responses_ws-dispatcher", daemon=True)
            self._thread.start()

    def _is_heard(self) -> bool:
        """A broker in this process's own memory keeps every message until a worker of this process reads it."""
        app = current_app._get_current_object()
        if app is not self._app:
            self._app, self._is_local = app, str(app.conf.broker_url or "").startswith("memory:")
        return _worker_is_here.is_set() or not self._is_local

    def stop(self) -> None:
        self._stopping.set()
        self._wanted.set()

    def _run(self) -> None:
        was_down = False
        while True:
            self._wanted.wait()
            if self._stopping.is_set():
                return
            self._wanted.clear()
            try:
                queue = app_settings.BILLING_QUEUE
                faultpoint("kick.before")
                current_app.send_task("responses_ws.bill_batch", queue=queue, retry=False, ignore_result=True)
                faultpoint("kick.after")
                was_down = False
            except Exception as exc:
                if not was_down:
                    logger.warning("The broker cannot be reached, billing waits for beat: %s", type(exc).__name__)
                was_down = True
            self._stopping.wait(_MIN_SECONDS_BETWEEN)


_worker_is_here = threading.Event()


@worker_ready.connect
def _note_worker(**_kwargs: object) -> None:
    _worker_is_here.set()


@worker_shutdown.connect
def _note_its_end(**_kwargs: object) -> None:
    _worker_is_here.clear()


dispatcher = Dispatcher()
