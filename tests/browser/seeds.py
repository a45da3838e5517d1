"""Rows for sites of the browser tests, made by the ORM beside their server."""

from typing import Any

from .canaries import SHORT


def playground() -> dict[str, Any]:
    """Two projects, one of a bad name, and a price; a key to paste."""
    from responses_ws.models import ApiKey, Component, Organization, Price, Project

    acme = Organization.objects.create(name="Acme")
    project = Project.objects.create(organization=acme, name="Agents")
    Project.objects.create(organization=Organization.objects.create(name=SHORT), name=SHORT)
    for component, nano in ((Component.INPUT, 100_000_000), (Component.OUTPUT, 400_000_000)):
        Price.objects.create(model="scripted", component=component, nano_per_million=nano)
    return {"key": ApiKey.objects.create_with_secret(project=project, name="pasted").secret}


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
