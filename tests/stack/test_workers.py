"""Billing goes on whatever becomes of its workers and of the broker between: each record is posted once."""

import random
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.live import until

from .checker import check
from .rig import Rig, Web
from .test_kills import IN_WORKER

pytestmark = pytest.mark.stack

BILL_THRICE = "from responses_ws.tasks import bill_batch\nfor _ in range(3): bill_batch.delay()"
REAP_THRICE = "from responses_ws.tasks import reap\nfor _ in range(3): reap.delay()"
HEALED_SECONDS = 90.0
"""The oldest record is billed so long after everything is well again, at the latest."""

RECORDS = 3_000
SEED = f"""
from tests.billing.rows import NOON, make_prices, make_project
from responses_ws.models import UsageRecord
make_prices()
project = make_project("seeded")
UsageRecord.objects.bulk_create(
    UsageRecord(
        response_id=f"resp_seed_{{number}}", organization=project.organization, project=project, model="m",
        transport="websocket", status="completed", input_tokens=number, output_tokens=7,
        started_at=NOON, ended_at=NOON, lease_until=NOON,
    )
    for number in range({RECORDS})
)
"""
BILL_IN_FIVES = """
from responses_ws.billing import ledger
print("ready", flush=True)
while ledger.bill_batch(limit=5):
    pass
"""
SEEDED = """
from responses_ws.models import Account, Journal
print(Journal.objects.filter(usage__response_id__startswith="resp_seed_").count(),
      Account.objects.get(kind="receivable", organization__name="seeded").balance_nano)
"""


def test_a_worker_killed_at_any_step_posts_everything_once(rig: Rig, well: Web, figure: Callable[..., None]) -> None:
    for point in sorted(IN_WORKER):
        well.client().turn(f"for {point}", input="!tokens 3 bill me")
        worker = rig.worker("doomed-worker", fault=f"{point}:1:kill")
        rig.run(REAP_THRICE if point.startswith("reap") else BILL_THRICE)
        assert worker.died() == -signal.SIGKILL, f"{point} was not passed:\n{worker.output()}"
    with rig.working(2):
        rig.run(BILL_THRICE)
        until(lambda: not rig.unbilled(), "all to be billed", seconds=30)

    books = check(rig, well, bills=False)

    figure(
        3,
        "Celery worker killed at each step, every task delivered three times, on two workers",
        target="the ledger is what was used, to the token",
        points=len(IN_WORKER),
        records=len(books["records"]),
        differences=0,
    )


def test_billing_killed_at_any_moment_posts_everything_once(rig: Rig) -> None:
    rig.run(SEED)
    moments = random.Random(7)

    for number in range(12):
        log = rig.directory / f"billing-{number}.txt"
        billing = rig.forker.fork(["-c", BILL_IN_FIVES], log=log)
        until(lambda log=log: "ready" in log.read_text(), "billing to begin")
        try:
            billing.wait(moments.uniform(0.005, 0.1))
        except subprocess.TimeoutExpired:
            billing.kill()
            billing.wait(10)
    rig.run("from responses_ws.billing import ledger; ledger.bill_all()")

    expected = sum(number * 2_000 + 7 * 8_000 for number in range(RECORDS))
    assert rig.run(SEEDED).split() == [str(RECORDS), str(expected)]
    assert not rig.books()["differences"]
    rig.forget()


@pytest.mark.parametrize(
    "times", [pytest.param(1, id="once"), pytest.param(20, id="20 times", marks=pytest.mark.chaos)]
)
def test_a_broker_that_forgets_or_restarts_loses_no_bill(
    rig: Rig, well: Web, times: int, figure: Callable[..., None]
) -> None:
    beat = rig.beat()
    with rig.working(pool="prefork") as (worker,):
        for number in range(times):
            well.client().turn(f"before flush {number}", input="!tokens 3 bill me")
            with rig.broker.client() as client:
                client.flushall()
            well.client().turn(f"after flush {number}", input="!tokens 3 bill me")
            rig.broker.kill()
            well.client().turn(f"without a broker {number}", input="!tokens 3 bill me")
            rig.broker.start()
            well.client().turn(f"after restart {number}", input="!tokens 3 bill me")
        began = time.monotonic()
        until(lambda: not rig.unbilled(), "all to be billed", seconds=HEALED_SECONDS)
        healed = time.monotonic() - began
    beat.stop()
    # One may have had no broker to acknowledge a task to, the other none to tell of a task that is due.
    rig.excuse(worker)
    rig.excuse(beat)

    books = check(rig, well, bills=False)

    figure(
        3,
        f"FLUSHALL and restart of the broker, {times} times",
        target="the ledger is what was used; the oldest is billed 90 s after healing",
        records=len(books["records"]),
        differences=0,
        billed_after_seconds=round(healed, 1),
    )
