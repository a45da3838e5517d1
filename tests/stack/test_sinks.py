"""Whoever tells other billing systems is killed at each step: they hear of every entry, and know what came twice."""

import json
import signal
from collections.abc import Callable

import pytest

from tests.billing.receivers import Receiver

from .rig import Rig
from .test_kills import AT_SINKS

pytestmark = pytest.mark.stack

RECORDS = 12
PREPARE = f"""
import uuid
from responses_ws.models import Price
from tests.billing.rows import make_prices, make_project, make_record
Price.objects.filter(model="sunk").exists() or make_prices("sunk")
for _ in range({RECORDS}):
    make_record(make_project("sunk"), model="sunk", response_id=f"resp_{{uuid.uuid4().hex}}")
"""
CONFIGURE = """
from django.conf import settings
from responses_ws import tasks
from responses_ws.conf import app_settings
from responses_ws.models import Delivery
from responses_ws.runtime import faults
sink = {{"SINK": "responses_ws.billing.sinks.webhook.Webhook", "URL": "{origin}/hook"}}
settings.RESPONSES_WS |= {{"BILLING_SINKS": {{"books": sink}}, "WEBHOOK_ORIGINS": ["{origin}"]}}
app_settings.reload(setting="RESPONSES_WS")
"""
DOOMED = """
faults.arm("{point}:{number}:kill")
tasks.bill_batch()
tasks.deliver()
"""
AGAIN = """
from django.utils import timezone
# Two minutes later.
Delivery.objects.waiting().update(due_at=timezone.now())
tasks.bill_batch()
tasks.deliver()
tasks.deliver()
"""
FOUND = """
import json
from responses_ws.models import Journal, Posting
entries = Journal.objects.filter(usage__model="sunk")
earned = Posting.objects.filter(journal__in=entries, account__kind="revenue")
print(json.dumps({
    "entries": sorted(entries.values_list("idempotency_key", flat=True)),
    "earned": -sum(earned.values_list("amount_nano", flat=True)),
    "unsent": Delivery.objects.unsent().count(),
}))
"""


def test_sinks_hear_of_every_entry_whenever_who_tells_them_is_killed(rig: Rig, figure: Callable[..., None]) -> None:
    points = [(point, 1) for point in (*sorted(AT_SINKS), "bill.marked")]
    points.append(("deliver.told", RECORDS // 2))
    with Receiver() as receiver:
        configure = CONFIGURE.format(origin=receiver.origin)
        for point, number in points:
            rig.run(PREPARE)
            log = rig.directory / f"{point}.{number}.txt"
            code = configure + DOOMED.format(point=point, number=number)
            doomed = rig.forker.fork(["-c", code], log=log)
            assert doomed.wait(60) == -signal.SIGKILL, f"{point}: {log.read_text()}"
            rig.run(configure + AGAIN)
        found = json.loads(rig.run(configure + FOUND))
    rig.forget()

    counted = {name: told for name, told in receiver.counted().items() if told["model"] == "sunk"}
    assert sorted(counted) == found["entries"]
    assert len(counted) == RECORDS * len(points)
    assert sum(one["amount_nano"] for one in counted.values()) == found["earned"] > 0
    assert found["unsent"] == 0
    # What was told and not noted came again, and nothing else.
    came_again = len(receiver.ids) - len(set(receiver.ids))
    assert 0 < came_again < 3 * RECORDS

    figure(
        1,
        "kill -9 of who tells other billing systems, at each step",
        target="every entry heard, each counted once",
        points=len(points),
        lost_or_double=0,
        came_again=came_again,
    )
