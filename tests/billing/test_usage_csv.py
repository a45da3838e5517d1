"""Usage as CSV: each settled record once, exact, with nothing that a spreadsheet would run, in little memory."""

import csv
import io
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from responses_ws.billing import credits, ledger, usage_csv
from responses_ws.models import Journal, UsageRecord
from responses_ws.models import usage as usage_models

from .rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

MIB = 1024 * 1024


def lines_of(pieces: Iterable[bytes]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(b"".join(pieces).decode(), newline="")))


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_models, "PAGE", 5)
    monkeypatch.setattr(usage_models, "WIDEST", 20)


def make_many(count: int, **fields: Any) -> None:
    project = make_project()
    given = {"organization": project.organization, "project": project, "model": "m", "transport": "http"}
    given |= {"status": "completed", "started_at": NOON, "ended_at": NOON, "lease_until": NOON, "billed_at": NOON}
    first = UsageRecord.objects.count()
    UsageRecord.objects.bulk_create(
        UsageRecord(response_id=f"resp_{first + number}", **given | fields) for number in range(count)
    )


def test_a_line_says_what_the_record_and_the_ledger_say() -> None:
    make_prices()
    project = make_project("acme")
    key = make_key(project)
    credits.grant(project.organization, 5, kind="paid")
    record = make_record(project, api_key=key, cached_tokens=400, reasoning_tokens=7, estimated=True)
    ledger.bill_all()
    record.refresh_from_db()

    (line,) = lines_of(usage_csv.pieces(UsageRecord.objects.all()))

    assert line == {
        "response_id": record.response_id,
        "organization": "acme",
        "project_id": str(project.pk),
        "project": "default",
        "api_key_id": str(key.pk),
        "api_key": "laptop",
        "model": "m",
        "service_tier": "default",
        "transport": "websocket",
        "status": "completed",
        "reason": "",
        "is_warmup": "False",
        "estimated": "True",
        "input_tokens": "1000",
        "cached_tokens": "400",
        "cache_write_tokens": "0",
        "output_tokens": "100",
        "reasoning_tokens": "7",
        "tool_calls": "0",
        "started_at": "2026-11-29 12:00:00+00:00",
        "ended_at": "2026-11-29 12:00:02+00:00",
        "billed_at": str(record.billed_at),
        "currency": "USD",
        "amount": "0.0022",
        "memo": "estimated",
    }


def test_what_was_corrected_costs_what_is_left_and_what_is_unbilled_costs_nothing_yet() -> None:
    make_prices()
    make_record()
    ledger.bill_all()
    ledger.reverse(Journal.objects.get(), "a test")
    make_record()

    corrected, unbilled = lines_of(usage_csv.pieces(UsageRecord.objects.all()))

    assert (corrected["amount"], unbilled["amount"], unbilled["billed_at"]) == ("0.00", "", "")


def test_names_of_others_are_no_formulas() -> None:
    make_record(make_project('=HYPERLINK("http://x")', "@SUM(A1)"), model="-1+1", reason="\t=1")

    (line,) = lines_of(usage_csv.pieces(UsageRecord.objects.all()))

    assert line["organization"] == '\'=HYPERLINK("http://x")'
    assert (line["project"], line["model"], line["reason"]) == ("'@SUM(A1)", "'-1+1", "'\t=1")


def copy_many(count: int) -> None:
    """So many more as the only one there is."""
    table = UsageRecord._meta.db_table
    columns = [field.column for field in UsageRecord._meta.concrete_fields if field.column not in ("id", "response_id")]
    same = ", ".join(columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (response_id, {same}) WITH RECURSIVE numbers(n) AS"
            f" (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})"
            f" SELECT 'resp_copy_' || n, {same} FROM {table}, numbers"
        )


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 23])
def test_pages_hold_each_record_once_in_order(small_pages: None, count: int) -> None:
    make_many(count)

    pages = list(UsageRecord.objects.in_pages("response_id"))

    assert all(1 <= len(page) <= 5 for page in pages)
    assert [row for page in pages for row in page] == list(
        UsageRecord.objects.order_by("pk").values_list("pk", "response_id")
    )


def test_rare_records_are_found_in_few_questions_of_bounded_width(small_pages: None) -> None:
    make_many(3)
    make_many(200, model="other")
    make_many(3)

    with CaptureQueriesContext(connection) as asked:
        found = [row for page in UsageRecord.objects.filter(model="m").in_pages() for row in page]

    assert len(found) == 6
    # In windows of 5, 10, 20, 20, …: never of all that is left.
    assert 10 < len(asked) < 20


def test_what_is_written_meanwhile_neither_hides_nor_doubles_a_settled_record(small_pages: None) -> None:
    """A page by offset would skip as many rows as came before it."""
    make_prices()
    for number in range(30):
        make_record(status="completed" if number % 3 else "in_progress")
    ledger.bill_all()
    settled = set(UsageRecord.objects.billed().values_list("response_id", flat=True))
    pieces = usage_csv.pieces(UsageRecord.objects.billed())

    read = [next(pieces)]
    for piece in pieces:
        read.append(piece)
        UsageRecord.objects.filter(pk__in=UsageRecord.objects.in_progress()[:2]).update(status="failed")
        make_record()
        make_record(started_at=NOON - timedelta(days=1))
        ledger.bill_all()
    told = [line["response_id"] for line in lines_of(read)]

    assert len(told) == len(set(told))
    assert settled <= set(told)


def test_a_long_file_takes_no_more_memory_than_a_short_one() -> None:
    make_many(1)
    # With whatever is made once.
    list(usage_csv.pieces(UsageRecord.objects.all()))
    copy_many(10_000)
    before = sys.getallocatedblocks()

    sizes, grown = zip(
        *((len(piece), sys.getallocatedblocks() - before) for piece in usage_csv.pieces(UsageRecord.objects.all())),
        strict=True,
    )

    assert sum(sizes) > MIB
    assert max(sizes) < MIB / 4
    # Of the interpreter's blocks of memory: all rows at once are 120,000 of them.
    assert max(grown) < 60_000
