"""Take prices over from a CSV file, or from the package genai-prices."""

import sys
from argparse import ArgumentParser
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import IntegrityError
from django.utils import timezone

from responses_ws.billing import price_import, price_sources


def _factor(text: str) -> Decimal:
    try:
        factor = Decimal(text)
    except InvalidOperation:
        factor = Decimal(0)
    if not (factor.is_finite() and 0 < factor <= 1_000_000):
        raise CommandError(f"--markup is a factor above 0, such as 1.25, not {text}")
    return factor


class Command(BaseCommand):
    """Prints what would change; ``--apply`` writes it, all of it or nothing. Run again, it changes nothing."""

    help = (
        "Take prices over: what changes ends and starts anew, what is there already is left alone. "
        "CSV columns: model, component, price (per 1,000,000 tokens; of tool_call per 1,000 calls); "
        "optional: currency, service_tier, min_context, valid_from, valid_to."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", nargs="?", help="A CSV file with a header; - is standard input.")
        parser.add_argument("--apply", action="store_true", help="Write it. Without, it is only printed.")
        parser.add_argument(
            "--correct",
            action="store_true",
            help="Prices that turns were billed by may be replaced, too; responses_ws_rerate bills those turns again.",
        )
        genai = parser.add_argument_group("from genai-prices (pip install 'responses-ws[prices]')")
        genai.add_argument("--provider", help="Its id there, such as openai. Instead of a file.")
        genai.add_argument(
            "--model", action="append", metavar="PATTERN", help="Ids there, such as 'gpt-5*'; repeatable."
        )
        genai.add_argument("--as", dest="rename", default="", metavar="NAME", help="What we call the one model.")
        genai.add_argument("--markup", default="1", metavar="FACTOR", help="Times the list price (%(default)s).")
        genai.add_argument("--currency", default="USD", help="Where it is not USD, FACTOR holds the rate, too.")
        genai.add_argument("--history", action="store_true", help="Prices of the past, too.")

    def handle(self, *args: Any, **options: Any) -> None:
        if (options["file"] is None) == (options["provider"] is None):
            raise CommandError("name a CSV file, or a --provider of genai-prices")
        try:
            wanted = self._from_package(options) if options["provider"] else self._from_file(options["file"])
            plan = price_import.take_over(
                wanted,
                timezone.now(),
                apply=options["apply"],
                correct=options["correct"],
                ends_others=options["provider"] is not None,
            )
        except price_sources.PricesRefused as exc:
            raise CommandError(f"Nothing was taken over.\n{exc}") from exc
        except IntegrityError as exc:
            raise CommandError(f"Nothing was taken over: somebody else wrote prices meanwhile ({exc}).") from exc
        for line in plan.lines():
            self.stdout.write(line)
        done = f"{len(plan.added)} new, {len(plan.ended)} ended, {len(plan.removed) + len(plan.withdrawn)} replaced"
        self.stdout.write(f"{done}, {plan.unchanged} as they were.")
        if plan and not options["apply"]:
            self.stdout.write("Nothing was written: say --apply to do it.")
        if plan.withdrawn and options["apply"]:
            self.stdout.write("What was billed by the withdrawn prices is billed again by responses_ws_rerate.")

    def _from_file(self, name: str) -> list[price_sources.WantedPrice]:
        if name == "-":
            return price_sources.read_csv(sys.stdin)
        try:
            with open(name, newline="", encoding="utf-8-sig") as lines:
                return price_sources.read_csv(lines)
        except (OSError, UnicodeDecodeError) as exc:
            raise CommandError(f"{name} cannot be read: {exc}") from exc

    def _from_package(self, options: dict[str, Any]) -> list[price_sources.WantedPrice]:
        if not options["model"]:
            raise CommandError("say which models: --model PATTERN, '*' for all of the provider's")
        wanted, notes = price_sources.read_genai_prices(
            options["provider"],
            options["model"],
            markup=_factor(options["markup"]),
            currency=options["currency"],
            rename=options["rename"],
            with_history=options["history"],
            now=timezone.now(),
        )
        for note in notes:
            self.stderr.write(note)
        return wanted
