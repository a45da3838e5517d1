"""Create an API key from the command line."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import IntegrityError, transaction

from responses_ws.models import AdminKey, ApiKey, Organization, Project


class Command(BaseCommand):
    """Prints the key, alone, on standard output, so that ``KEY=$(manage.py responses_ws_createkey me)`` works."""

    help = "Create an API key and print it. It cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="What the key is called in the admin.")
        parser.add_argument("--project", default="default", help="Created if missing (default: %(default)s).")
        parser.add_argument("--organization", default="default", help="Created if missing (default: %(default)s).")
        parser.add_argument(
            "--admin",
            action="store_true",
            help="An admin key: it reads what the organization uses, and opens nothing else.",
        )
        parser.add_argument("--zero-retention", action="store_true", help="Nothing that is said with it is kept.")
        parser.add_argument("--key", help="Use this value instead of a random one; for demos and tests.")

    def handle(self, *args: Any, **options: Any) -> None:
        value = options["key"]
        if value is not None and not (value.isascii() and value.isprintable() and value.strip() == value != ""):
            raise CommandError("--key must be printable ASCII without spaces around it: it travels in a header")
        if options["admin"]:
            self._admin_key(options["organization"], options["name"], value)
            return
        try:
            with transaction.atomic():
                organization, _ = Organization.objects.get_or_create(name=options["organization"])
                project, _ = Project.objects.get_or_create(organization=organization, name=options["project"])
                key = ApiKey.objects.create_with_secret(
                    project=project, name=options["name"], key=value, zero_retention=options["zero_retention"]
                )
        except IntegrityError as exc:
            raise CommandError("an API key with this value exists already") from exc
        self.stderr.write(f"Key {key.name!r} of project {project}. Keep it: only its digest is stored.")
        self._print(key.secret, value)

    def _admin_key(self, organization_name: str, name: str, value: str | None) -> None:
        try:
            with transaction.atomic():
                organization, _ = Organization.objects.get_or_create(name=organization_name)
                key = AdminKey.objects.create_with_secret(organization=organization, name=name, key=value)
        except IntegrityError as exc:
            raise CommandError("an admin key with this value exists already") from exc
        self.stderr.write(f"Admin key {key.name!r} of {organization}. Keep it: only its digest is stored.")
        self._print(key.secret, value)

    def _print(self, secret: str, chosen: str | None) -> None:
        if chosen is not None and len(chosen) < 32:
            self.stderr.write("This value is short enough to guess; use it on your own machine only.")
        self.stdout.write(secret)
