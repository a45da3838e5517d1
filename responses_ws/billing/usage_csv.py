"""Usage records as CSV, a line each: any number of them, in little memory."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from responses_ws.models import Journal, Posting
from responses_ws.models.usage import UsageRecordQuerySet
from responses_ws.runtime import dbpool

from . import money, spreadsheets

COLUMNS = {
    "response_id": "response_id",
    "organization": "organization__name",
    "project_id": "project",
    "project": "project__name",
    "api_key_id": "api_key",
    "api_key": "api_key__name",
    "model": "model",
    "service_tier": "service_tier",
    "transport": "transport",
    "status": "status",
    "reason": "reason",
    "is_warmup": "is_warmup",
    "estimated": "estimated",
    "input_tokens": "input_tokens",
    "cached_tokens": "cached_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "output_tokens": "output_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "tool_calls": "tool_calls",
    "started_at": "started_at",
    "ended_at": "ended_at",
    "billed_at": "billed_at",
    "currency": "organization__currency",
    "amount": "csv_nano",
    "memo": "csv_memo",
}
"""Names of columns, and where their values are."""
AMOUNT, BILLED = (list(COLUMNS).index(name) for name in ("amount", "billed_at"))
HEAD = spreadsheets.line(COLUMNS).encode()


def pieces(records: UsageRecordQuerySet) -> Iterator[bytes]:
    """The file in pieces of a few hundred lines, the oldest record first. Asks the database for each."""
    yield HEAD
    priced = records.annotate(csv_nano=Posting.objects.cost_of_each(), csv_memo=Journal.objects.memo_of_each())
    for page in priced.in_pages(*COLUMNS.values()):
        yield "".join(spreadsheets.line(_cells(list(values))) for _pk, *values in page).encode()


async def stream(records: UsageRecordQuerySet) -> AsyncIterator[bytes]:
    """The same off the event loop. Raises Overloaded, and then the file is not whole."""
    rest = pieces(records)
    while (piece := await dbpool.run(next, rest, None)) is not None:
        yield piece


def _cells(values: list[Any]) -> list[Any]:
    # Exact, as a number; and nothing where nobody knows yet.
    is_billed = values[BILLED] is not None
    values[AMOUNT] = spreadsheets.Number(money.plain(values[AMOUNT])) if is_billed else None
    return values
