"""What each step of an invoice writes: its fields, its lines, its entry in the ledger."""

from datetime import UTC, datetime, timedelta

import pytest

from responses_ws.billing import invoices, ledger
from responses_ws.billing.invoices import InvoiceError, month_of
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Invoice, Journal, Organization

from .rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

TURN = 2_800_000
"""What a turn of `make_record` costs: 0.28 cents."""
NOVEMBER, DECEMBER = month_of(NOON)
SENT = DECEMBER + timedelta(days=3)


@pytest.fixture(autouse=True)
def _invoicing(settings, db):
    """All are invoiced, and whatever these tests do, the books agree behind them."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICES": "all", "INVOICE_ISSUER": "We\n1 Road"}
    make_prices()
    yield
    assert reconcile() == []


def used(count=10, project=None, **fields):
    """So many turns as one record, billed."""
    make_record(project, input_tokens=count * 1_000, output_tokens=count * 100, **fields)
    ledger.bill_all()


def draft(start=NOVEMBER, organization=None):
    return invoices.draft(organization or make_project().organization, *month_of(start))


def finalized(start=NOVEMBER, organization=None, now=SENT):
    one = draft(start, organization)
    invoices.finalize(one, max(now, one.period_end))
    return Invoice.objects.get(pk=one.pk)


def entry(kind):
    """The one of this kind: its fields but for the time when it was written, and its amounts by kind of account."""
    one = Journal.objects.get(kind=kind)
    amounts = {posting.account.kind: posting.amount_nano for posting in one.postings.select_related("account")}
    return (one.idempotency_key, one.memo, one.occurred_at, one.invoice_id, one.reverses_id), amounts


@pytest.mark.parametrize(
    ("moment", "start", "end"),
    [
        ("2026-01-31T23:59:59.999999+00:00", "2026-01-01", "2026-02-01"),
        ("2026-02-01T00:00:00+00:00", "2026-02-01", "2026-03-01"),
        ("2028-02-29T12:34:56+00:00", "2028-02-01", "2028-03-01"),
        ("2026-12-31T23:00:00+00:00", "2026-12-01", "2027-01-01"),
        ("2026-05-01T01:59:00+02:00", "2026-04-01", "2026-05-01"),
    ],
)
def test_months_are_those_of_utc(moment, start, end):
    expected = tuple(datetime.fromisoformat(f"{day}T00:00:00+00:00") for day in (start, end))

    assert month_of(datetime.fromisoformat(moment)) == expected


def test_finalising_rounds_in_the_books_and_says_so():
    used(10)
    one = finalized()

    assert entry("invoice") == (
        (f"invoice:{one.pk}", "rounding to cents", SENT, one.pk, None),
        {"receivable": 2_000_000, "rounding": -2_000_000},
    )
    assert (one.finalized_at, one.computed_at, one.due_at) == (SENT, SENT, SENT + timedelta(days=14))
    assert one.paid_at is None


def test_what_needs_no_rounding_has_no_entry_of_it():
    used(25)
    one = finalized()

    assert (one.amount_nano, one.total_cents) == (70_000_000, 7)
    assert not Journal.objects.filter(kind="invoice").exists()
    assert [line.section for line in one.lines.all()] == ["usage"]


def test_an_invoice_of_nothing_is_paid_when_it_is_sent():
    one = finalized()

    assert (one.status, one.paid_at, one.total_cents) == ("paid", SENT, 0)
    with pytest.raises(InvoiceError, match="no more than is left"):
        invoices.credit(one)


def test_numbers_are_printed_as_the_settings_say(settings):
    forms = {"INVOICE_NUMBER": "{year}-{organization}-{number:03}", "CREDIT_NOTE_NUMBER": "C{number}/{year}"}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, **forms, "INVOICE_NET_DAYS": 30}
    used(10)

    one = finalized()
    note = invoices.credit(one)

    assert one.reference == f"2026-{one.organization_id}-001"
    assert one.due_at == SENT + timedelta(days=30)
    assert note.reference == "C1/2026"


def test_every_organisation_counts_its_own_invoices_and_credit_notes():
    globex = make_project("globex")
    for start in (NOVEMBER, DECEMBER):
        used(10, started_at=start)
        used(10, globex, started_at=start)
    sent = [
        finalized(start, owner)
        for start in (NOVEMBER, DECEMBER)
        for owner in (globex.organization, make_project().organization)
    ]
    notes = [invoices.credit(one) for one in sent[1:]]

    assert [one.number for one in sent] == [1, 1, 2, 2]
    assert [one.number for one in notes] == [1, 1, 2]


def test_who_gave_no_address_is_billed_by_name():
    used(10)

    assert finalized().billed_to == "acme"


def test_a_payment_is_an_entry_of_its_own_day():
    used(10)
    one = finalized()

    invoices.pay(one, NOON, "x" * 301)

    assert entry("payment") == (
        (f"payment:{one.pk}", "x" * 300, NOON, one.pk, None),
        {"cash": 30_000_000, "receivable": -30_000_000},
    )
    assert Invoice.objects.get().paid_at == NOON


def test_what_was_credited_whole_is_paid_with_nothing():
    used(10)
    one = finalized()
    invoices.credit(one)

    invoices.pay(one)

    assert Invoice.objects.get(pk=one.pk).status == "paid"
    assert not Journal.objects.filter(kind="payment").exists()


def test_voiding_takes_the_rounding_back():
    used(10)
    one = finalized()
    rounding = Journal.objects.get(kind="invoice")

    again = invoices.void(one, "y" * 301)

    (key, memo, _, invoice, reverses), amounts = entry("reversal")
    assert (key, memo, invoice, reverses) == (f"void:{one.pk}", "y" * 300, one.pk, rounding.pk)
    assert amounts == {"receivable": -2_000_000, "rounding": 2_000_000}
    one = Invoice.objects.get(pk=one.pk)
    assert (one.status, one.memo, one.voided_at is None) == ("void", "y" * 300, False)
    assert (again.period_start, again.period_end, again.status) == (NOVEMBER, DECEMBER, "draft")
    assert (again.amount_nano, again.total_cents) == (10 * TURN, 3)


def test_an_invoice_of_nothing_can_be_voided_though_it_counts_as_paid():
    one = finalized()

    assert invoices.void(one).status == "draft"


def test_what_was_credited_in_part_is_not_voided():
    used(100)
    one = finalized()
    invoices.credit(one, 1)

    with pytest.raises(InvoiceError, match="something was credited for it"):
        invoices.void(one)


def test_a_whole_credit_note_is_the_invoice_with_the_other_sign():
    key = make_key(make_project())
    used(10, api_key=key)
    one = finalized()

    note = invoices.credit(one, memo="z" * 301)

    note.refresh_from_db()
    assert (note.kind, note.corrects, note.currency, note.memo) == ("credit_note", one, "USD", "z" * 300)
    assert (note.period_start, note.period_end, note.due_at) == (NOVEMBER, DECEMBER, None)
    assert (note.billed_to, note.issuer, note.amount_nano, note.total_cents) == (
        "acme",
        "We\n1 Road",
        -10 * TURN,
        -3,
    )
    names = ("section", "project_id", "api_key_id", "key_name", "model", "responses", "tokens", "amount_nano")
    assert list(note.lines.values_list(*names)) == [
        ("usage", key.project_id, key.pk, "laptop", "m", -1, -11_000, -10 * TURN),
        ("rounding", None, None, "", "", 0, 0, -2_000_000),
    ]
    assert one.lines.count() == 2
    (written, amounts) = entry("credit_note")
    assert (written[:2], written[3:]) == ((f"credit_note:{note.pk}", "z" * 300), (note.pk, None))
    assert amounts == {"revenue": 10 * TURN, "receivable": -30_000_000, "rounding": 2_000_000}


def test_a_part_of_an_invoice_is_credited_in_a_line():
    used(10)
    one = finalized()

    note = invoices.credit(one, 2)

    (line,) = note.lines.all()
    assert (line.section, line.description, line.amount_nano) == (
        "correction",
        f"Part of {one.reference}",
        -20_000_000,
    )
    assert entry("credit_note")[1] == {"revenue": 20_000_000, "receivable": -20_000_000}
    assert (note.amount_nano, note.total_cents, invoices.open_cents(one)) == (-20_000_000, -2, 1)


def test_a_credit_note_corrects_an_invoice_and_not_another_one():
    used(100)
    note = invoices.credit(finalized(), 3)

    with pytest.raises(InvoiceError, match="a credit note itself"):
        invoices.credit(note)
    with pytest.raises(InvoiceError, match="a credit note stays"):
        invoices.void(note)


def test_a_credit_note_is_paid_back_where_its_invoice_was_paid_before():
    used(100)
    one = finalized()
    lowered = invoices.credit(one, 3)
    with pytest.raises(InvoiceError, match="asks for so much less"):
        invoices.pay(lowered)
    invoices.pay(one)
    paid_too_much = invoices.credit(one, 5)

    invoices.pay(paid_too_much, SENT)

    with pytest.raises(InvoiceError, match="asks for so much less"):
        invoices.pay(lowered)
    receivable = Organization.objects.get().accounts.get(kind="receivable")
    cash = Organization.objects.get().accounts.get(kind="cash")
    assert (receivable.balance_nano, cash.balance_nano) == (0, (28 - 3 - 5) * 10**7)


def test_two_drafts_of_one_period_there_are_not():
    assert draft() is not None
    assert draft() is None
    assert draft(organization=make_project("globex").organization) is not None


def test_a_draft_says_when_it_was_computed():
    used(10)
    one = draft()
    first = one.computed_at
    invoices.preview(one)

    assert first is not None and one.computed_at > first
    assert Invoice.objects.get().computed_at == one.computed_at


def test_what_is_not_possible_is_said_with_its_reason():
    draft(DECEMBER)
    late = draft(datetime(2027, 1, 1, tzinfo=UTC))

    with pytest.raises(InvoiceError) as early:
        invoices.finalize(draft(), DECEMBER - timedelta(seconds=1))
    with pytest.raises(InvoiceError) as behind:
        invoices.finalize(late, late.period_end)

    assert str(early.value) == "the period ends at 2026-12-01 00:00 UTC"
    assert str(behind.value) == "the draft of November 2026 comes first"


def test_drafts_are_finalised_with_their_grace_each_for_itself(settings):
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICE_GRACE_HOURS": 24}
    globex = make_project("globex").organization
    mine, theirs, young = draft(), draft(organization=globex), draft(DECEMBER, globex)
    Invoice.objects.filter(pk__in=(mine.pk, theirs.pk)).update(created_at=DECEMBER)
    due = DECEMBER + timedelta(hours=24)

    # Made late: it is looked at for as long as any other.
    Invoice.objects.filter(pk=mine.pk).update(created_at=DECEMBER + timedelta(hours=1))
    assert invoices.finalize_due(due) == 1
    assert invoices.finalize_due(due + timedelta(hours=1)) == 1

    assert list(Invoice.objects.drafts()) == [young]


def test_months_of_nothing_between_two_months_have_no_invoice():
    july, october = datetime(2026, 7, 9, tzinfo=UTC), datetime(2026, 10, 9, tzinfo=UTC)
    used(1, started_at=july)
    used(1, started_at=october)

    assert invoices.make_drafts(NOON) == 2

    assert [one.period_start.month for one in Invoice.objects.drafts()] == [7, 10]
    assert [one.amount_nano for one in Invoice.objects.drafts()] == [TURN, TURN]


def test_what_comes_late_for_a_month_that_was_sent_is_drafted_with_the_next_that_is_over():
    used(10)
    finalized()
    used(2)
    assert invoices.make_drafts(DECEMBER + timedelta(days=5)) == 0

    assert invoices.make_drafts(datetime(2027, 1, 1, tzinfo=UTC)) == 1

    one = Invoice.objects.drafts().get()
    assert (one.period_start, one.amount_nano) == (DECEMBER, 2 * TURN)


def test_only_what_cost_something_is_missed_and_only_of_those_who_are_invoiced(settings):
    month, end = month_of(Journal._meta.get_field("posted_at").default())
    late = end + timedelta(days=3)
    used(1, started_at=month)
    used(1, make_project("globex"), started_at=month)
    make_record(make_project("free"), status="failed", started_at=month)
    ledger.bill_all()

    def missed():
        return {owner.name: count for owner, count in invoices.forgotten(late)}

    assert missed() == {"acme": 1, "globex": 1}
    Organization.objects.filter(name="globex").update(is_prepaid=True)
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICES": "postpaid"}
    assert missed() == {"acme": 1}
    draft(month)
    assert missed() == {}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICES": "off"}
