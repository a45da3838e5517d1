"""A difference between the records and the books is found, named and loud."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db.models import F
from django.utils import timezone

from responses_ws.billing import credits, invoices, ledger
from responses_ws.billing.rebuilding import rebuild
from responses_ws.billing.reconcile import Difference, reconcile
from responses_ws.models import (
    Account,
    CreditGrant,
    GrantUse,
    Invoice,
    InvoiceLine,
    InvoiceSeries,
    Journal,
    LatencyRollup,
    Organization,
    Posting,
    RatedLine,
    UsageRecord,
    UsageRollup,
)

from .rows import NOON, make_prices, make_record
from .spoiling import take_guards_down

pytestmark = pytest.mark.django_db


@pytest.fixture
def books():
    """One billed record, ``resp_x``, of $0.0028."""
    take_guards_down()
    make_prices()
    make_record(response_id="resp_x")
    ledger.bill_batch()


def lose_journal():
    RatedLine.objects.all().delete()
    Posting.objects.all().delete()
    Journal.objects.all().delete()
    Account.objects.update(balance_nano=0)


def bill_twice():
    record = UsageRecord.objects.get()
    second = Journal.objects.create(
        idempotency_key="usage:resp_x:2",
        kind="usage",
        organization=record.organization,
        usage=record,
        occurred_at=NOON,
    )
    RatedLine.objects.create(journal=second, component="input", quantity=1_100, amount_nano=0)


@pytest.mark.parametrize(
    ("spoil", "differences"),
    [
        pytest.param(lambda: None, [], id="right"),
        pytest.param(
            lose_journal,
            [Difference("no journal", "resp_x", "marked as billed, not in the ledger")],
            id="entry lost",
        ),
        pytest.param(bill_twice, [Difference("billed twice", "resp_x", "2 entries stand")], id="entry doubled"),
        pytest.param(
            lambda: Posting.objects.filter(account__kind="revenue").update(amount_nano=-1),
            [
                Difference("unbalanced", "usage:resp_x:1", "postings sum to 2799999, not to 0"),
                Difference("balance", "acme revenue USD", "-2800000, postings sum to -1"),
            ],
            id="posting changed",
        ),
        pytest.param(
            lambda: Account.objects.filter(kind="receivable").update(balance_nano=F("balance_nano") + 5),
            [Difference("balance", "acme receivable USD", "2800005, postings sum to 2800000")],
            id="balance changed",
        ),
        pytest.param(
            lambda: RatedLine.objects.filter(component="output").update(amount_nano=1),
            [Difference("lines", "usage:resp_x:1", "lines sum to 2000001, debit is 2800000")],
            id="line changed",
        ),
        pytest.param(
            lambda: UsageRecord.objects.update(output_tokens=99),
            [Difference("tokens", "usage:resp_x:1", "1100 rated, 1099 in the usage record")],
            id="usage changed",
        ),
        pytest.param(
            lambda: UsageRecord.objects.update(billed_at=None),
            [Difference("unbilled", "1 records", "the oldest ended at 2026-11-29 12:00:02")],
            id="never billed",
        ),
    ],
)
def test_a_difference_is_found_and_named(books, spoil, differences):
    spoil()

    found = reconcile(NOON + timedelta(minutes=6))

    assert [difference for difference in found if difference.kind != "roll-ups"] == differences


def test_a_reversal_of_another_amount_is_found(books):
    ledger.reverse(Journal.objects.get(), "wrong price")
    reversals = Posting.objects.filter(journal__kind="reversal")
    reversals.filter(account__kind="receivable").update(amount_nano=-2_799_999)
    reversals.filter(account__kind="revenue").update(amount_nano=2_799_999)

    found = [difference for difference in reconcile(NOON) if difference.kind == "reversal"]

    assert found == [Difference("reversal", "reversal:usage:resp_x:1", "-2799999 for an entry of 2800000")]


def test_a_record_may_wait_for_its_turn():
    make_record()

    assert reconcile(NOON + timedelta(minutes=5)) == []


def test_a_reversed_entry_may_be_followed_by_another(books):
    ledger.reverse(Journal.objects.get(), "wrong price")
    bill_twice()
    rebuild(NOON.date(), NOON.date())

    assert reconcile(NOON) == []


@pytest.mark.parametrize(
    ("rollup", "width", "column", "detail"),
    [
        (UsageRollup, "hour", "amount_nano", "charges: 2800001 in the hours, 2800000 in the ledger"),
        (UsageRollup, "day", "responses", "responses: 2 in the days, 1 in the ledger"),
        (UsageRollup, "day", "input_tokens", "input: 1001 in the days, 1000 in the ledger"),
        (UsageRollup, "hour", "output_tokens", "output: 101 in the hours, 100 in the ledger"),
        (LatencyRollup, "hour", "responses", "times: 2 in the hours, 1 in the ledger"),
        (LatencyRollup, "day", "responses", "times: 2 in the days, 1 in the ledger"),
    ],
)
def test_a_wrong_roll_up_is_found_and_named(books, rollup, width, column, detail):
    rollup.objects.filter(width=width).update(**{column: F(column) + 1})

    assert reconcile(NOON) == [Difference("roll-ups", "acme", detail)]


@pytest.fixture
def granted(books):
    """And credit: 50 that was bought."""
    credits.grant(Organization.objects.get(), 50, kind="paid")


@pytest.mark.parametrize(
    ("spoil", "kind", "subject", "detail"),
    [
        pytest.param(
            lambda: CreditGrant.objects.update(remaining_nano=49),
            *("credit", "acme: paid credit {grant}", "49 is left, 0 of 50 was used"),
            id="a rest",
        ),
        pytest.param(
            lambda: CreditGrant.objects.update(remaining_nano=49),
            *("prepaid", "acme prepaid USD", "-50, grants have 49 left"),
            id="the sum of rests",
        ),
        pytest.param(
            lambda: CreditGrant.objects.update(currency="EUR"),
            *("prepaid", "organisation {organization} EUR", "no account, 50 left of grants"),
            id="credit without an account",
        ),
        pytest.param(
            lambda: GrantUse.objects.create(
                journal=Journal.objects.usage().get(), grant=CreditGrant.objects.get(), amount_nano=7
            ),
            *("credit", "acme: paid credit {grant}", "50 is left, 7 of 50 was used"),
            id="a use",
        ),
        pytest.param(
            lambda: UsageRecord.objects.update(billed_at=None, billing_tries=5, billing_error="no such price"),
            *("unbillable", "resp_x", "no such price"),
            id="given up",
        ),
        pytest.param(
            lambda: RatedLine.objects.filter(component="input").update(quantity=999),
            *("tokens", "usage:resp_x:1", "1099 rated, 1100 in the usage record"),
            id="a quantity",
        ),
    ],
)
def test_a_difference_says_what_both_sides_say(granted, spoil, kind, subject, detail):
    spoil()

    found = [difference for difference in reconcile(NOON) if difference.kind == kind]

    names = {"grant": CreditGrant.objects.get().pk, "organization": Organization.objects.get().pk}
    assert found[-1] == Difference(kind, subject.format(**names), detail)
    assert str(found[-1]) == f"{kind}: {subject.format(**names)}: {detail}"


def test_credit_that_is_used_up_needs_no_account(books):
    CreditGrant.objects.create(organization=Organization.objects.get(), kind="paid", amount_nano=0, remaining_nano=0)

    assert reconcile(NOON) == []


@pytest.mark.parametrize(
    ("spoil", "kind", "detail"),
    [
        pytest.param(
            lambda: Invoice.objects.update(total_cents=5),
            *("invoice", "50000000 of 2800000, its entries say 2800000, its lines 0"),
            id="a total",
        ),
        pytest.param(
            lambda: Invoice.objects.update(amount_nano=7),
            *("invoice", "0 of 7, its entries say 2800000, its lines 0"),
            id="an amount",
        ),
        pytest.param(
            lambda: InvoiceLine.objects.filter(section="rounding").update(amount_nano=0),
            *("invoice", "0 of 2800000, its entries say 2800000, its lines 2800000"),
            id="a line",
        ),
        pytest.param(
            lambda: InvoiceSeries.objects.update(last_number=3),
            *("numbers", "the last number is 3, there are 1"),
            id="a number",
        ),
    ],
)
def test_a_difference_of_an_invoice_says_what_each_part_says(books, spoil, kind, detail):
    one = invoices.draft(Organization.objects.get(), *invoices.month_of(NOON))
    invoices.finalize(one, one.period_end)
    assert reconcile(NOON) == []
    subject = one.reference if kind == "invoice" else "acme invoice"

    spoil()

    assert reconcile(NOON) == [Difference(kind, subject, detail)]


def test_a_record_is_late_when_its_patience_is_over_and_not_before():
    make_record()
    make_record(ended_at=NOON + timedelta(seconds=1))
    ended_at = NOON + timedelta(seconds=1)

    late = {
        seconds: [str(difference) for difference in reconcile(ended_at + timedelta(minutes=5, seconds=seconds))]
        for seconds in (0, 1, 2)
    }

    assert late == {
        0: [],
        1: ["unbilled: 1 records: the oldest ended at 2026-11-29 12:00:01"],
        2: ["unbilled: 2 records: the oldest ended at 2026-11-29 12:00:02"],
    }


def test_what_was_charged_and_is_not_in_the_roll_ups_is_found(books):
    UsageRollup.objects.all().delete()

    found = reconcile(NOON)

    assert {difference.kind for difference in found} == {"roll-ups"}
    assert len(found) == 8


def test_the_command_says_that_the_books_agree(books):
    out = StringIO()

    call_command("responses_ws_reconcile", stdout=out)

    assert out.getvalue() == "1 journals, 0 records waiting to be billed.\nThe books agree.\n"


def test_the_command_exits_with_1_on_a_difference(books):
    make_record(ended_at=timezone.now() - timedelta(days=1))
    Account.objects.filter(kind="receivable").update(balance_nano=0)
    out = StringIO()

    with pytest.raises(SystemExit) as stopped:
        call_command("responses_ws_reconcile", stdout=out)

    assert stopped.value.code == 1
    assert "balance: acme receivable USD: 0, postings sum to 2800000\n" in out.getvalue()
    assert out.getvalue().endswith("1 journals, 1 records waiting to be billed.\n2 differences.\n")
