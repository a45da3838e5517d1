"""What an organisation has used and what it was charged: for its administrators' programs."""

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from responses_ws.billing import usage_csv
from responses_ws.models import AdminKey, Organization, UsageRecord, UsageRollup
from responses_ws.protocol.usage_shapes import (
    Amount,
    CostsBucket,
    CostsPage,
    CostsResult,
    UsageBucket,
    UsagePage,
    UsageResult,
)
from responses_ws.runtime import dbpool

from .admin_keys import admin_key_of
from .base import ApiView
from .exceptions import json_response
from .reports import WIDTHS, Report, costs_asked, records_asked, usage_asked

NANO = 10**9


class UsageView(ApiView):
    """``GET /v1/organization/usage/completions``."""

    async def get(self, request: HttpRequest) -> HttpResponse:
        return await _answer(request, usage_page)


class CostsView(ApiView):
    """``GET /v1/organization/costs``."""

    async def get(self, request: HttpRequest) -> HttpResponse:
        return await _answer(request, costs_page)


class RecordsView(ApiView):
    """``GET /v1/organization/usage/records.csv``: what has been billed, a line a response, however many there are."""

    async def get(self, request: HttpRequest) -> StreamingHttpResponse:
        key: AdminKey = await admin_key_of(request)
        asked = records_asked(request.GET, datetime.now(UTC))
        rows = UsageRecord.objects.billed().filter(organization=key.organization_id).between(asked.start, asked.end)
        lines = usage_csv.stream(rows.among(asked.project_ids, asked.api_key_ids, asked.models))
        headers = {"Content-Disposition": 'attachment; filename="usage.csv"', "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(lines, content_type="text/csv; charset=utf-8", headers=headers)


async def _answer(request: HttpRequest, page: Callable[[int, Any, datetime], Any]) -> HttpResponse:
    key: AdminKey = await admin_key_of(request)
    return json_response(await dbpool.run(page, key.organization_id, request.GET, datetime.now(UTC)))


def usage_page(organization_id: int, query: Any, now: datetime) -> UsagePage:
    """Minutes are read from records, whatever is wider from roll-ups. Raises InvalidRequest."""
    asked = usage_asked(query, now)
    results: dict[datetime, list[UsageResult]] = defaultdict(list)
    for row in _rows(organization_id, asked, asked.group_by):
        uncached = row["input"] - row["cached"] - row["cache_write"]
        result = UsageResult(
            input_tokens=row["input"],
            input_cached_tokens=row["cached"],
            input_cache_write_tokens=row["cache_write"],
            input_uncached_tokens=uncached,
            output_tokens=row["output"],
            num_model_requests=row["requests"],
            **_values(row, asked.group_by),
        )
        results[row["start"]].append(result)
    data = [
        UsageBucket(start_time=_unix(start), end_time=_unix(start + asked.width), results=results[start])
        for start in asked.buckets
    ]
    return UsagePage(data=data, has_more=asked.next_page is not None, next_page=asked.next_page)


def costs_page(organization_id: int, query: Any, now: datetime) -> CostsPage:
    """Raises InvalidRequest."""
    asked = costs_asked(query, now)
    currency = Organization.objects.values_list("currency", flat=True).get(pk=organization_id).lower()
    columns = tuple("model" if name == "line_item" else name for name in asked.group_by)
    results: dict[datetime, list[CostsResult]] = defaultdict(list)
    for row in _rows(organization_id, asked, columns):
        values = _values(row, columns)
        if "model" in values:
            values["line_item"] = values.pop("model")
        amount = Amount(value=row["amount"] / NANO, currency=currency)
        results[row["start"]].append(CostsResult(amount=amount, **values))
    data = [
        CostsBucket(start_time=_unix(start), end_time=_unix(start + asked.width), results=results[start])
        for start in asked.buckets
    ]
    return CostsPage(data=data, has_more=asked.next_page is not None, next_page=asked.next_page)


def _rows(organization_id: int, asked: Report, columns: tuple[str, ...]) -> Any:
    """Rows of ``start``, the columns, and the sums of `BUCKET_SUMS`; only of this organisation."""
    buckets = asked.buckets
    if not buckets:
        return []
    rows: Any
    if asked.width == WIDTHS["1m"]:
        rows = UsageRecord.objects.billed()
    elif asked.width == WIDTHS["1h"]:
        rows = UsageRollup.objects.hours()
    else:
        rows = UsageRollup.objects.days()
    rows = rows.of_organization(organization_id).between(buckets[0], buckets[-1] + asked.width)
    return rows.among(asked.project_ids, asked.api_key_ids, asked.models).in_buckets(columns)


def _values(row: dict[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    """What a result was grouped by: ids are strings, and no key is null."""
    values = {name: row[name] for name in columns}
    return {name: str(value) if value not in (None, 0) else None for name, value in values.items()}


def _unix(moment: datetime) -> int:
    return int(moment.timestamp())
