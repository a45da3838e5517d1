"""Background responses that have not ended: which process runs each, and what another would need to."""

from datetime import datetime, timedelta

from django.db import models
from django.utils import timezone

from .accounts import Project
from .responses import StoredResponse

WAITS_AT_MOST = timedelta(hours=1)
"""After so long without a process that runs it a response has failed: none is there, or all have too much to do."""


class BackgroundRunQuerySet(models.QuerySet["BackgroundRun"]):
    def free(self, now: datetime) -> "BackgroundRunQuerySet":
        """Those that nobody runs, or whose process was not heard of for too long; the oldest first."""
        return self.filter(lease_until__lte=now).order_by("created_at")

    def wanted(self, now: datetime) -> "BackgroundRunQuerySet":
        """Those that run, or that may still be hoped to find a process."""
        return self.filter(lease_until__gt=now - WAITS_AT_MOST)

    def backlog(self, now: datetime) -> tuple[int, datetime | None]:
        """How many nobody runs, and since when the first of them has waited; None without any."""
        free = self.filter(lease_until__lte=now).aggregate(count=models.Count("pk"), oldest=models.Min("lease_until"))
        return free["count"], free["oldest"]

    def waiting(self) -> "BackgroundRunQuerySet":
        """Those that no process has claimed yet, or that one has handed back."""
        return self.filter(owner="")


class BackgroundRun(models.Model):
    """The right to run a background response, and what that takes. It goes in the commit in which the response ends.

    Who claims it counts up ``fence``, and whoever writes anything about the response names the number of its claim in
    the same transaction: a process that was thought dead, and is not, finds another number there and writes nothing.
    """

    response = models.OneToOneField(StoredResponse, primary_key=True, on_delete=models.CASCADE, related_name="run")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    request = models.TextField(help_text="What was accepted, sealed: it may hold credentials of tools.")
    conversation_id = models.CharField(max_length=128, blank=True)
    holder = models.CharField(max_length=128, blank=True, help_text="By this name it holds its conversation.")
    owner = models.CharField(max_length=128, blank=True, help_text="The process that runs it; empty: none does.")
    fence = models.PositiveIntegerField(default=1, help_text="Number of its newest claim.")
    deaths = models.PositiveIntegerField(default=0, help_text="Of processes that ran it.")
    lease_until = models.DateTimeField(db_index=True, help_text="After this anybody may claim it.")
    next_number = models.PositiveIntegerField(default=0, help_text="The sequence_number after its last written event.")
    is_repeatable = models.BooleanField(
        default=True, help_text="Nothing of its output was told, and no tool was called: it may run again."
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects = BackgroundRunQuerySet.as_manager()

    def __str__(self) -> str:
        return str(self.pk)
