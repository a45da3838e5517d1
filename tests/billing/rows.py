"""Rows for the tests of money: only what a test says is said, the rest is plausible."""

import itertools
from datetime import UTC, datetime, timedelta

from responses_ws.models import ApiKey, Component, Organization, Price, Project, UsageRecord

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
PER_MILLION = {Component.INPUT: 2_000_000_000, Component.CACHED_INPUT: 500_000_000, Component.OUTPUT: 8_000_000_000}
"""$2, $0.50 and $8 for a million tokens."""

_numbers = itertools.count(1)


def make_project(organization: str = "acme", name: str = "default") -> Project:
    owner, _ = Organization.objects.get_or_create(name=organization)
    project, _ = Project.objects.get_or_create(organization=owner, name=name)
    return project


def make_key(project: Project, name: str = "laptop") -> ApiKey:
    return ApiKey.objects.create_with_secret(project=project, name=name)


def make_prices(model: str = "m", per_million: dict[str, int] | None = None, **interval: datetime) -> list[Price]:
    """One price a component, valid long before `NOON` unless ``valid_from`` and ``valid_to`` say otherwise."""
    interval.setdefault("valid_from", NOON - timedelta(days=365))
    return [
        Price.objects.create(model=model, component=component, nano_per_million=nano, **interval)
        for component, nano in (per_million or PER_MILLION).items()
    ]


def make_record(project: Project | None = None, **fields: object) -> UsageRecord:
    """A completed turn of 1,000 tokens in and 100 out, two seconds long, started at `NOON`."""
    project = project or make_project()
    started_at = fields.pop("started_at", NOON)
    plausible = {
        "response_id": f"resp_{next(_numbers)}",
        "model": "m",
        "transport": "websocket",
        "status": "completed",
        "input_tokens": 1_000,
        "output_tokens": 100,
        "ended_at": started_at + timedelta(seconds=2),
        "lease_until": started_at + timedelta(seconds=60),
    }
    if fields.get("status") == "in_progress":
        plausible["ended_at"] = None
    return UsageRecord.objects.create(
        organization=project.organization, project=project, started_at=started_at, **plausible | fields
    )
