import threading
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish

from responses_ws.runtime import dispatcher as module
from responses_ws.runtime.dispatcher import Dispatcher


@pytest.fixture
def broker(tmp_path: Any) -> Any:
    """A broker outside of this process's memory: folders."""
    (tmp_path / "in").mkdir()
    app = Celery("tests", broker="filesystem://", set_as_current=False)
    folders = {"data_folder_in": tmp_path / "in", "data_folder_out": tmp_path / "in"}
    app.conf.broker_transport_options = {**folders, "control_folder": tmp_path / "control"}
    previous = module.current_app._get_current_object()
    app.set_current()
    yield tmp_path / "in"
    previous.set_current()


@pytest.fixture
def kicked() -> Any:
    """Is set when a task is published."""
    published = threading.Event()

    def note(sender: str, **_kwargs: Any) -> None:
        if sender == "responses_ws.bill_batch":
            published.set()

    before_task_publish.connect(note)
    yield published
    before_task_publish.disconnect(note)


def test_a_kick_is_published(broker: Any, kicked: threading.Event) -> None:
    dispatcher = Dispatcher()

    dispatcher.kick()

    assert kicked.wait(10)
    dispatcher.stop()


def test_nothing_is_left_in_a_broker_that_nobody_reads(kicked: threading.Event) -> None:
    dispatcher = Dispatcher()

    dispatcher.kick()

    assert dispatcher._thread is None and not kicked.is_set()
