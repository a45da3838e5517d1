"""The demo's invented usage: as real usage is billed, and the same every time."""

import pytest

from responses_ws.billing.reconcile import reconcile
from responses_ws.management import seeding
from responses_ws.models import Flag, Reconciliation, UsageRecord, UsageRollup
from tests.billing.rows import NOON

pytestmark = pytest.mark.django_db


def test_it_is_billed_as_all_usage_is_and_made_once(monkeypatch):
    monkeypatch.setattr(seeding, "DAYS", 10)

    made = seeding.seed(NOON)

    assert made == UsageRecord.objects.billed().count() > 300
    assert UsageRollup.objects.days().totals()["responses"] == made
    assert reconcile() == []
    assert Reconciliation.objects.newest().differences == 0
    assert Flag.objects.open().count() == 3
    assert seeding.seed(NOON) == 0


def test_it_is_the_same_every_time(monkeypatch):
    monkeypatch.setattr(seeding, "DAYS", 3)
    key = seeding._key("Northwind", "coding agents", "ci")

    first, again = (
        [(record.started_at, record.model, record.input_tokens) for record in seeding._records(key, 5, 0.5, NOON)]
        for _ in range(2)
    )

    assert first == again and len(first) > 5
