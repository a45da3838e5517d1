"""A worker that hears nothing of what waits for it is found out, and no other."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.worker import state

from responses_ws.runtime.watchdog import Watchdog


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid.uuid4().hex}"


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = Celery("tests", broker=redis_url, set_as_current=False)
    yield app
    app.close()


def watchdog(app: Celery, queue: str, *, seconds: float = 0) -> Watchdog:
    return Watchdog(app, [queue], seconds=seconds, end=lambda: None)


def send(app: Celery, queue: str) -> None:
    app.send_task("any", queue=queue, ignore_result=True)


def test_a_worker_to_which_nothing_comes_of_what_waits_is_deaf(app: Celery, queue: str) -> None:
    send(app, queue)

    assert watchdog(app, queue).is_deaf()


def test_a_worker_for_which_nothing_waits_is_not(app: Celery, queue: str) -> None:
    send(app, f"{queue}-of-others")

    assert not watchdog(app, queue).is_deaf()


def test_a_worker_that_has_heard_something_lately_is_not(app: Celery, queue: str) -> None:
    send(app, queue)

    assert not watchdog(app, queue, seconds=1000).is_deaf()


def test_a_worker_that_is_busy_is_not(app: Celery, queue: str) -> None:
    class Request:
        id = "running"

    request: Any = Request()
    send(app, queue)
    state.active_requests.add(request)
    try:
        assert not watchdog(app, queue, seconds=0.001).is_deaf()
    finally:
        state.active_requests.discard(request)


def test_of_a_broker_that_does_not_answer_nothing_is_concluded(queue: str) -> None:
    app = Celery("tests", broker="redis://127.0.0.1:1/0", set_as_current=False)

    assert not watchdog(app, queue).is_deaf()
