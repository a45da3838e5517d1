"""Rows for sites of the browser tests, made by the ORM beside their server."""

import json
from datetime import timedelta
from typing import Any

from .canaries import ALL, CANARIES, SHORT


def playground() -> dict[str, Any]:
    """Two projects, one of a bad name, and a price; a key to paste."""
    from responses_ws.models import ApiKey, Component, Organization, Price, Project

    acme = Organization.objects.create(name="Acme")
    project = Project.objects.create(organization=acme, name="Agents")
    Project.objects.create(organization=Organization.objects.create(name=SHORT), name=SHORT)
    for component, nano in ((Component.INPUT, 100_000_000), (Component.OUTPUT, 400_000_000)):
        Price.objects.create(model="scripted", component=component, nano_per_million=nano)
    return {"key": ApiKey.objects.create_with_secret(project=project, name="pasted").secret}


def dashboard() -> dict[str, Any]:
    """An hour of usage, of two organisations, one of which has programs for names; and what stands beside it.

    Its newest response has events, in which programs are said.
    """
    from django.utils import timezone

    from responses_ws.billing import ledger
    from responses_ws.models import Budget, Flag, Reconciliation, ResponseEvents
    from tests.admin.conftest import say
    from tests.billing.rows import make_key, make_prices, make_project, make_record

    now = timezone.now()
    programs, agents = make_project(f"{SHORT}owner", f"{SHORT}project"), make_project("Acme", "Agents")
    times = {"checks_ms": 2.0, "render_ms": 8.0, "first_token_ms": 110.0, "duration_ms": 1_110.0}
    for project, name, model, count in ((programs, f"{SHORT}key", SHORT, 3), (agents, "laptop", "small", 2)):
        make_prices(model)
        key = make_key(project, name)
        for number in range(count):
            started_at = now - timedelta(minutes=2 + number)
            transport = "sse" if number else "websocket"
            make_record(project, api_key=key, model=model, started_at=started_at, transport=transport, **times)
    told = make_record(
        programs, api_key=programs.api_keys.get(), model=SHORT, started_at=now - timedelta(minutes=1), **times
    )
    make_record(programs, model=SHORT, status="failed", reason=CANARIES[0], started_at=now - timedelta(minutes=9))
    ledger.bill_all()
    events = ({"type": "response.created"}, {"type": "response.output_text.delta", "delta": ALL})
    frames = "\n".join(json.dumps(event | {"sequence_number": number}) for number, event in enumerate(events))
    say(programs, told.response_id, [{"id": "msg_1", "type": "message", "content": ALL}])
    ResponseEvents.objects.create(
        project=programs, response_id=told.response_id, first_number=0, count=2, frames=frames
    )
    Budget.objects.create(organization=programs.organization, project=programs, limit_nano=9_000_000)
    Flag.objects.create(
        project=programs, response_id=told.response_id, model=SHORT, side="input", classifier="rules", category="bomb",
        action="flag",
    )  # fmt: skip
    Reconciliation.objects.create(started_at=now, ended_at=now, differences=2)
    return {"told": told.response_id}


def pictures() -> dict[str, Any]:
    """Two months of usage, and its invoices."""
    from responses_ws.billing import invoices
    from responses_ws.management.seeding import seed
    from responses_ws.models import ApiKey, Component, Invoice, Organization, Price

    seed()
    for component, nano in ((Component.INPUT, 100_000_000), (Component.OUTPUT, 400_000_000)):
        Price.objects.create(model="scripted", component=component, nano_per_million=nano)
    Organization.objects.filter(name="Northwind").update(
        billed_to="Northwind Ltd\n1 Harbour Road\nPorto\nVAT PT500000000"
    )
    invoices.make_drafts()
    # Of an organisation they are finalised in their order.
    drafts = Invoice.objects.filter(organization__name="Northwind", status="draft").order_by("period_start")
    for draft in drafts:
        invoices.finalize(draft)
    keys = [ApiKey.objects.create_with_secret(project=key.project, name=key.name) for key in ApiKey.objects.all()]
    return {
        "keys": [key.secret for key in keys],
        "invoice": drafts.model.objects.filter(organization__name="Northwind").latest("period_start").pk,
    }
