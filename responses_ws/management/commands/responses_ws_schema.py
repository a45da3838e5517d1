"""Print the API's machine-readable documents."""

from argparse import ArgumentParser
from typing import Any

import msgspec
from django.core.management.base import BaseCommand

from responses_ws.transports.schema.asyncapi import asyncapi
from responses_ws.transports.schema.openapi import openapi


class Command(BaseCommand):
    help = "Print the API's documents as JSON: OpenAPI 3.1 for HTTP, AsyncAPI 3.0 for the socket."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--openapi", action="store_true", help="OpenAPI (the default).")
        which.add_argument("--asyncapi", action="store_true", help="AsyncAPI.")

    def handle(self, *_args: Any, **options: Any) -> None:
        document = asyncapi() if options["asyncapi"] else openapi()
        self.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
