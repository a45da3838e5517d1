"""Make the roll-ups anew from the ledger."""

from argparse import ArgumentParser, ArgumentTypeError
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from responses_ws.billing.rebuilding import days_with_usage, rebuild


def _day(value: str) -> date:
    try:
        return date.fromisoformat(value)
    except ValueError as exc:
        raise ArgumentTypeError(f"{value!r} is no day such as 2026-11-30") from exc


class Command(BaseCommand):
    """One line a day. Billing may go on meanwhile: it waits while a day is made."""

    help = "Make the hourly and daily sums of usage anew from the ledger."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--since", type=_day, help="The first day, of UTC (default: the first with usage).")
        parser.add_argument("--until", type=_day, help="The last day, of UTC (default: the last with usage).")

    def handle(self, *args: Any, **options: Any) -> None:
        days = days_with_usage()
        if days is None:
            self.stdout.write("There is no usage.")
            return
        since, until = options["since"] or days[0], options["until"] or days[1]
        if since > until:
            raise CommandError(f"--since {since} is after --until {until}")
        rebuild(since, until, lambda day, rows: self.stdout.write(f"{day}: {rows:,} rows"))
