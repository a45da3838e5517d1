"""Groups for the people of an office: who sees, who runs it, who bills, who owns it."""

from collections.abc import Iterable

from django.contrib.auth.models import Permission
from django.db.models import Q, QuerySet

EDIT = ("add", "change", "delete")
KEEP = ("add", "change")
"""Where rows are ended, not deleted."""


def _codenames(actions: Iterable[str], *models: str) -> set[str]:
    return {f"{action}_{model}" for action in actions for model in models}


OPERATOR = {
    *_codenames(KEEP, "adminkey", "apikey", "project", "prompttemplate", "promptversion"),
    *_codenames(EDIT, "safetyrule", "websocketshare"),
    *("revoke_apikey", "close_socket", "use_playground", "review_flag", "replay_billing"),
}
ACCOUNTANT = {
    *_codenames(KEEP, "price", "organization", "invoice", "creditgrant"),
    *_codenames(EDIT, "budget"),
    *("settle_invoice", "replay_billing"),
}

GROUPS = {
    "viewer": "Sees numbers: usage, money, keys; not what was said.",
    "operator": "Sees the same; keys, limits, safety, sockets, the playground.",
    "accountant": "Sees the same; prices, credit, budgets, invoices.",
    "owner": "Everything, what was said included.",
}


def permissions_of(group: str) -> QuerySet[Permission]:
    """What the group may."""
    ours = Permission.objects.filter(content_type__app_label="responses_ws")
    if group == "owner":
        return ours
    more = {"viewer": set(), "operator": OPERATOR, "accountant": ACCOUNTANT}[group]
    return ours.filter(Q(codename__startswith="view_") | Q(codename__in=more)).exclude(codename="view_content")
