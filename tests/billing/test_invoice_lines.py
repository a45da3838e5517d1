"""What is on an invoice: which entries, and how they are added up."""

from datetime import timedelta

import pytest

from responses_ws.billing import credits, invoice_lines, ledger
from responses_ws.models import Journal, UsageRecord

from .rows import NOON, make_key, make_prices, make_project, make_record
from .test_invoice_entries import DECEMBER, NOVEMBER, TURN, _invoicing, draft, finalized, used

__all__ = ["_invoicing"]

pytestmark = pytest.mark.django_db


def test_what_is_unclaimed_has_a_beginning_and_an_end():
    owner = make_project().organization
    for moment in (NOVEMBER - timedelta(seconds=1), NOVEMBER, DECEMBER - timedelta(seconds=1), DECEMBER):
        make_record(started_at=moment)
    make_record(make_project("globex"))
    ledger.bill_all()

    assert invoice_lines.unclaimed(owner, DECEMBER).count() == 3
    assert invoice_lines.unclaimed(owner, DECEMBER, NOVEMBER).count() == 2
    assert invoice_lines.unclaimed(owner, NOVEMBER).count() == 1


def test_what_is_claimed_is_counted_and_claimed_once():
    for moment in (NOVEMBER - timedelta(seconds=1), NOVEMBER, DECEMBER):
        make_record(started_at=moment)
    taken_back = make_record()
    make_record(make_project("globex"))
    ledger.bill_all()
    ledger.reverse(Journal.objects.get(usage=taken_back), "a mistake")
    one = draft()

    assert [invoice_lines.claim(one), invoice_lines.claim(one)] == [4, 0]

    assert Journal.objects.rated().filter(invoice=None).count() == 2
    Journal.objects.update(invoice=None)


def test_lines_are_in_the_order_of_sections_and_names():
    make_prices("a")
    chat, lab = make_project("acme", "chat"), make_project("acme", "Lab")
    used(10)
    sent = finalized()
    record = UsageRecord.objects.get()
    ledger.correct(record, {"output_tokens": 2_000})
    for project, fields in (
        (lab, {}),
        (chat, {"api_key": make_key(chat, "zeta")}),
        (chat, {"api_key": make_key(chat, "beta")}),
        (chat, {"model": "a"}),
    ):
        used(1, project, started_at=DECEMBER, **fields)
    used(3)
    credits.grant(make_project().organization, 1_000, kind="promotional", note="n" * 200)
    used(1, started_at=DECEMBER)

    one = finalized(DECEMBER)

    told = [(line.section, line.project_name, line.key_name, line.model) for line in one.lines.all()]
    assert told == [
        ("usage", "Lab", "", "m"),
        ("usage", "chat", "", "a"),
        ("usage", "chat", "beta", "m"),
        ("usage", "chat", "zeta", "m"),
        ("usage", "default", "", "m"),
        ("late", "default", "", "m"),
        ("correction", "default", "", "m"),
        ("credit", "", "", ""),
        ("rounding", "", "", ""),
    ]
    (credit,) = one.lines.filter(section="credit")
    assert (len(credit.description), credit.amount_nano) == (200, -1_000)
    assert sent.lines.count() == 2


@pytest.mark.parametrize(
    ("kind", "note", "said"),
    [
        ("paid", "", "Prepaid credit of 2026-11-29"),
        ("promotional", "", "Promotional credit of 2026-11-29"),
        ("paid", "order 7", "Prepaid credit of 2026-11-29: order 7"),
        ("paid", "o" * 300, "Prepaid credit of 2026-11-29: " + "o" * 170),
    ],
)
def test_a_grant_is_named_by_its_kind_its_day_and_its_note(kind, note, said):
    assert invoice_lines._named(kind, NOON, note) == said


def test_what_was_rated_again_before_it_was_sent_is_usage_and_not_a_correction():
    used(10)
    ledger.correct(UsageRecord.objects.get(), {"output_tokens": 2_000})
    ledger.bill_all()

    one = finalized()

    assert list(one.lines.values_list("section", "responses", "tokens", "amount_nano")) == [
        ("usage", 1, 12_000, 36_000_000),
        ("rounding", 0, 0, 4_000_000),
    ]


def test_what_was_used_and_taken_back_in_one_month_is_no_line():
    used(10)
    ledger.reverse(Journal.objects.usage().get(), "a mistake")
    used(1)

    one = finalized()

    assert [line.section for line in one.lines.all()] == ["usage", "rounding"]
    assert (one.lines.first().responses, one.amount_nano) == (1, TURN)


def test_usage_of_the_months_before_is_late_to_the_last_moment():
    make_record(started_at=NOVEMBER - timedelta(microseconds=1))
    make_record(started_at=NOVEMBER)
    ledger.bill_all()

    assert list(finalized().lines.values_list("section", "responses")) == [("usage", 1), ("late", 1), ("rounding", 0)]


def test_a_line_without_a_response_that_counts_tokens_is_there():
    used(10)
    finalized()
    ledger.correct(UsageRecord.objects.get(), {"output_tokens": 1_001})
    ledger.bill_all()

    one = finalized(DECEMBER)

    assert list(one.lines.values_list("section", "responses", "tokens", "amount_nano")) == [
        ("correction", 0, 1, 8_000),
        ("rounding", 0, 0, -8_000),
    ]


def test_what_is_rated_again_twice_behind_an_invoice_is_a_correction_as_a_whole():
    used(10)
    finalized()
    for tokens in (2_000, 1_001):
        ledger.correct(UsageRecord.objects.get(), {"output_tokens": tokens})
        ledger.bill_all()

    one = finalized(DECEMBER)

    assert list(one.lines.values_list("section", "responses", "tokens", "amount_nano")) == [
        ("correction", 0, 1, 8_000),
        ("rounding", 0, 0, -8_000),
    ]


def test_calls_of_tools_are_no_tokens_whether_they_stand_or_are_taken_back():
    make_prices(per_million={"tool_call": 10**12})
    used(10, tool_calls=3)
    sent = finalized()
    ledger.correct(UsageRecord.objects.get(), {"tool_calls": 1})
    ledger.bill_all()

    corrected = finalized(DECEMBER)

    assert sent.lines.first().tokens == 11_000
    assert list(corrected.lines.values_list("section", "responses", "tokens", "amount_nano")) == [
        ("correction", 0, 0, -2_000_000),
        ("rounding", 0, 0, 2_000_000),
    ]
