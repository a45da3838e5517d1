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


def pictures() -> None:
    """What the pictures of the documentation show."""
    from responses_ws.models import Component, Organization, Price, Project

    Project.objects.create(organization=Organization.objects.create(name="Acme"), name="Agents")
    for component, nano in ((Component.INPUT, 100_000_000), (Component.OUTPUT, 400_000_000)):
        Price.objects.create(model="scripted", component=component, nano_per_million=nano)
