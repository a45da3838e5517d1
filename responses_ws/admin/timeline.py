"""What became of one response, and when: its moments, its events where they are kept, its entries in the ledger."""

import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

import msgspec
from django.urls import reverse

from responses_ws.billing.money import spoken
from responses_ws.models import ResponseEvents, StoredResponse, UsageRecord

from .base import link_to
from .formats import age, milliseconds, thousands
from .panels import PHASES, Phase

MOST_EVENTS = 500
"""Of a response's log, from its beginning: a page is no place for the rest."""

logger = logging.getLogger(__name__)


class Moment(msgspec.Struct, frozen=True):
    """Something that happened, so long after the request came."""

    after: str
    what: str


class Event(msgspec.Struct, frozen=True):
    """One event of the log, as it went over the wire."""

    number: str
    type: str
    size: str
    body: str
    """Empty for who may not see what was said."""


def of(response_id: str, *, may_see_content: bool) -> dict[str, Any] | None:
    """What the page shows; None: there is no such response."""
    records = UsageRecord.objects.select_related("organization", "project__organization", "api_key")
    record = records.filter(response_id=response_id).first()
    if record is None:
        return None
    events = list(islice(_events(record, may_see_content=may_see_content), MOST_EVENTS))
    if events and may_see_content:
        logger.info("a page shows the events of %s", response_id)
    stored = StoredResponse.objects.filter(pk=response_id).only("id").first()
    return {
        "record": record,
        "record_link": link_to(record),
        "stored_link": None if stored is None else link_to(stored),
        "owner_url": _dashboard(record),
        "phases": _phases(record),
        "moments": list(_moments(record)),
        "events": events,
        "most_events": MOST_EVENTS,
        "may_see_content": may_see_content,
        "entries": _entries(record),
        "tokens": _tokens(record),
    }


def _entries(record: UsageRecord) -> list[tuple[Any, str, str, str]]:
    """Link, kind, amount and why of each entry in the ledger, the first one first."""
    currency = record.organization.currency
    return [
        (link_to(journal), journal.get_kind_display(), spoken(journal.debit_nano, currency), journal.memo)
        for journal in record.journals.with_sums().order_by("pk")
    ]


def _dashboard(record: UsageRecord) -> str:
    query = f"key={record.api_key_id}" if record.api_key_id else f"project={record.project_id}&key=none"
    return f"{reverse('admin:responses_ws_dashboard_changelist')}?{query}"


def _tokens(record: UsageRecord) -> list[tuple[str, str]]:
    return [
        ("Input", thousands(record.input_tokens)),
        ("of it cached", thousands(record.cached_tokens)),
        ("Output", thousands(record.output_tokens)),
        ("of it reasoning", thousands(record.reasoning_tokens)),
    ]


def _phases(record: UsageRecord) -> list[Phase]:
    """As on the dashboard, of this one response; empty where it was not timed."""
    duration = record.duration_ms
    if not duration or record.checks_ms is None:
        return []
    render = record.render_ms or 0.0
    first = record.first_token_ms if record.first_token_ms is not None else duration
    parts = {
        "checks": record.checks_ms,
        "render": render,
        "first_token": max(first - record.checks_ms - render, 0),
        "rest": max(duration - first, 0),
    }
    total = sum(parts.values()) or 1
    found, x = [], 0.0
    for name, ms in parts.items():
        width = 100 * ms / total
        found.append(Phase(name, PHASES[name], f"{ms:,.1f} ms", f"{width:.1f}%", f"{x:.3f}", f"{width:.3f}"))
        x += width
    return found


def _moments(record: UsageRecord) -> Iterator[Moment]:
    yield Moment("0 ms", f"asked for, {record.started_at:%Y-%m-%d %H:%M:%S} UTC")
    if record.checks_ms is not None:
        yield Moment(milliseconds(record.checks_ms), "checked: admitted, its context found")
        if record.render_ms is not None:
            yield Moment(milliseconds(record.checks_ms + record.render_ms), "its prompt made, the engine called")
    if record.first_token_ms is not None:
        yield Moment(milliseconds(record.first_token_ms), "first output")
    if record.ended_at is not None:
        ended = record.duration_ms or (record.ended_at - record.started_at) / timedelta(milliseconds=1)
        reason = f" ({record.reason})" if record.reason else ""
        yield Moment(milliseconds(ended), f"{record.get_status_display()}{reason}")
    if record.billed_at is not None:
        yield Moment(age(record.billed_at - record.started_at), "in the ledger")


def _events(record: UsageRecord, *, may_see_content: bool) -> Iterator[Event]:
    """Read a row at a time: a log may be long."""
    for row in ResponseEvents.objects.of(record.project_id, record.response_id).iterator(chunk_size=20):
        for offset, frame in enumerate(row.frames.splitlines()):
            body = json.loads(frame)
            yield Event(
                number=str(body.get("sequence_number", row.first_number + offset)),
                type=str(body.get("type", "")),
                size=f"{thousands(len(frame.encode()))} B",
                body=json.dumps(body, indent=2, ensure_ascii=False) if may_see_content else "",
            )
