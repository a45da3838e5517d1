"""The office: numbers for staff. Importing it registers the pages with Django's admin site."""

from . import (
    accounts,
    billing,
    budgets,
    conversations,
    credits,
    dashboard,
    deliveries,
    invoices,
    live,
    prices,
    prompts,
    reconciliations,
    responses,
    safety,
    secrets,
    usage,
)

__all__ = [
    "accounts",
    "billing",
    "budgets",
    "conversations",
    "credits",
    "dashboard",
    "deliveries",
    "invoices",
    "live",
    "prices",
    "prompts",
    "reconciliations",
    "responses",
    "safety",
    "secrets",
    "usage",
]
