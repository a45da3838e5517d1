"""The process that runs background responses, where web workers leave them to it, and what others have left."""

import asyncio
from argparse import ArgumentParser
from typing import Any

from django.core.management import BaseCommand, CommandError

from responses_ws.management.running import CannotStart, run


class Command(BaseCommand):
    help = "Run background responses that wait for a process. SIGTERM lets running ones end; others are handed back."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--concurrency", type=int, default=64, help="Responses at once.")
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, help="Answer there at /healthz, /readyz and /metrics.")
        parser.add_argument(
            "--drain-seconds",
            type=float,
            default=600.0,
            help="How long running responses may take after SIGTERM. The container's stop grace is 20 s more.",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        places = options["concurrency"]
        if places < 1:
            raise CommandError("--concurrency is 1 or more.")
        work = run(
            places,
            drain_seconds=options["drain_seconds"],
            monitor_at=None if options["port"] is None else (options["host"], options["port"]),
            ready=lambda: self.stdout.write(f"Running background responses, {places} at once"),
        )
        try:
            asyncio.run(work)
        except CannotStart as exc:
            raise CommandError(str(exc)) from exc
