"""Celery's door opens: a real worker takes the tasks by name and bills."""

import contextlib
import time

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from django.db import connections

from responses_ws import tasks
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Delivery, Journal, UsageRecord

from .receivers import Receiver
from .rows import NOON, make_prices, make_record

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def celery_app():
    """An app on a broker in memory, with the settings of the demo project that matter."""
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
        task_routes={"responses_ws.*": {"queue": "responses_ws.billing"}},
    )
    yield app
    app.close()


@contextlib.contextmanager
def worker(app, *, until):
    """A worker thread that runs until ``until()`` is true of what its tasks did, for at most 30 seconds."""
    with start_worker(app, perform_ping_check=False, queues=["responses_ws.billing"], shutdown_timeout=30):
        yield
        until()


def wait_for(question):
    """Ask until the answer is true. The deadline is for a broken worker, not for a slow one."""
    ends_at = time.monotonic() + 30
    while not question():
        assert time.monotonic() < ends_at, "the worker did not do it within 30 seconds"
        time.sleep(0.01)


def test_a_worker_bills_by_name_however_often_it_is_told(celery_app):
    make_prices()
    for _ in range(3):
        make_record()

    with worker(celery_app, until=lambda: wait_for(lambda: not UsageRecord.objects.unbilled().exists())):
        for _ in range(3):
            celery_app.send_task("responses_ws.bill_batch")

    assert Journal.objects.count() == 3
    assert reconcile() == []


def test_a_worker_reaps_by_name(celery_app):
    make_record(status="in_progress", lease_until=NOON.replace(year=2020))

    with worker(celery_app, until=lambda: wait_for(lambda: not UsageRecord.objects.in_progress().exists())):
        celery_app.send_task("responses_ws.reap")

    assert UsageRecord.objects.get().status == "abandoned"


def test_a_worker_tells_sinks_by_name_however_often_it_is_told(celery_app, settings):
    make_prices()
    with Receiver() as receiver:
        sink = {"SINK": "responses_ws.billing.sinks.webhook.Webhook", "URL": f"{receiver.origin}/hook"}
        changed = {"BILLING_SINKS": {"books": sink}, "WEBHOOK_ORIGINS": [receiver.origin]}
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, **changed}
        records = [make_record() for _ in range(3)]
        tasks.bill_batch()

        with worker(celery_app, until=lambda: wait_for(lambda: not Delivery.objects.unsent().exists())):
            for _ in range(3):
                celery_app.send_task("responses_ws.deliver")

    assert sorted(receiver.ids) == sorted(f"usage:{record.response_id}:1" for record in records)


@pytest.mark.parametrize("task", [tasks.bill_batch, tasks.deliver, tasks.reap], ids=lambda task: task.name)
def test_tasks_are_acknowledged_after_the_work_and_keep_no_result(task):
    assert (task.acks_late, task.reject_on_worker_lost, task.ignore_result) == (True, True, True)


def test_tasks_run_in_the_calling_thread_too():
    make_record()

    tasks.bill_batch()
    tasks.reap()

    assert Journal.objects.count() == 1
    connections.close_all()
