"""What the dashboard can be narrowed to, the way back, and what comes first."""

from collections.abc import Callable
from typing import Any

import msgspec
from django.urls import reverse

from responses_ws.models import ApiKey, Organization, Price, Project, UsageRollup

from .scope import Scope

MOST_CHOICES = 200
"""Of a list to choose from; what is further down is reached through the rankings."""


class Choice(msgspec.Struct, frozen=True):
    """A list to choose from, as a form has it: value and words."""

    name: str
    title: str
    every: str
    chosen: str
    options: list[tuple[str, str]]


def choices(scope: Scope) -> list[Choice]:
    """What the filters offer."""
    organization, project = scope.organization, scope.project
    organizations = [(str(pk), name) for pk, name in Organization.objects.values_list("pk", "name")[:MOST_CHOICES]]
    found = [
        Choice(
            "organization",
            "Organisation",
            "All organisations",
            str(organization.pk) if organization else "",
            _with(organizations, organization),
        )
    ]
    if organization is not None:
        of_owner = Project.objects.filter(organization=organization).values_list("pk", "name")[:MOST_CHOICES]
        projects = _with([(str(pk), name) for pk, name in of_owner], project)
        found.append(Choice("project", "Project", "All projects", str(project.pk) if project else "", projects))
    if project is not None:
        of_project = ApiKey.objects.filter(project=project).values_list("pk", "name")[:MOST_CHOICES]
        keys = _with([(str(pk), name) for pk, name in of_project], scope.api_key)
        chosen = str(scope.api_key.pk) if scope.api_key else "none" if scope.is_keyless else ""
        found.append(Choice("key", "Key", "All keys", chosen, [*keys, ("none", "No key")]))
    # Of its time whatever the model: who has chosen one wants to choose another.
    of_all = scope.within(UsageRollup.objects) if not scope.model else _without_model(scope)
    models = sorted(set(of_all.order_by().values_list("model", flat=True).distinct()[:MOST_CHOICES]) | {scope.model})
    found.append(Choice("model", "Model", "All models", scope.model, [(name, name) for name in models if name]))
    if len(scope.currencies) > 1 and organization is None:
        found.append(Choice("currency", "Currency", "", scope.currency, [(one, one) for one in scope.currencies]))
    return found


def _without_model(scope: Scope) -> Any:
    return msgspec.structs.replace(scope, model="").within(UsageRollup.objects)


def _with(options: list[tuple[str, str]], chosen: Any) -> list[tuple[str, str]]:
    """What is chosen is always offered."""
    if chosen is None or str(chosen.pk) in dict(options):
        return options
    return [(str(chosen.pk), chosen.name), *options]


def trail(scope: Scope) -> list[tuple[str, str]]:
    """The way from all organisations to what is shown: words and URL, the last one without."""
    steps = [("All organisations", scope.url(organization=""))]
    if scope.organization is not None:
        steps.append((scope.organization.name, scope.url(organization=scope.organization.pk)))
    if scope.project is not None:
        steps.append((scope.project.name, scope.url(project=scope.project.pk)))
    if scope.api_key is not None:
        steps.append((scope.api_key.name, ""))
    elif scope.is_keyless:
        steps.append(("No key", ""))
    return [*steps[:-1], (steps[-1][0], "")]


def first_steps(may: Callable[[str], bool]) -> list[tuple[str, str, bool]]:
    """What a newcomer does first: words, URL or empty, and whether it is done."""

    def to_add(model: str) -> str:
        return reverse(f"admin:responses_ws_{model}_add") if may(f"responses_ws.add_{model}") else ""

    return [
        ("Make a project, and an organisation that pays for it", to_add("project"), Project.objects.exists()),
        ("Make an API key; its secret is shown once", to_add("apikey"), ApiKey.objects.exists()),
        ("Say what a model costs: before that, its turns are entered as zero", to_add("price"), Price.objects.exists()),
    ]
