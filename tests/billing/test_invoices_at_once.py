"""Several who make invoices at once: numbers have no gaps, and no entry is on two."""

from datetime import timedelta

import pytest
from django.db import OperationalError

from responses_ws.billing import invoices, ledger
from responses_ws.billing.invoices import InvoiceError, month_of
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Invoice, Journal

from .rows import NOON, make_prices, make_project, make_record
from .test_concurrency import in_threads

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("acme", "globex", "initech")
LATER = NOON + timedelta(days=90)


@pytest.fixture(autouse=True)
def _three_months(settings, transactional_db):
    """Of three organisations, eight turns in each of three months."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICES": "all", "INVOICE_GRACE_HOURS": 0}
    make_prices()
    for name in NAMES:
        for days in (-31, 0, 31):
            for _ in range(8):
                make_record(make_project(name), started_at=NOON + timedelta(days=days))
    ledger.bill_all()


def patiently(function):
    """SQLite has one writer: who comes second tries again, as the next tick does."""
    while True:
        try:
            return function()
        except OperationalError:
            continue
        except InvoiceError as exc:
            return str(exc)


def numbers():
    rows = Invoice.objects.filter(kind="invoice").order_by("organization", "number")
    return list(rows.values_list("organization__name", "number"))


def test_finalisers_at_once_leave_no_gap_and_claim_nothing_twice():
    in_threads(3, lambda: patiently(lambda: invoices.make_drafts(LATER)))
    in_threads(4, lambda: patiently(lambda: invoices.finalize_due(LATER)))
    invoices.finalize_due(LATER)

    assert numbers() == [(name, number) for name in NAMES for number in (1, 2, 3)]
    assert not Journal.objects.rated().filter(invoice=None).exists()
    assert reconcile() == []


def test_of_two_who_finalise_one_draft_one_does():
    invoices.draft(make_project().organization, *month_of(NOON - timedelta(days=31)))
    one = Invoice.objects.get()

    said = in_threads(4, lambda: patiently(lambda: invoices.finalize(Invoice.objects.get(pk=one.pk), LATER)))

    assert sorted(said, key=str).count(None) == 1
    assert Invoice.objects.get().number == 1


def test_credit_notes_at_once_give_back_no_more_than_was_asked_for():
    make_record(input_tokens=2_000_000, started_at=NOON - timedelta(days=31))  # $4
    ledger.bill_all()
    one = invoices.draft(make_project().organization, *month_of(NOON - timedelta(days=31)))
    invoices.finalize(one, LATER)

    said = in_threads(6, lambda: patiently(lambda: invoices.credit(Invoice.objects.get(pk=one.pk), 100) and None))

    notes = Invoice.objects.filter(kind="credit_note").order_by("number")
    assert [note.number for note in notes] == [1, 2, 3, 4]
    assert said.count(None) == 4
    assert reconcile() == []


def test_usage_that_is_billed_meanwhile_is_on_this_invoice_or_the_next():
    organization = make_project().organization
    one = invoices.draft(organization, *month_of(NOON - timedelta(days=31)))
    for _ in range(40):
        make_record(started_at=NOON - timedelta(days=31))
    steps = iter([lambda: ledger.bill_all(limit=3), lambda: invoices.finalize(one, LATER)])

    in_threads(2, lambda: patiently(next(steps)))
    ledger.bill_all()
    following = invoices.draft(organization, *month_of(NOON))
    invoices.finalize(following, LATER)

    on_each = [Journal.objects.rated().filter(invoice=each).count() for each in (one, following)]
    assert sum(on_each) == 8 + 40 + 8
    assert sum(each.amount_nano for each in (one, following)) == (8 + 40 + 8) * 2_800_000
    assert reconcile() == []
