"""A worker that has gone deaf ends by itself, with a code on which it is started again, and its successor bills."""

import pytest

from tests.live import until

from .rig import Rig, Web

pytestmark = pytest.mark.stack

QUEUE = "responses_ws.billing"
# As after some reconnects: it lives, its timers run, and it asks its broker for nothing.
DEAF = f"""
import kombu.transport.redis
from celery.bin.celery import celery
from django.conf import settings
from responses_ws.conf import app_settings
kombu.transport.redis.Channel._brpop_start = lambda *_args, **_options: None
settings.RESPONSES_WS["DEAF_WORKER_SECONDS"] = 1
app_settings.reload(setting="RESPONSES_WS")
celery(["-A", "project", "worker", "-Q", "{QUEUE}", "-P", "solo", "--without-gossip", "--without-mingle"])
"""


def test_a_deaf_worker_makes_room_for_one_that_hears(rig: Rig, well: Web) -> None:
    assert well.client().turn("deaf", input="Hello").is_acknowledged
    log = rig.directory / "deaf.txt"
    deaf = rig.forker.fork(["-c", DEAF], log=log)
    until(rig.queued, "a kick to wait")

    assert deaf.wait(30) == 1, log.read_text()

    assert f"Messages wait in {QUEUE}" in log.read_text()
    with rig.working():
        until(lambda: rig.unbilled() == 0, "its successor to bill")
    rig.forget()
