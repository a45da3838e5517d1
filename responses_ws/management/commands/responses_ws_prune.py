"""Delete what nobody can use any more."""

from typing import Any

from django.core.management.base import BaseCommand

from responses_ws.stores.pruning import prune


class Command(BaseCommand):
    """What the Celery task ``responses_ws.prune`` does, for those without a beat."""

    help = "Delete expired and deleted responses with their content, and what else nobody can use any more."

    def handle(self, *args: Any, **options: Any) -> None:
        deleted = prune()
        told = ", ".join(f"{count:,} {what}" for what, count in deleted.items()) or "nothing"
        self.stdout.write(f"Deleted {told}.")
