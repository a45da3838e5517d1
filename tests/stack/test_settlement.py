"""Whoever makes an invoice, voids one or writes off credit is killed at each step: all of it or nothing."""

import json
import signal
from collections.abc import Callable

import pytest

from .rig import Rig
from .test_kills import IN_OFFICE

pytestmark = pytest.mark.stack

PREPARE = """
from tests.billing.rows import NOON, make_prices, make_project, make_record
from responses_ws.billing import credits, ledger
from responses_ws.models import Price
Price.objects.filter(model="settled").exists() or make_prices("settled")
project = make_project("settled")
for _ in range(10):
    make_record(project, model="settled", started_at=NOON.replace(month=3))
ledger.bill_all()
"""
DOOMED = """
from datetime import timedelta
from django.utils import timezone
from responses_ws.billing import credits, invoices
from responses_ws.models import CreditGrant, Invoice, Organization
from responses_ws.runtime import faults
from tests.billing.rows import NOON
start, end = invoices.month_of(NOON.replace(month=3))
owner = Organization.objects.get(name="settled")
mine = Invoice.objects.filter(organization=owner).order_by("pk")
draft = mine.filter(status="draft").first() or invoices.draft(owner, start, end)
point = {point!r}
if point == "invoice.released":
    draft and invoices.finalize(draft)
elif point == "expiry.written":
    grant = credits.grant(owner, 10**9, kind="paid")
    CreditGrant.objects.filter(pk=grant.pk).update(expires_at=end)
faults.arm(point + ":1:kill")
if point == "invoice.released":
    invoices.void(mine.filter(status="finalized").last())
elif point == "expiry.written":
    credits.expire()
else:
    invoices.finalize(draft)
"""
SETTLE = """
import json
from responses_ws.billing import credits, invoices
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import CreditGrant, Invoice, Journal, Organization
owner = Organization.objects.get(name="settled")
mine = Invoice.objects.filter(organization=owner)
before = [mine.filter(status=status).count() for status in ("draft", "finalized")]
for one in mine.filter(status="draft"):
    invoices.finalize(one)
for one in mine.filter(status="finalized"):
    invoices.void(one)
credits.expire()
print(json.dumps({
    "before": before,
    "numbers": list(mine.exclude(number=None).order_by("number").values_list("number", flat=True)),
    "left": sum(CreditGrant.objects.values_list("remaining_nano", flat=True)),
    "differences": [str(one) for one in reconcile() if one.kind in ("invoice", "numbers", "credit", "prepaid")],
}))
"""


def test_settling_killed_at_any_step_is_done_or_not_begun(rig: Rig, figure: Callable[..., None]) -> None:
    rig.run(PREPARE)
    for point in sorted(IN_OFFICE):
        doomed = rig.forker.fork(["-c", DOOMED.format(point=point)], log=rig.directory / f"{point}.txt")
        assert doomed.wait(60) == -signal.SIGKILL, f"{point}: {(rig.directory / f'{point}.txt').read_text()}"

        found = json.loads(rig.run(SETTLE))

        is_done = point in ("invoice.committed", "invoice.released")
        assert found["before"] == ([0, 1] if is_done else [1, 0]), point
        assert found["numbers"] == list(range(1, len(found["numbers"]) + 1)), point
        assert found["left"] == 0 and found["differences"] == [], point
    rig.forget()

    figure(1, "kill -9 of who settles, at each step", target="all or nothing", points=len(IN_OFFICE), differences=0)
