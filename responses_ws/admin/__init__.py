"""The office: numbers for staff. Importing it registers the pages with Django's admin site."""

from . import accounts, billing, dashboard, responses, usage

__all__ = ["accounts", "billing", "dashboard", "responses", "usage"]
