"""What becomes of findings: a row for people to look at, and a signal."""

from collections.abc import Sequence
from typing import Any

import msgspec
from django.utils import timezone

from responses_ws.models import Flag, Project
from responses_ws.runtime import background, dbpool
from responses_ws.runtime.writer import writer
from responses_ws.safety.base import Finding, Passage
from responses_ws.safety.passages import redacted
from responses_ws.signals import content_flagged

from .admission import Principal

EXCERPT_CHARACTERS = 200
AROUND_CHARACTERS = 40


class Raised(msgspec.Struct, frozen=True):
    """One finding that is new to its response."""

    side: str
    classifier: str
    category: str
    action: str
    score: float | None
    excerpt: str
    """What it is about; empty where nothing of the response may be kept."""


def excerpt_of(passages: Sequence[Passage], finding: Finding, among: Sequence[Finding]) -> str:
    """The words that a finding is about, with a little of what is around them; what ``among`` the findings is to be
    redacted stays out of it."""
    if not finding.spans:
        return " ".join(passage.text for passage in passages)[:EXCERPT_CHARACTERS]
    first = finding.spans[0]
    text = passages[first.passage].text
    start = max(0, first.start - AROUND_CHARACTERS)
    end = first.end + AROUND_CHARACTERS
    secret = [
        (max(span.start, start) - start, min(span.end, end) - start)
        for other in among
        for span in other.spans
        if other.action == "redact" and span.passage == first.passage and span.start < end and span.end > start
    ]
    return redacted(text[start:end], secret)[:EXCERPT_CHARACTERS]


def raise_flags(principal: Principal, response_id: str, model: str, raised: Sequence[Raised]) -> None:
    """Write them beside the turn, which waits for nothing; then tell the host project."""
    shared = {
        "response_id": response_id,
        "project_id": principal.project_id,
        "api_key_id": principal.api_key_id,
        "model": model,
        "created_at": timezone.now(),
    }
    background.spawn(_raise([{**shared, **msgspec.structs.asdict(flag)} for flag in raised]))


async def _raise(rows: list[dict[str, Any]]) -> None:
    await writer.write(lambda: _write(rows))
    if content_flagged.has_listeners():
        await dbpool.run(_tell, rows)


def _write(rows: list[dict[str, Any]]) -> None:
    """In the writer's thread: excerpts only for a project that keeps them."""
    project_id = rows[0]["project_id"]
    keeps = any(row["excerpt"] for row in rows) and Project.objects.keeps_excerpts(project_id)
    Flag.objects.raise_all([Flag(**row) if keeps else Flag(**{**row, "excerpt": ""}) for row in rows])


def _tell(rows: list[dict[str, Any]]) -> None:
    """In a thread of the pool."""
    for row in rows:
        said = {name: row[name] for name in ("response_id", "project_id", "api_key_id", "model")}
        said |= {name: row[name] for name in ("side", "classifier", "category", "action", "score")}
        content_flagged.send_robust(sender=Flag, **said)
