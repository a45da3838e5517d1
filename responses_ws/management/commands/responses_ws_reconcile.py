"""Compare usage records, ledger and balances."""

import sys
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from responses_ws.billing.reconcile import note, reconcile
from responses_ws.models import Journal, UsageRecord


class Command(BaseCommand):
    """Prints every difference and exits with 1 if there is one, for cron and monitoring."""

    help = "Check that usage records, ledger entries and account balances agree."

    def handle(self, *args: Any, **options: Any) -> None:
        started_at = timezone.now()
        differences = reconcile(started_at)
        note(started_at, differences)
        for difference in differences:
            self.stdout.write(str(difference))
        waiting = UsageRecord.objects.unbilled().count()
        self.stdout.write(f"{Journal.objects.count():,} journals, {waiting:,} records waiting to be billed.")
        if differences:
            self.stdout.write(f"{len(differences):,} differences.")
            sys.exit(1)
        self.stdout.write("The books agree.")
