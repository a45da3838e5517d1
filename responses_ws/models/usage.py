"""Usage records: one row per response, which is also the outbox of billing."""

from datetime import datetime

from django.db import models
from django.utils import timezone

from .accounts import ApiKey, Organization, Project


class UsageRecordQuerySet(models.QuerySet["UsageRecord"]):
    def ended(self) -> "UsageRecordQuerySet":
        return self.exclude(status=UsageRecord.Status.IN_PROGRESS)

    def unbilled(self) -> "UsageRecordQuerySet":
        """Ended and not yet in the ledger, oldest first."""
        return self.ended().filter(billed_at=None).order_by("id")

    def in_progress(self) -> "UsageRecordQuerySet":
        return self.filter(status=UsageRecord.Status.IN_PROGRESS)

    def lapsed(self, now: datetime | None = None) -> "UsageRecordQuerySet":
        """In progress, but the process that held the lease is gone."""
        return self.in_progress().filter(lease_until__lt=now or timezone.now())


class UsageRecord(models.Model):
    """What one response consumed, and how it ended.

    Opened while the engine already works, closed before the terminal event. Tokens are int; cached tokens are part
    of input, reasoning tokens part of output. Billing looks for ended rows with ``billed_at`` null.
    """

    class Status(models.TextChoices):
        IN_PROGRESS = "in_progress", "in progress"
        COMPLETED = "completed", "completed"
        INCOMPLETE = "incomplete", "incomplete"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"
        ABANDONED = "abandoned", "abandoned"

    class Transport(models.TextChoices):
        WEBSOCKET = "websocket", "WebSocket"
        SSE = "sse", "SSE"
        HTTP = "http", "HTTP"

    response_id = models.CharField(max_length=128, unique=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="usage")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="usage")
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, null=True, blank=True, related_name="usage")
    model = models.CharField(max_length=200, help_text="The name the client asked for; prices are found by it.")
    service_tier = models.CharField(max_length=20, default="default")
    transport = models.CharField(max_length=10, choices=Transport.choices)
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.IN_PROGRESS)
    reason = models.CharField(max_length=64, blank=True, help_text="Error code, or why the response is incomplete.")
    is_warmup = models.BooleanField(default=False, help_text="generate: false; the engine did no work.")
    estimated = models.BooleanField(default=False, help_text="The engine did not say; pieces were counted instead.")

    input_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0, help_text="Part of input tokens.")
    cache_write_tokens = models.PositiveBigIntegerField(default=0, help_text="Part of input tokens.")
    output_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0, help_text="Part of output tokens.")

    started_at = models.DateTimeField(db_index=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    first_token_ms = models.FloatField(null=True, blank=True, help_text="From request to first output event.")
    duration_ms = models.FloatField(null=True, blank=True)
    lease_until = models.DateTimeField(help_text="A reaper may close the row after this.")
    billed_at = models.DateTimeField(null=True, blank=True)

    objects = UsageRecordQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.CheckConstraint(
                condition=models.Q(cached_tokens__lte=models.F("input_tokens") - models.F("cache_write_tokens")),
                name="responses_ws_usage_cached_is_part",
            ),
            models.CheckConstraint(
                condition=models.Q(reasoning_tokens__lte=models.F("output_tokens")),
                name="responses_ws_usage_reasoning_is_part",
            ),
        ]
        indexes = [
            models.Index(fields=("id",), name="responses_ws_usage_unbilled", condition=models.Q(billed_at=None)),
            models.Index(
                fields=("lease_until",), name="responses_ws_usage_open", condition=models.Q(status="in_progress")
            ),
            models.Index(fields=("project", "started_at"), name="responses_ws_usage_project"),
        ]

    def __str__(self) -> str:
        return self.response_id
