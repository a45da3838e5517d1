"""What came of comparing the books is kept, for all processes to tell."""

import pytest
from django.core.management import call_command
from django.utils import timezone

from responses_ws import tasks
from responses_ws.billing import ledger, reconcile
from responses_ws.models import Account, Reconciliation

from .rows import make_prices, make_record

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("look", [tasks.reconcile, lambda: call_command("responses_ws_reconcile", verbosity=0)])
def test_right_books_are_noted_as_right(look):
    make_prices()
    make_record()
    ledger.bill_all()

    look()

    noted = Reconciliation.objects.newest()
    assert (noted.differences, noted.told) == (0, "")
    assert noted.started_at <= noted.ended_at


@pytest.mark.parametrize("look", [tasks.reconcile, lambda: call_command("responses_ws_reconcile", verbosity=0)])
def test_wrong_books_are_noted_in_words(look):
    make_prices()
    make_record()
    ledger.bill_all()
    Account.objects.filter(kind="receivable").update(balance_nano=1)

    try:
        look()
    except SystemExit:
        pass  # the command's own word for it

    noted = Reconciliation.objects.newest()
    assert noted.differences >= 1
    assert "balance: " in noted.told


def test_as_many_differences_are_kept_in_words_as_anybody_reads():
    found = [reconcile.Difference("kind", str(number), "detail") for number in range(reconcile.TOLD + 1)]
    began = timezone.now()

    noted = reconcile.note(began, found)

    assert (noted.started_at, noted.differences) == (began, reconcile.TOLD + 1)
    assert noted.told.splitlines() == [f"kind: {number}: detail" for number in range(reconcile.TOLD)]


def test_a_year_of_nights_is_kept_and_no_more():
    for _ in range(Reconciliation.KEPT + 3):
        Reconciliation.objects.create(started_at=timezone.now(), differences=0)

    newest = reconcile.note(timezone.now(), [])

    assert Reconciliation.objects.count() == Reconciliation.KEPT
    assert Reconciliation.objects.newest() == newest
