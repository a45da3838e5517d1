"""Billing goes on whatever becomes of its workers and of the broker between: each record is posted once."""

import signal
from collections.abc import Callable

import pytest

from tests.live import until

from .checker import check
from .rig import Rig, Web
from .test_kills import IN_WORKER

pytestmark = pytest.mark.stack

BILL_THRICE = "from responses_ws.tasks import bill_batch\nfor _ in range(3): bill_batch.delay()"
REAP_THRICE = "from responses_ws.tasks import reap\nfor _ in range(3): reap.delay()"


def test_a_worker_killed_at_any_step_posts_everything_once(rig: Rig, well: Web, figure: Callable[..., None]) -> None:
    for point in sorted(IN_WORKER):
        well.client().turn(f"for {point}", input="!tokens 3 bill me")
        worker = rig.worker("doomed-worker", fault=f"{point}:1:kill")
        rig.run(REAP_THRICE if point.startswith("reap") else BILL_THRICE)
        assert worker.died() == -signal.SIGKILL, f"{point} was not passed:\n{worker.output()}"
    workers = [rig.worker(f"worker{number}") for number in (1, 2)]
    rig.run(BILL_THRICE)
    until(lambda: not rig.unbilled(), "all to be billed", seconds=30)

    books = check(rig, well, bills=False)

    for worker in workers:
        worker.stop()
    figure(
        3,
        "Celery worker killed at each step, every task delivered three times, on two workers",
        target="the ledger is what was used, to the token",
        points=len(IN_WORKER),
        records=len(books["records"]),
        differences=0,
    )
