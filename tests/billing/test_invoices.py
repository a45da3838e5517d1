"""Every rated entry is on one invoice, every number is there once, and cents are what nano units round to."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, transaction
from django.db.models import Sum
from django.utils import timezone

from responses_ws.billing import credits, invoices, ledger
from responses_ws.billing.invoices import InvoiceError, month_of
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Account, CreditGrant, Invoice, Journal, Organization, UsageRecord
from responses_ws.runtime import faults

from .rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

TURN = 2_800_000
"""What a turn of `make_record` costs: 0.28 cents."""
NOVEMBER, DECEMBER = month_of(NOON)
JANUARY = datetime(2027, 1, 1, tzinfo=UTC)
GRACE = timedelta(hours=48)


@pytest.fixture(autouse=True)
def _invoicing(settings, db):
    """All are invoiced, and whatever these tests do, the books agree behind them."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICES": "all", "INVOICE_ISSUER": "We\n1 Road"}
    make_prices()
    yield
    faults.arm("")
    assert reconcile() == []


def turns(count=1, project=None, **fields):
    records = [make_record(project, **fields) for _ in range(count)]
    ledger.bill_all()
    return records


def drafted(month=NOVEMBER):
    invoices.make_drafts(month_of(month)[1] + timedelta(hours=1))
    return Invoice.objects.drafts().get(period_start=month)


def finalized(month=NOVEMBER):
    one = drafted(month)
    invoices.finalize(one, one.period_end + GRACE)
    one.refresh_from_db()
    return one


def lines(invoice):
    return list(invoice.lines.values_list("section", "project_name", "key_name", "model", "responses", "amount_nano"))


def balances():
    return {kind: nano for kind, nano in Account.objects.values_list("kind", "balance_nano") if nano}


def test_a_month_is_drafted_when_it_is_over_and_once():
    turns()

    made = [invoices.make_drafts(now) for now in (NOON, DECEMBER - timedelta(seconds=1), DECEMBER, JANUARY)]

    assert made == [0, 0, 1, 0]
    one = Invoice.objects.get()
    assert (one.period_start, one.period_end, one.status, one.number) == (NOVEMBER, DECEMBER, "draft", None)
    assert (one.amount_nano, one.total_cents) == (TURN, 0)


def test_lines_are_by_project_key_and_model():
    make_prices("other")
    project = make_project("acme", "chat")
    turns(2, project, api_key=make_key(project, "laptop"))
    turns(3, project, api_key=make_key(project, "server"))
    turns(1, project, model="other")
    turns(5)

    one = finalized()

    assert lines(one) == [
        ("usage", "chat", "", "other", 1, TURN),
        ("usage", "chat", "laptop", "m", 2, 2 * TURN),
        ("usage", "chat", "server", "m", 3, 3 * TURN),
        ("usage", "default", "", "m", 5, 5 * TURN),
        ("rounding", "", "", "", 0, -800_000),
    ]
    assert list(one.lines.values_list("tokens", flat=True)) == [1_100, 2_200, 3_300, 5_500, 0]
    assert (one.amount_nano, one.total_cents) == (11 * TURN, 3)


def test_a_draft_is_a_preview_that_claims_nothing():
    turns()
    one = drafted()
    turns(3)

    invoices.preview(one)

    assert (one.amount_nano, one.total_cents) == (4 * TURN, 1)
    assert not Journal.objects.exclude(invoice=None).exists()
    assert one.lines.count() == 2


def test_a_finalised_invoice_has_a_number_a_due_date_and_what_was_said_then(settings):
    Organization.objects.filter(pk=make_project().organization_id).update(billed_to="Acme Ltd\n2 Street")
    turns(10)

    one = finalized()

    assert (one.status, one.number, one.reference) == ("finalized", 1, f"INV-{one.organization_id:04}-00001")
    assert (one.billed_to, one.issuer) == ("Acme Ltd\n2 Street", "We\n1 Road")
    assert one.due_at == one.finalized_at + timedelta(days=14)
    assert Journal.objects.rated().filter(invoice=one).count() == 10
    assert balances() == {"receivable": 30_000_000, "revenue": -10 * TURN, "rounding": -2_000_000}


def test_drafts_are_finalised_when_their_grace_is_over_and_not_before():
    turns()
    one = drafted()
    Invoice.objects.update(created_at=DECEMBER)

    done = [invoices.finalize_due(DECEMBER + wait) for wait in (timedelta(), GRACE - timedelta(seconds=1), GRACE)]

    assert done == [0, 0, 1]
    one.refresh_from_db()
    assert one.number == 1


def test_nobody_is_invoiced_whom_the_settings_leave_out(settings):
    Organization.objects.filter(pk=make_project("globex").organization_id).update(is_prepaid=True)
    turns()
    turns(1, make_project("globex"))

    made = []
    for who in ("off", "postpaid", "all"):
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICES": who}
        made.append(invoices.make_drafts(DECEMBER))

    assert made == [0, 1, 1]


def test_by_hand_nothing_is_finalised_by_itself(settings):
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICE_FINALIZE": False}
    turns()
    drafted()

    assert invoices.finalize_due(JANUARY + GRACE) == 0


def test_usage_that_comes_late_is_on_the_next_invoice_in_a_section_of_its_own():
    turns(10)
    first = finalized()
    turns(2)  # of November, billed when its invoice is sent
    turns(3, started_at=DECEMBER + timedelta(days=3))

    second = finalized(DECEMBER)

    assert [line[0] for line in lines(first)] == ["usage", "rounding"]
    assert lines(second) == [
        ("usage", "default", "", "m", 3, 3 * TURN),
        ("late", "default", "", "m", 2, 2 * TURN),
        ("rounding", "", "", "", 0, -4_000_000),
    ]


def test_late_usage_waits_for_no_usage_of_the_month():
    turns(10)
    finalized()
    turns(2)

    assert [line[0] for line in lines(finalized(DECEMBER))] == ["late", "rounding"]


def test_a_correction_after_finalising_is_on_the_next_invoice_and_changes_nothing_of_the_first():
    (record, *_) = turns(10)
    first = finalized()
    before = lines(first)

    ledger.correct(UsageRecord.objects.get(pk=record.pk), {"output_tokens": 600})
    ledger.bill_all()
    second = finalized(DECEMBER)

    assert lines(first) == before
    # $0.0028 back, $0.0068 anew
    assert lines(second) == [
        ("correction", "default", "", "m", 0, 4_000_000),
        ("rounding", "", "", "", 0, -4_000_000),
    ]
    assert second.lines.get(section="correction").tokens == 500


def test_what_is_taken_back_before_finalising_is_not_on_it():
    (record, *_) = turns(2)
    one = drafted()
    ledger.reverse(Journal.objects.get(usage=record), "a mistake")

    invoices.finalize(one, JANUARY)

    # It was taken back in another month than it was of: still it belongs to that.
    assert lines(one)[0] == ("usage", "default", "", "m", 1, TURN)
    assert Journal.objects.filter(invoice=one, kind="reversal").count() == 1


def test_more_taken_back_than_used_is_an_invoice_below_zero_that_is_paid_back():
    (record, *_) = turns(1, input_tokens=10_000_000)  # $20.0008
    finalized()
    ledger.reverse(Journal.objects.get(usage=record), "credited")
    turns(1, started_at=DECEMBER)

    second = finalized(DECEMBER)
    assert (second.amount_nano, second.total_cents) == (TURN - 20_000_800_000, -2_000)
    invoices.pay(second)

    assert balances()["cash"] == -20 * 10**9


def test_credit_that_spans_months_is_used_on_each():
    credits.grant(make_project().organization, 15 * TURN, kind="paid", note="order 7")
    turns(10)
    first = finalized()
    turns(10, started_at=DECEMBER)
    second = finalized(DECEMBER)

    day = CreditGrant.objects.get().created_at
    named = f"Prepaid credit of {day:%Y-%m-%d}: order 7"
    assert (first.amount_nano, second.amount_nano) == (0, 5 * TURN)
    assert first.lines.get(section="credit").amount_nano == -10 * TURN
    credit = second.lines.get(section="credit")
    assert (credit.amount_nano, credit.description) == (-5 * TURN, named)


def test_credit_that_expires_in_the_month_covers_what_started_before():
    grant = credits.grant(make_project().organization, 100 * TURN, kind="promotional")
    CreditGrant.objects.filter(pk=grant.pk).update(expires_at=NOON)
    turns(3, started_at=NOON - timedelta(microseconds=1))
    turns(4, started_at=NOON)
    credits.expire(DECEMBER)

    one = finalized()

    assert one.amount_nano == 4 * TURN
    assert one.lines.get(section="credit").amount_nano == -3 * TURN


def test_an_invoice_of_zero_waits_for_no_payment():
    credits.grant(make_project().organization, 10 * TURN, kind="paid")
    turns(10)

    one = finalized()

    assert (one.status, one.total_cents, one.number) == ("paid", 0, 1)
    with pytest.raises(InvoiceError):
        invoices.pay(one)
    assert "receivable" not in balances()


def test_what_cost_nothing_makes_no_invoice_and_is_on_the_next():
    turns(2, status="failed")
    assert invoices.make_drafts(DECEMBER) == 0
    turns(10, started_at=DECEMBER)

    one = finalized(DECEMBER)

    assert [line[0] for line in lines(one)] == ["usage", "late", "rounding"]
    assert not Journal.objects.rated().filter(invoice=None).exists()


@pytest.mark.parametrize(
    ("nano", "cents"),
    [(5_000_000, 0), (15_000_000, 2), (25_000_000, 2), (25_000_001, 3), (14_999_999, 1)],
)
def test_totals_are_rounded_half_even_and_the_rounding_is_posted(nano, cents):
    make_prices("exact", {"input": nano * 1_000_000})
    (record,) = turns(1, model="exact", input_tokens=1, output_tokens=0)
    one = finalized()
    assert (one.amount_nano, one.total_cents) == (nano, cents)
    assert balances().get("rounding", 0) == nano - cents * 10_000_000

    ledger.reverse(Journal.objects.get(usage=record), "back")
    back = finalized(DECEMBER)

    assert (back.amount_nano, back.total_cents) == (-nano, -cents)
    assert "rounding" not in balances()


def test_the_smallest_coin_of_a_currency_is_what_is_rounded_to():
    Organization.objects.filter(pk=make_project().organization_id).update(currency="JPY")
    make_prices("yen", {"input": 700_000_000_000_000}, currency="JPY")
    turns(1, model="yen", input_tokens=1, output_tokens=0)  # 0.7 yen

    one = finalized()

    assert (one.currency, one.total_cents, one.lines.get(section="rounding").amount_nano) == ("JPY", 1, 300_000_000)


def test_a_payment_is_what_was_asked_for():
    turns(10)
    one = finalized()

    invoices.pay(one, NOON, "wire 12")

    assert (one.status, one.paid_at) == ("paid", NOON)
    assert balances() == {"cash": 30_000_000, "revenue": -10 * TURN, "rounding": -2_000_000}
    with pytest.raises(InvoiceError, match="paid"):
        invoices.pay(one)


def test_a_void_invoice_keeps_its_number_and_its_entries_are_drafted_again():
    turns(10)
    first = finalized()

    again = invoices.void(first, "wrong address")

    first.refresh_from_db()
    assert (first.status, first.number, first.memo, again.status) == ("void", 1, "wrong address", "draft")
    assert len(lines(first)) == 2, "it says what it said"
    assert not Journal.objects.rated().exclude(invoice=None).exists()
    assert balances() == {"receivable": 10 * TURN, "revenue": -10 * TURN}

    invoices.finalize(again, JANUARY)

    again.refresh_from_db()
    assert (again.number, lines(again)) == (2, lines(first))
    assert balances() == {"receivable": 30_000_000, "revenue": -10 * TURN, "rounding": -2_000_000}


def test_what_was_void_is_not_taken_by_the_next_month():
    turns(10)
    first = finalized()
    turns(20, started_at=DECEMBER)
    december = drafted(DECEMBER)
    again = invoices.void(first)

    invoices.preview(december)
    assert december.amount_nano == 20 * TURN
    with pytest.raises(InvoiceError, match="November 2026 comes first"):
        invoices.finalize(december, JANUARY + GRACE)
    invoices.finalize(again, JANUARY)
    invoices.finalize(december, JANUARY + GRACE)

    assert (again.amount_nano, december.amount_nano) == (10 * TURN, 20 * TURN)
    assert list(Invoice.objects.order_by("number").values_list("number", "status")) == [
        (1, "void"),
        (2, "finalized"),
        (3, "finalized"),
    ]


def test_what_was_paid_is_not_voided_but_credited():
    turns(10)
    one = finalized()
    invoices.pay(one)

    with pytest.raises(InvoiceError, match="credit note"):
        invoices.void(one)
    note = invoices.credit(one, memo="our mistake")

    assert (note.kind, note.number, note.reference) == ("credit_note", 1, f"CN-{one.organization_id:04}-00001")
    assert (note.total_cents, note.amount_nano, note.corrects, note.status) == (-3, -10 * TURN, one, "finalized")
    assert note.lines.aggregate(sum=Sum("amount_nano"))["sum"] == -30_000_000
    assert balances() == {"cash": 30_000_000, "receivable": -30_000_000}


def test_a_part_is_credited_and_the_rest_is_paid():
    turns(100)  # 28 cents
    one = finalized()

    first = invoices.credit(one, 3, "goodwill")
    second = invoices.credit(one, 5)
    invoices.pay(one)

    assert (first.number, second.number, second.total_cents) == (1, 2, -5)
    assert balances() == {"cash": 200_000_000, "revenue": -200_000_000}


@pytest.mark.parametrize("cents", [0, -1, 29])
def test_no_more_is_credited_than_is_left(cents):
    turns(100)
    one = finalized()

    with pytest.raises(InvoiceError, match="more than"):
        invoices.credit(one, cents)
    invoices.credit(one)
    with pytest.raises(InvoiceError, match="more than"):
        invoices.credit(one)


@pytest.mark.parametrize("do", [invoices.finalize, invoices.preview])
def test_what_is_finalised_stays_as_it_is(do):
    turns(10)
    one = finalized()
    turns(5)

    with pytest.raises(InvoiceError, match="finalised"):
        do(one)
    assert len(lines(one)) == 2


@pytest.mark.parametrize("do", [invoices.pay, invoices.void, invoices.credit])
def test_of_a_draft_nothing_is_paid_voided_or_credited(do):
    turns()
    one = drafted()

    with pytest.raises(InvoiceError, match="draft"):
        do(one)


def test_a_period_that_is_not_over_is_not_finalised():
    turns()
    one = drafted()

    with pytest.raises(InvoiceError, match="ends at"):
        invoices.finalize(one, DECEMBER - timedelta(seconds=1))


STEPS = [point for point in faults.POINTS if point.startswith("invoice.") and point != "invoice.released"]


@pytest.mark.parametrize("step", STEPS)
def test_finalising_that_breaks_at_any_step_leaves_a_draft_and_no_gap(step):
    turns(10)
    one = drafted()
    faults.arm(f"{step}:1:raise")

    with pytest.raises(faults.Fault):
        invoices.finalize(one, JANUARY)

    faults.arm("")
    one = Invoice.objects.get()
    if step == "invoice.committed":
        assert one.number == 1
        return
    assert (one.status, one.number) == ("draft", None)
    assert not Journal.objects.exclude(invoice=None).exists()
    invoices.finalize(one, JANUARY)
    assert one.number == 1


def test_voiding_that_breaks_leaves_the_invoice():
    turns(10)
    one = finalized()
    faults.arm("invoice.released:1:raise")

    with pytest.raises(faults.Fault):
        invoices.void(one)

    one = Invoice.objects.get()
    assert one.status == "finalized"
    assert Journal.objects.rated().filter(invoice=one).count() == 10


def test_months_without_a_beat_are_made_up_for():
    turns(10, started_at=NOON - timedelta(days=40))
    turns(10)

    assert invoices.make_drafts(JANUARY) == 2
    Invoice.objects.update(created_at=DECEMBER)
    assert invoices.finalize_due(JANUARY + GRACE) == 2

    assert [(one.number, one.period_start.month) for one in Invoice.objects.order_by("number")] == [(1, 10), (2, 11)]


def test_an_entry_that_is_missing_on_its_invoice_is_found():
    turns(10)
    one = finalized()
    row = Journal.objects.rated().filter(pk=Journal.objects.rated().first().pk)

    row.update(invoice=None)

    assert [difference.kind for difference in reconcile()] == ["invoice"]
    row.update(invoice=one)


@pytest.mark.parametrize("breaks", ["total", "line"])
def test_a_draft_whose_lines_are_not_its_total_is_found(breaks):
    turns(10)
    one = drafted()

    if breaks == "total":
        Invoice.objects.filter(pk=one.pk).update(total_cents=4)
    else:
        one.lines.filter(section="rounding").delete()

    assert [difference.kind for difference in reconcile()] == ["invoice"]
    invoices.preview(one)


@pytest.mark.parametrize("field", ["number", "reference", "total_cents", "amount_nano", "issuer", "due_at"])
def test_the_database_lets_nobody_change_what_was_sent(field):
    turns(10)
    one = finalized()
    other = NOON if field == "due_at" else 7

    with pytest.raises(DatabaseError, match="not changed"), transaction.atomic():
        Invoice.objects.filter(pk=one.pk).update(**{field: other})


def test_usage_that_nobody_invoices_is_found_when_the_grace_is_over():
    # They are entered today, so their months are the last one and this.
    month, end = month_of(timezone.now())
    turns(3, started_at=month)
    late = end + GRACE + timedelta(days=1)

    assert "uninvoiced" not in {difference.kind for difference in reconcile(late - timedelta(seconds=1))}
    (difference,) = [difference for difference in reconcile(late) if difference.kind == "uninvoiced"]
    assert difference.detail == "3 entries of months that are over are on no invoice"
    invoices.make_drafts(end)
    assert "uninvoiced" not in {difference.kind for difference in reconcile(late)}
