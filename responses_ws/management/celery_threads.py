"""A Celery worker and its beat as threads of this process, for the demo's ``memory://`` broker.

Not eager mode: an eager task inside a coroutine may not touch the database. What is lost at exit is billed at the next
start, because the tables say what is due.
"""

import threading
from types import TracebackType

import celery
from celery import beat
from celery.worker import WorkController, state

STOP_SECONDS = 10.0
# How often the worker's loops look up: at Celery's second each, Ctrl-C took four.
LOOK_SECONDS = 0.1


class CeleryThreads:
    """Context manager: the worker and the beat run inside it.

    ``queues`` are those it reads. One pair per process: Celery keeps the worker's state in globals.
    """

    def __init__(self, app: celery.Celery, *, queues: list[str]) -> None:
        app.conf.broker_transport_options = {"polling_interval": LOOK_SECONDS}
        # The base class of Celery's worker: without banner, signal handlers and a logging setup of its own.
        self.app = app
        self.worker = WorkController(app=app, pool="solo", concurrency=1, queues=queues, timer_precision=LOOK_SECONDS)
        # The default scheduler keeps its times in a file; nothing here needs to outlive the process.
        self.beat = beat.EmbeddedService(app, thread=True, scheduler_cls=beat.Scheduler)
        self.thread = threading.Thread(target=self.worker.start, name="celery-worker", daemon=True)

    def __enter__(self) -> "CeleryThreads":
        state.should_stop = None
        self.thread.start()
        self.beat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.beat.service.stop()
        # The worker's loop looks at this between two messages, so give it one: what has just ended gets billed.
        state.should_stop = 0
        self.app.send_task("responses_ws.bill_batch")
        # A daemon thread: a task that is stuck does not hold the exit.
        self.thread.join(STOP_SECONDS)
