"""Weeks of plausible usage for a demo and its pictures: the same every time, billed as all usage is."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from responses_ws.billing import ledger
from responses_ws.billing.reconcile import note, reconcile
from responses_ws.models import ApiKey, Budget, Component, Flag, Organization, Price, Project, UsageRecord

DAYS = 62
PREFIX = "resp_seed_"

WHO = (
    # Organisation, project, key, turns on a working day, the part of them over WebSocket.
    ("Northwind", "coding agents", "ci", 26, 0.95),
    ("Northwind", "coding agents", "laptops", 18, 0.9),
    ("Northwind", "support chat", "production", 14, 0.3),
    ("Umbrella Labs", "research", "notebooks", 9, 0.5),
    ("Umbrella Labs", "research", "evaluation", 6, 0.1),
    ("Fabrikam", "translation", "batch", 8, 0.0),
)
MODELS = {
    # Prices of input, cached input and output in nano-USD for a million tokens; how often; tokens a second.
    "large": (2_500_000_000, 250_000_000, 10_000_000_000, 3, 55),
    "small": (400_000_000, 100_000_000, 1_600_000_000, 5, 130),
    "reasoner": (1_100_000_000, 275_000_000, 4_400_000_000, 2, 80),
}
FAILURES = ("engine_unavailable", "engine_error", "engine_error", "engine_timeout")


def seed(now: datetime | None = None) -> int:
    """Make it, unless it is there. Returns how many responses are new. Takes a few seconds.

    The same rows for the same hour of ``now``: names, counts and moments come from a generator of their own.
    """
    if UsageRecord.objects.filter(response_id__startswith=PREFIX).exists():
        return 0
    now = (now or timezone.now()).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    _prices(now)
    keys = [(_key(*names), turns, share) for *names, turns, share in WHO]
    records = [record for key, turns, share in keys for record in _records(key, turns, share, now)]
    records.sort(key=lambda record: record.started_at)
    for number, record in enumerate(records):
        record.response_id = f"{PREFIX}{number:06}"
    UsageRecord.objects.bulk_create(records, batch_size=500)
    ledger.bill_all()
    _budgets()
    _flags(records)
    started_at = timezone.now()
    note(started_at, reconcile(started_at))
    return len(records)


def _key(organization: str, project: str, name: str) -> ApiKey:
    owner, _ = Organization.objects.get_or_create(name=organization)
    of_owner, _ = Project.objects.get_or_create(organization=owner, name=project)
    found = ApiKey.objects.filter(project=of_owner, name=name).first()
    return found or ApiKey.objects.create_with_secret(project=of_owner, name=name)


def _prices(now: datetime) -> None:
    for model, (*nanos, _often, _pace) in MODELS.items():
        if Price.objects.filter(model=model).exists():
            continue
        components = (Component.INPUT, Component.CACHED_INPUT, Component.OUTPUT)
        since = now - timedelta(days=DAYS + 1)
        Price.objects.bulk_create(
            Price(model=model, component=component, nano_per_million=nano, valid_from=since)
            for component, nano in zip(components, nanos, strict=True)
        )


def _budgets() -> None:
    """One that is nearly used up, and one that is not."""
    northwind = Organization.objects.get(name="Northwind")
    for project, limit in (("coding agents", 27), ("support chat", 400)):
        of_project = Project.objects.get(organization=northwind, name=project)
        Budget.objects.get_or_create(
            organization=northwind, project=of_project, defaults={"limit_nano": limit * 10**9, "is_hard": False}
        )


def _flags(records: list[UsageRecord]) -> None:
    """A few findings that wait for somebody."""
    found = (("email_address", "redact"), ("bomb", "refuse"), ("aws_access_key", "redact"))
    for record, (category, action) in zip(records[-40::12], found, strict=False):
        Flag.objects.create(
            project_id=record.project_id,
            api_key_id=record.api_key_id,
            response_id=record.response_id,
            model=record.model,
            side="input",
            classifier="rules",
            category=category,
            action=action,
            created_at=record.ended_at,
        )


def _records(key: ApiKey, turns: int, share: float, now: datetime) -> Iterator[UsageRecord]:
    """What was asked for with one key: more by day than by night, less on Sundays, and more every week."""
    chance = random.Random(f"{key.project} {key.name}")  # noqa: S311 - a picture, no secret
    for ago in range(DAYS, -1, -1):
        day = now.replace(hour=0) - timedelta(days=ago)
        busy = turns * (0.35 if day.weekday() >= 5 else 1.0) * (1.0 + 0.6 * (DAYS - ago) / DAYS)
        # An evening when the engine was down.
        is_bad = ago == 9
        for _ in range(max(round(chance.gauss(busy, busy / 5)), 0)):
            hour = min(max(chance.gauss(14, 4), 0), 23.9)
            started_at = day + timedelta(hours=hour)
            if started_at < now:
                yield _record(key, chance, started_at, share, is_bad=is_bad and hour > 15)


def _record(key: ApiKey, chance: random.Random, started_at: datetime, share: float, *, is_bad: bool) -> UsageRecord:
    model = chance.choices(list(MODELS), [often for *_prices, often, _pace in MODELS.values()])[0]
    pace = MODELS[model][-1] * chance.uniform(0.7, 1.2)
    is_socket = chance.random() < share
    context = int(chance.lognormvariate(10.4 if is_socket else 9.4, 0.7))
    cached = int(context * chance.uniform(0.7, 0.97)) if is_socket else int(context * chance.uniform(0, 0.4))
    output = int(chance.lognormvariate(6.0, 0.8)) + 1
    reasoning = int(output * chance.uniform(0.3, 0.7)) if model == "reasoner" else 0
    checks, render = chance.uniform(0.8, 2.5), chance.uniform(0.3, 1.5) + (0 if is_socket else context / 8000)
    first = checks + render + (context - cached) / 25 + chance.lognormvariate(4.4, 0.5)
    duration = first + 1000 * output / pace
    status, reason = "completed", ""
    fate = chance.random()
    if fate < (0.45 if is_bad else 0.008):
        status, reason = "failed", chance.choice(FAILURES)
    elif fate < 0.03:
        status, reason = "cancelled", "client_left"
    elif fate < 0.045:
        status, reason = "incomplete", "max_output_tokens"
    ended_at = started_at + timedelta(milliseconds=duration)
    return UsageRecord(
        organization_id=key.project.organization_id,
        project_id=key.project_id,
        api_key=key,
        model=model,
        transport="websocket" if is_socket else chance.choice(("sse", "sse", "http")),
        status=status,
        reason=reason,
        input_tokens=context,
        cached_tokens=cached,
        output_tokens=0 if status == "failed" else output,
        reasoning_tokens=0 if status == "failed" else reasoning,
        started_at=started_at,
        ended_at=ended_at,
        lease_until=ended_at,
        checks_ms=checks,
        render_ms=render,
        first_token_ms=None if status == "failed" else first,
        duration_ms=duration,
    )
