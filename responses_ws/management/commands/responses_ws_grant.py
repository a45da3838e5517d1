"""Give an organisation credit."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.dateparse import parse_date, parse_datetime

from responses_ws.billing import credits, money
from responses_ws.models import CreditGrant, Organization


class Command(BaseCommand):
    """Prints the grant's number and what is left of it. With ``--key`` it can be run again: a grant is made once."""

    help = "Give an organisation prepaid or promotional credit, in its currency."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", help="Its name.")
        parser.add_argument("amount", help="In the organisation's currency, such as 250 or 12.50.")
        parser.add_argument("--promotional", action="store_true", help="Given away. Without: bought and paid.")
        parser.add_argument("--priority", type=int, default=50, help="The smallest is used first (%(default)s).")
        parser.add_argument("--expires", metavar="DATE", help="What is left then is gone; a date, or a time in UTC.")
        parser.add_argument("--note", default="", help="What it is for, as invoices and the admin say it.")
        parser.add_argument("--key", help="Of all grants with the same key one is made.")

    def handle(self, *args: Any, **options: Any) -> None:
        organization = Organization.objects.filter(name=options["organization"]).first()
        if organization is None:
            raise CommandError(f"no organisation is called {options['organization']}")
        kind = str(CreditGrant.Kind.PROMOTIONAL if options["promotional"] else CreditGrant.Kind.PAID)
        try:
            grant = credits.grant(
                organization,
                money.nano_of(options["amount"]),
                kind=kind,
                priority=options["priority"],
                expires_at=_moment(options["expires"]),
                note=options["note"],
                idempotency_key=options["key"],
            )
        except ValueError as exc:
            raise CommandError(str(exc)) from exc
        left, amount = (money.spoken(nano, grant.currency) for nano in (grant.remaining_nano, grant.amount_nano))
        self.stdout.write(f"Grant {grant.pk} of {organization}: {left} of {amount} left.")


def _moment(text: str | None) -> datetime | None:
    """A date is its midnight. Raises ValueError."""
    if text is None:
        return None
    moment = parse_datetime(text)
    if moment is None:
        day = parse_date(text)
        if day is None:
            raise ValueError(f"{text} is not a date such as 2027-01-31, nor a time")
        moment = datetime(day.year, day.month, day.day)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
