"""Telling people that a part of a budget is spent: once for each part and window."""

import logging
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any

from django.core.mail import send_mail
from django.utils import timezone

from responses_ws.models import Budget, BudgetAlert
from responses_ws.signals import budget_alert

from . import money, webhooks

logger = logging.getLogger(__name__)

LATE = timedelta(hours=1)
"""What is billed so long after a window still counts as news of it."""
FIRST_PAUSE = timedelta(seconds=30)
"""Before the second try; twice as long before each further one, so that the eighth is an hour behind the first."""


def notice(organization_ids: Collection[int] | None = None, now: datetime | None = None) -> int:
    """Write down which parts of budgets have been reached, of these organisations or of all. Returns how many are new.

    To be called behind a commit of the ledger: two that commit at once would each miss what the other has added.
    """
    now = now or timezone.now()
    budgets = Budget.objects.filter(is_active=True)
    if organization_ids is not None:
        budgets = budgets.filter(organization_id__in=organization_ids)
    found = [
        BudgetAlert(budget=row, percent=percent, window_start=row.window_start, spent_nano=row.spent_nano)
        for moment in (now, now - LATE)
        for row in budgets.with_spent(moment)
        for percent in row.alert_percents
        if 100 * row.spent_nano >= percent * row.limit_nano
    ]
    known = set(
        BudgetAlert.objects.filter(budget__in={alert.budget_id for alert in found}).values_list(
            "budget", "percent", "window_start"
        )
    )
    new = {
        place: alert for alert in found if (place := (alert.budget_id, alert.percent, alert.window_start)) not in known
    }
    # Whoever writes one second has noticed nothing new.
    BudgetAlert.objects.bulk_create(new.values(), ignore_conflicts=True)
    return len(new)


def tell(now: datetime | None = None) -> int:
    """Tell people what was noticed. What fails is tried again later, each way for itself. Returns how many are told."""
    now = now or timezone.now()
    count = 0
    for alert in BudgetAlert.objects.untold().select_related("budget__organization"):
        if alert.tries and now < alert.created_at + FIRST_PAUSE * (2**alert.tries - 1):
            continue
        count += _tell(alert, now)
    return count


def _tell(alert: BudgetAlert, now: datetime) -> bool:
    # Two workers at once: the second finds that somebody has begun this try.
    if not BudgetAlert.objects.filter(pk=alert.pk, tries=alert.tries, told_at=None).update(tries=alert.tries + 1):
        return False
    errors = []
    for name, way in _ways(alert.budget):
        if name in alert.told:
            continue
        try:
            way(alert)
        except Exception as exc:
            logger.warning("Budget alert %d cannot be told by %s: %s", alert.pk, name, type(exc).__name__)
            errors.append(f"{name}: {type(exc).__name__}: {exc}")
        else:
            alert.told = [*alert.told, name]
            BudgetAlert.objects.filter(pk=alert.pk).update(told=alert.told)
    told_at = None if errors else now
    BudgetAlert.objects.filter(pk=alert.pk).update(told_at=told_at, error="; ".join(errors)[:200])
    return not errors


def _ways(budget: Budget) -> list[tuple[str, Callable[[BudgetAlert], Any]]]:
    ways: list[tuple[str, Callable[[BudgetAlert], Any]]] = [("signal", _signal)]
    if budget.emails:
        ways.append(("email", _email))
    if budget.webhook_url:
        ways.append(("webhook", _webhook))
    return ways


def _facts(alert: BudgetAlert) -> dict[str, Any]:
    budget = alert.budget
    return {
        "alert_id": alert.pk,
        "budget_id": budget.pk,
        "organization_id": budget.organization_id,
        "percent": alert.percent,
        "window_start": alert.window_start,
        "spent_nano": alert.spent_nano,
        "limit_nano": budget.limit_nano,
        "currency": budget.organization.currency,
    }


def _signal(alert: BudgetAlert) -> None:
    # An exception of a receiver is its own; it is logged by Django.
    budget_alert.send_robust(sender=BudgetAlert, **_facts(alert))


def _email(alert: BudgetAlert) -> None:
    budget, currency = alert.budget, alert.budget.organization.currency
    spent, limit = (money.spoken(nano, currency) for nano in (alert.spent_nano, budget.limit_nano))
    since = f"{alert.window_start:%Y-%m-%d %H:%M} UTC"
    what_then = "Requests beyond it are refused." if budget.is_hard else "Nothing is refused: it only tells."
    send_mail(
        # Names may hold line breaks, which a subject must not.
        " ".join(f"{alert.percent} % of the budget {budget} is spent".split()),
        f"{spent} of {limit} are spent since {since}.\n\nBudget: {budget}\n{what_then}\n",
        None,
        budget.emails,
    )


def _webhook(alert: BudgetAlert) -> None:
    facts = _facts(alert)
    facts["window_start"] = alert.window_start.isoformat()
    body = {"type": "budget.alert", "timestamp": alert.created_at.isoformat(), "data": facts}
    webhooks.tell(alert.budget.webhook_url, f"budget_alert_{alert.pk}", body)
