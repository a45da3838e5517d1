"""A record that cannot be billed holds back no other, and is not forgotten."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from responses_ws.billing import ledger
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Journal, UsageRecord
from responses_ws.models.usage import BILLING_TRIES

from .rows import NOON, make_prices, make_record
from .spoiling import delete_entry

pytestmark = pytest.mark.django_db


def make_poison() -> tuple[UsageRecord, Journal]:
    """A record whose entry cannot be written, since its key is taken; and what has taken it."""
    record = make_record()
    taken = f"usage:{record.response_id}:1"
    kind, owner = Journal.Kind.REVERSAL, record.organization
    return record, Journal.objects.create(idempotency_key=taken, kind=kind, organization=owner, occurred_at=NOON)


def test_the_others_are_billed_and_it_is_tried_five_times(caplog: pytest.LogCaptureFixture) -> None:
    make_prices()
    good, (poison, _), also_good = make_record(), make_poison(), make_record()

    billed = [ledger.bill_all() for _ in range(BILLING_TRIES + 2)]
    later = make_record()
    billed.append(ledger.bill_all())

    poison.refresh_from_db()
    assert billed == [2, 0, 0, 0, 0, 0, 0, 1]
    assert (poison.billed_at, poison.billing_tries) == (None, BILLING_TRIES)
    assert poison.billing_error.startswith("IntegrityError: ")
    logged = [line for line in caplog.records if line.getMessage() == f"Usage record {poison.pk} cannot be billed"]
    assert len(logged) == BILLING_TRIES and all(line.exc_info for line in logged)
    assert set(Journal.objects.usage().values_list("usage", flat=True)) == {good.pk, also_good.pk, later.pk}
    assert list(UsageRecord.objects.unbillable()) == [poison]
    assert [difference.kind for difference in reconcile()] == ["unbillable"]


def test_with_its_cause_gone_it_is_billed_as_any_other() -> None:
    make_prices()
    poison, cause = make_poison()
    for _ in range(BILLING_TRIES):
        ledger.bill_all()
    delete_entry(cause)
    UsageRecord.objects.filter(pk=poison.pk).update(billing_tries=0)

    assert ledger.bill_all() == 1

    poison.refresh_from_db()
    assert poison.billed_at is not None and poison.billing_error == ""
    assert reconcile() == []


def test_a_record_is_not_open_for_ever_whoever_renews_it() -> None:
    """A heartbeat kept what nobody would ever close."""
    now = NOON + timedelta(hours=7)
    renewed = now + timedelta(minutes=1)
    old = make_record(status="in_progress", lease_until=renewed)
    young = make_record(status="in_progress", lease_until=renewed, started_at=now - timedelta(hours=5))

    assert ledger.reap(now) == 1

    old.refresh_from_db()
    young.refresh_from_db()
    assert (old.status, old.reason, young.status) == ("abandoned", "too_old", "in_progress")


def test_an_end_that_was_told_replaces_the_reapers_and_what_was_billed_of_it() -> None:
    make_prices()
    record = make_record(status="abandoned", reason="lease_expired", output_tokens=10)
    ledger.bill_all()

    ledger.correct(UsageRecord.objects.get(pk=record.pk), {"status": "completed", "reason": "", "output_tokens": 100})
    ledger.bill_all()
    ledger.bill_all()

    record.refresh_from_db()
    assert (record.status, record.output_tokens) == ("completed", 100)
    assert list(Journal.objects.order_by("id").values_list("idempotency_key", flat=True)) == [
        f"usage:{record.response_id}:1",
        f"reversal:usage:{record.response_id}:1",
        f"usage:{record.response_id}:2",
    ]
    assert Journal.objects.get(kind="reversal").memo == "its client was told another end"
    assert reconcile(timezone.now()) == []


def test_the_office_sees_what_was_given_up_and_tries_again(admin_client: Client) -> None:
    make_prices()
    poison, cause = make_poison()
    billed = make_record()
    for _ in range(BILLING_TRIES):
        ledger.bill_all()
    delete_entry(cause)
    page = reverse("admin:responses_ws_usagerecord_changelist")

    shown = admin_client.get(page, {"billing": "failed"}).content.decode()
    ids = [str(record.pk) for record in (poison, billed)]
    told = admin_client.post(page, {"action": "bill_again", "_selected_action": ids}, follow=True).content.decode()
    ledger.bill_all()

    poison.refresh_from_db()
    assert "1 usage record" in shown
    assert "1 records will be tried again" in told
    assert poison.billed_at is not None
