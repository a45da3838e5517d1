"""Whatever happens to usage, credit and invoices: what is asked for is what is owed, to the nano unit."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from responses_ws.billing import credits, invoices, ledger
from responses_ws.billing.invoices import InvoiceError, month_of
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Account, CreditGrant, Invoice, InvoiceLine, Journal, Posting, UsageRecord

from .rows import NOON, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _invoicing(settings):
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICES": "all"}


FIRST, _ = month_of(NOON)
CENT = 10_000_000
tokens = st.integers(0, 40_000)
pick = st.integers(0, 99)
month = st.integers(0, 3)
TURN = st.tuples(st.just("turn"), month, tokens)
OPERATIONS = st.one_of(
    TURN,
    TURN,
    st.tuples(st.just("grant"), st.integers(1, 3 * CENT), st.sampled_from(["paid", "promotional"])),
    st.tuples(st.just("reverse"), pick),
    st.tuples(st.just("correct"), pick, tokens),
    st.tuples(st.just("expire"), pick),
    st.tuples(st.just("draft"), month),
    st.tuples(st.just("finalize"), month),
    st.tuples(st.just("void"), pick),
    st.tuples(st.just("pay"), pick),
    st.tuples(st.just("credit"), pick, st.integers(1, 50)),
)


def start_of(number):
    start = FIRST
    for _ in range(number):
        _, start = month_of(start)
    return start


def one_of(rows, number):
    found = list(rows.order_by("pk"))
    return found[number % len(found)] if found else None


def do(name, *given):
    if name == "turn":
        make_record(started_at=start_of(given[0]) + timedelta(hours=1), input_tokens=given[1], output_tokens=1)
        ledger.bill_all()
    elif name == "grant":
        credits.grant(make_project().organization, given[0], kind=given[1])
    elif name == "expire" and (grant := one_of(CreditGrant.objects.filter(expires_at=None), given[0])):
        CreditGrant.objects.filter(pk=grant.pk).update(expires_at=start_of(2))
        credits.expire(start_of(4))
    elif name == "reverse" and (entry := one_of(Journal.objects.standing(), given[0])):
        ledger.reverse(entry, "a test")
    elif name == "correct" and (record := one_of(UsageRecord.objects.billed(), given[0])):
        ledger.correct(record, {"input_tokens": given[1]})
        ledger.bill_all()
    elif name == "draft":
        invoices.make_drafts(start_of(given[0] + 1))
    elif name == "finalize":
        invoices.make_drafts(start_of(given[0] + 1))
        for one in Invoice.objects.drafts()[:2]:
            invoices.finalize(one, start_of(6))
    elif given and (one := one_of(Invoice.objects.numbered(), given[0])):
        action = {
            "void": lambda: invoices.void(one),
            "pay": lambda: invoices.pay(one),
            "credit": lambda: invoices.credit(one, given[1]),
        }.get(name)
        try:
            if action:
                action()
        except InvoiceError:
            pass


def total(rows, field="amount_nano"):
    return rows.aggregate(total=Sum(field))["total"] or 0


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=st.lists(OPERATIONS, min_size=5, max_size=25))
def test_cents_and_rounding_are_the_nano_units_of_the_ledger(history):
    with transaction.atomic():
        make_prices()

        for operation in history:
            do(*operation)

        claiming = [one for one in Invoice.objects.all() if one.claims]
        claimed = total(Posting.objects.charges().filter(account__kind="receivable").exclude(journal__invoice=None))
        rounded = total(InvoiceLine.objects.filter(section="rounding", invoice__in=claiming))
        assert sum(one.total_cents for one in claiming) * CENT == claimed + rounded
        assert sum(one.amount_nano for one in claiming) == claimed
        waiting = total(Posting.objects.charges().filter(account__kind="receivable", journal__invoice=None))
        still_open = sum(invoices.open_cents(one) for one in claiming if one.status == "finalized")
        paid_too_much = sum(
            note.total_cents
            for note in Invoice.objects.filter(kind="credit_note", status="finalized")
            if note.corrects.status == "paid" and note.finalized_at > note.corrects.paid_at
        )
        owed = total(Account.objects.filter(kind="receivable"), "balance_nano")
        assert owed == waiting + (still_open + paid_too_much) * CENT
        assert reconcile() == []
        transaction.set_rollback(True)
