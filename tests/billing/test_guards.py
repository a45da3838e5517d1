"""What was written stays as it was written: the database says no, whoever asks."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from responses_ws.billing import credits, invoices, ledger
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import (
    Account,
    GrantUse,
    Invoice,
    InvoiceLine,
    Journal,
    Posting,
    Price,
    RatedLine,
    UsageRecord,
)

from .rows import NOON, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
ON_POSTGRESQL = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="only PostgreSQL can")


def refused(write, match):
    """Whether the database refuses it with these words; all else stays as it is."""
    with pytest.raises(IntegrityError, match=match), transaction.atomic():
        write()


@pytest.fixture
def books():
    """One billed record, a grant that paid for it, and a finalised invoice of 0."""
    make_prices()
    owner = make_project().organization
    credits.grant(owner, 2_800_000, kind="paid")  # all of it: nothing is rounded
    make_record(started_at=timezone.now())
    ledger.bill_batch()
    now = timezone.now()
    invoices.finalize(invoices.draft(owner, now - DAY, now + DAY), now + 2 * DAY)


@pytest.mark.parametrize(
    ("model", "change"),
    [
        pytest.param(Journal, {"memo": "x"}, id="memo of an entry"),
        pytest.param(Journal, {"occurred_at": NOON - DAY}, id="day of an entry"),
        pytest.param(Journal, {"usage": None}, id="usage of an entry"),
        pytest.param(Journal, {"idempotency_key": "x"}, id="key of an entry"),
        pytest.param(Posting, {"amount_nano": 1}, id="posting"),
        pytest.param(RatedLine, {"quantity": 1}, id="rated line"),
        pytest.param(RatedLine, {"price": None}, id="price of a rated line"),
        pytest.param(GrantUse, {"amount_nano": 2}, id="use of credit"),
        pytest.param(Invoice, {"amount_nano": 1}, id="amount of an invoice"),
        pytest.param(Invoice, {"total_cents": 2}, id="cents of an invoice"),
        pytest.param(Invoice, {"number": 2}, id="number of an invoice"),
        pytest.param(Invoice, {"billed_to": "x"}, id="address of an invoice"),
        pytest.param(Invoice, {"status": "draft", "number": None}, id="draft again"),
        pytest.param(InvoiceLine, {"amount_nano": 1}, id="line of an invoice"),
        pytest.param(InvoiceLine, {"description": "x"}, id="words of a line of an invoice"),
        pytest.param(Price, {"nano_per_million": 1}, id="amount of a used price"),
        pytest.param(Price, {"model": "x"}, id="model of a used price"),
        pytest.param(Price, {"valid_from": NOON - DAY}, id="start of a used price"),
    ],
)
def test_what_was_written_is_not_changed(books, model, change):
    rows = model.objects.filter(pk=model.objects.order_by("pk").last().pk)

    refused(lambda: rows.update(**change), "never changed|not changed|no draft again")

    assert reconcile() == []


def test_what_may_change_changes(books):
    invoice = Invoice.objects.get()

    Journal.objects.update(invoice=invoice)
    Journal.objects.update(invoice=None)
    Journal.objects.usage().get().save()
    Price.objects.update(valid_to=NOON + DAY)
    for status in ("paid", "void"):
        invoice.status, invoice.memo = status, status
        invoice.save()
    Account.objects.update(currency="USD")

    assert Invoice.objects.get().status == "void"
    assert reconcile() == []


def test_a_finalised_invoice_gets_no_more_lines(books):
    sent = Invoice.objects.get()
    draft = Invoice.objects.create(organization=sent.organization, period_start=NOON, period_end=NOON + DAY)
    line = InvoiceLine.objects.create(invoice=draft, section="usage", amount_nano=7)

    refused(lambda: InvoiceLine.objects.create(invoice=sent, section="usage", amount_nano=1), "not changed")
    refused(lambda: InvoiceLine.objects.filter(pk=line.pk).update(invoice=sent), "not changed")

    InvoiceLine.objects.filter(pk=line.pk).update(amount_nano=8)
    line.delete()
    assert InvoiceLine.objects.count() == sent.lines.count()


@ON_POSTGRESQL
@pytest.mark.parametrize("model", [Journal, Posting, RatedLine, GrantUse, Invoice, InvoiceLine])
def test_nothing_is_deleted_but_by_who_says_so(books, model):
    table = model._meta.db_table

    def delete():
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {table}")

    refused(delete, "never deleted|not deleted|not changed")

    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL responses_ws.may_delete = 'on'")
        cursor.execute(f"DELETE FROM {table}")
    assert not model.objects.exists()
    transaction.set_rollback(True)


@ON_POSTGRESQL
def test_postgresql_commits_no_entry_that_does_not_balance(books):
    """A posting more, and one that is missing, in whatever order they are written."""
    first = Journal.objects.usage().get()
    cash = Account.objects.get(kind="cash")
    receivable = Account.objects.get(kind="receivable")

    def commit(*postings):
        number = Journal.objects.count()
        journal = Journal.objects.create(
            idempotency_key=f"test:{number}", kind="payment", organization=first.organization, occurred_at=NOON
        )
        for account, amount in postings:
            Posting.objects.create(journal=journal, account=account, amount_nano=amount)
        connection.check_constraints()

    refused(lambda: commit((cash, 1)), "do not sum to 0")
    refused(lambda: commit((cash, 2), (receivable, -1)), "do not sum to 0")
    refused(
        lambda: (Posting.objects.create(journal=first, account=cash, amount_nano=1), connection.check_constraints()),
        "do not sum to 0",
    )
    commit((cash, 2), (receivable, -2))
    commit((cash, 0))


def price(start, end=None, **fields):
    fields = {"model": "m", "component": "input", "nano_per_million": 1} | fields
    return Price(valid_from=start, valid_to=end, **fields)


@pytest.mark.parametrize(
    ("start", "end", "fits"),
    [
        pytest.param(NOON - 2 * DAY, NOON, True, id="ends where it starts"),
        pytest.param(NOON + DAY, None, True, id="starts where it ends"),
        pytest.param(NOON - DAY, NOON + timedelta(microseconds=1), False, id="reaches into it"),
        pytest.param(NOON + timedelta(hours=1), NOON + timedelta(hours=2), False, id="inside"),
        pytest.param(NOON - DAY, None, False, id="around"),
        pytest.param(NOON + DAY - timedelta(microseconds=1), None, False, id="starts before it ends"),
    ],
)
@pytest.mark.parametrize("write", ["insert", "bulk", "update"])
def test_two_prices_of_one_thing_do_not_overlap(start, end, fits, write):
    price(NOON, NOON + DAY).save()
    another = price(start, end)

    def save():
        if write == "insert":
            another.save()
        elif write == "bulk":
            Price.objects.bulk_create([another])
        else:
            elsewhere = price(NOON - 900 * DAY, NOON - 800 * DAY)
            elsewhere.save()
            Price.objects.filter(pk=elsewhere.pk).update(valid_from=start, valid_to=end)

    if fits:
        save()
    else:
        refused(save, "end the other first|responses_ws_price_apart")


@pytest.mark.parametrize(
    "other",
    [{"model": "n"}, {"component": "output"}, {"currency": "EUR"}, {"service_tier": "flex"}, {"min_context": 1_000}],
    ids=lambda other: next(iter(other)),
)
def test_prices_of_different_things_may_overlap(other):
    price(NOON).save()
    price(NOON, **other).save()

    assert Price.objects.valid_at(NOON).count() == 2


def test_a_correction_of_a_record_is_no_change_of_the_books():
    make_prices()
    record = make_record(make_project())
    ledger.bill_batch()

    with transaction.atomic():
        ledger.correct(UsageRecord.objects.get(pk=record.pk), {"output_tokens": 50})
    ledger.bill_batch()

    assert Journal.objects.count() == 3
    assert reconcile() == []
