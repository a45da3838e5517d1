"""Budgets as the database has them: which there are, and what is spent of them."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.db import connections, router, transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from responses_ws.connection import budgets
from responses_ws.connection.budgets import Share
from responses_ws.models import Budget, CreditGrant, Organization, UsageRecord, UsageRollup
from responses_ws.protocol.usage import Usage
from responses_ws.runtime.holds import Reading

from . import outcomes
from .pricebook import PriceBook

CREDIT = "credit"


def hard_budgets() -> list[budgets.Budget]:
    """All that turns can be refused by: hard budgets, and the credit of prepaid organisations."""
    rows = Budget.objects.filter(is_active=True, is_hard=True).select_related("organization", "project", "api_key")
    prepaid = Organization.objects.filter(is_prepaid=True)
    return [*map(rule_of, rows), *map(credit_of, prepaid)]


def rule_of(row: Budget) -> budgets.Budget:
    """The row as the rule takes it."""
    if row.api_key is not None:
        whose = f"key {row.api_key.name}"
    elif row.project is not None:
        whose = f"project {row.project.name}"
    else:
        whose = f"organization {row.organization.name}"
    return budgets.Budget(
        name=f"b{row.pk}",
        organization_id=row.organization_id,
        kind=row.window,
        limit_nano=row.limit_nano,
        currency=row.organization.currency,
        of=f"{whose} for the model {row.model}" if row.model else whose,
        project_id=row.project_id,
        api_key_id=row.api_key_id,
        model=row.model,
    )


def credit_of(organization: Organization) -> budgets.Budget:
    """What a prepaid organisation may use."""
    return budgets.Budget(
        name=CREDIT,
        organization_id=organization.pk,
        kind="total",
        limit_nano=0,
        currency=organization.currency,
        of=f"organization {organization.name}",
    )


def spent_nano(share: Share) -> int:
    """What is billed of a budget in its window; of credit, what is left of it, below 0."""
    budget, window = share.budget, share.window
    if budget.is_credit:
        return -(_live_grants(budget, timezone.now()).aggregate(left=Sum("remaining_nano"))["left"] or 0)
    rows = UsageRollup.objects.days().between(window.start, window.end)
    return rows.narrowed(**_whose(budget)).amount()


def read(share: Share, names: Sequence[str], is_first: bool, mine: Collection[str], book: PriceBook) -> Reading:
    """What the database says of a share; see `runtime.holds.Read`. Uses the ORM."""
    organization_id = share.budget.organization_id
    with _one_moment():
        # In this order: what is billed between the two is in the sum and still held, which lasts until the next look.
        billed = _billed_of(names)
        spent = spent_nano(share)
        unbilled = dict(_unbilled(share, book)) if is_first else {}
        is_quiet = not is_first or not _others_run(organization_id, mine)
        true_until = _true_until(share)
    return Reading(spent_nano=spent, billed=billed, unbilled=unbilled, is_quiet=is_quiet, true_until=true_until)


def cost_of(
    book: PriceBook,
    *,
    organization_id: int,
    model: str,
    service_tier: str,
    started_at: datetime,
    status: str,
    is_warmup: bool,
    usage: Usage,
    tool_calls: int,
) -> int:
    """What the ledger will charge for a response that ends like this."""
    if outcomes.waiver_for(status, is_warmup=is_warmup, policy=outcomes.current_policy()):
        return 0
    currency = book.currency_of(organization_id)
    return book.charge(currency, model, service_tier, started_at, usage, tool_calls).amount_nano


def _whose(budget: budgets.Budget) -> dict[str, Any]:
    """What its usage has in common."""
    return {
        "organization_id": budget.organization_id,
        "project_id": budget.project_id,
        "api_key_id": budget.api_key_id,
        "model": budget.model,
    }


def _live_grants(budget: budgets.Budget, now: datetime) -> QuerySet[CreditGrant]:
    owned = CreditGrant.objects.filter(organization_id=budget.organization_id, currency=budget.currency)
    return owned.usable_at(now).order_by()


def _true_until(share: Share) -> float:
    """When credit expires, what is left is another sum."""
    if share.budget.is_credit:
        expiring = _live_grants(share.budget, timezone.now()).exclude(expires_at=None)
        first = expiring.order_by("expires_at").values_list("expires_at", flat=True).first()
        if first is not None:
            return first.timestamp()
    return float("inf")


_CHUNK = 500


def _billed_of(names: Sequence[str]) -> list[str]:
    billed = UsageRecord.objects.billed()
    found: list[str] = []
    for start in range(0, len(names), _CHUNK):
        asked = names[start : start + _CHUNK]
        found += billed.filter(response_id__in=asked).order_by().values_list("response_id", flat=True)
    return found


def _unbilled(share: Share, book: PriceBook) -> Iterator[tuple[str, int]]:
    """Responses of a share that have ended and are in no sum yet, and what they will cost."""
    whose = {name: value for name, value in _whose(share.budget).items() if value}
    records = UsageRecord.objects.ended().filter(billed_at=None, **whose)
    if share.window.start is not None:
        records = records.between(share.window.start, share.window.end)
    for record in records.order_by("id").iterator():
        cost = cost_of(
            book,
            organization_id=record.organization_id,
            model=record.model,
            service_tier=record.service_tier,
            started_at=record.started_at,
            status=record.status,
            is_warmup=record.is_warmup,
            usage=record.usage,
            tool_calls=record.tool_calls,
        )
        if cost:
            yield record.response_id, cost


def _others_run(organization_id: int, mine: Collection[str]) -> bool:
    running = UsageRecord.objects.in_progress().filter(organization_id=organization_id).order_by()
    # As many as are known may be in the way, and one more tells.
    found = running.values_list("response_id", flat=True)[: len(mine) + 1]
    return any(name not in mine for name in found)


@contextmanager
def _one_moment() -> Iterator[None]:
    """All that is read within is of the same moment, where the database can do that without locking anybody out."""
    using = router.db_for_read(UsageRecord)
    connection = connections[using]
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        yield
        return
    with transaction.atomic(using=using):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
