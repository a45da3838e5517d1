"""Rate again what was billed."""

from argparse import ArgumentParser
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.dateparse import parse_date, parse_datetime

from responses_ws.billing import money
from responses_ws.billing.rerating import rerate
from responses_ws.models import UsageRecord

SHOWN = 20


class Command(BaseCommand):
    """Prints the difference; ``--apply`` writes it. Run again, it changes nothing."""

    help = "Rate again what was billed, by today's price book for the time of each turn. At least one choice is needed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--model", default="", help="The name that clients asked for.")
        parser.add_argument("--organization", default="", help="Its name.")
        parser.add_argument("--project", default="", help="Its name; say --organization, too, where several have it.")
        parser.add_argument("--response", action="append", default=[], metavar="ID", help="Repeatable.")
        parser.add_argument(
            "--since", metavar="DATE", help="Turns that started from then on; a date, or a time in UTC."
        )
        parser.add_argument("--until", metavar="DATE", help="Turns that started before.")
        parser.add_argument("--memo", default="rated again", help="Why; on each reversal (%(default)s).")
        parser.add_argument("--apply", action="store_true", help="Write it. Without, it is only printed.")

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = {
            **{name: options[name] for name in ("model", "organization", "project")},
            "response_ids": options["response"],
            "since": _moment(options["since"]),
            "until": _moment(options["until"]),
        }
        if not any(chosen.values()):
            raise CommandError("say what to rate again: a model, an organisation, a project, responses, a time")
        records = UsageRecord.objects.matching(**chosen)
        before: Counter[str] = Counter()
        after: Counter[str] = Counter()
        count = 0
        for one in rerate(records, options["memo"], apply=options["apply"]):
            count += 1
            before[one.currency] += one.before_nano
            after[one.currency] += one.after_nano
            if count <= SHOWN:
                amounts = " → ".join(money.spoken(nano, one.currency) for nano in (one.before_nano, one.after_nano))
                memo = f" ({one.memo_after})" if one.memo_after else ""
                self.stdout.write(f"{one.response_id}: {amounts}{memo}")
        if count > SHOWN:
            self.stdout.write(f"… and {count - SHOWN:,} more")
        for currency in sorted(before):
            amounts = " → ".join(money.spoken(nano, currency) for nano in (before[currency], after[currency]))
            self.stdout.write(f"Together: {amounts}")
        self.stdout.write(f"{count} of {records.billed().count()} records cost something else.")
        if count and not options["apply"]:
            self.stdout.write("Nothing was written: say --apply to do it.")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = parse_datetime(text)
        if moment is None and (day := parse_date(text)) is not None:
            moment = datetime(day.year, day.month, day.day)
    except ValueError:
        moment = None
    if moment is None:
        raise CommandError(f"{text} is neither a date such as 2027-01-31 nor a time")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
