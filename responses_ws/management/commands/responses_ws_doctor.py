"""Versions, settings, database, Redis, broker and engines, with the cure beside each fault."""

import sys
from typing import Any

from django.core.management import BaseCommand

from responses_ws.management.examination import examine


class Command(BaseCommand):
    help = "Look for what keeps responses_ws from working. Exits with 1 where something does."
    # Faults of the settings are findings like the others, not a reason to stop.
    requires_system_checks = ()

    def handle(self, *_args: Any, **_options: Any) -> None:
        faults = 0
        for finding in examine():
            faults += finding.is_fault
            if finding.is_fault:
                word = self.style.ERROR("FAULT")
            else:
                word = self.style.WARNING("note ") if finding.cure else self.style.SUCCESS("ok   ")
            self.stdout.write(f"{word}  {finding.subject}: {finding.detail}")
            if finding.cure:
                self.stdout.write(f"       cure: {finding.cure}")
        if faults:
            self.stdout.write(self.style.ERROR(f"{faults} fault(s)."))
            sys.exit(1)
        self.stdout.write("No fault found.")
