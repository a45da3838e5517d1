"""Usage records: one row per response, which is also the outbox of billing."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import models
from django.db.models import Count, F, Min, Q, Sum
from django.db.models.functions import TruncDate, TruncMinute
from django.utils import timezone

from responses_ws.protocol.usage import Usage

from .accounts import ApiKey, Organization, Project
from .background import BackgroundRun

TOKEN_SUMS = {
    "tokens": Sum(F("input_tokens") + F("output_tokens")),
    "uncached": Sum(F("input_tokens") - F("cached_tokens")),
    "cached": Sum("cached_tokens"),
    "answer": Sum(F("output_tokens") - F("reasoning_tokens")),
    "reasoning": Sum("reasoning_tokens"),
}
"""Sums of tokens in parts that do not overlap: uncached + cached + answer + reasoning = tokens."""

PAGE = 500
"""Rows that are read at once on the way through very many."""
WIDEST = 100 * PAGE
"""Ids that one query looks at on that way, where rows that are wanted are rare."""
BACKLOG_COUNTED = 10_000
TIMES_LOOKED_AT = 5_000


BILLING_TRIES = 5
"""Failures of billing after which a record is left to a person."""


def _counts() -> dict[str, Count]:
    """``responses`` that have ended, and the ``failures`` among them: ours, not the client's leaving."""
    failed = Q(status__in=(UsageRecord.Status.FAILED, UsageRecord.Status.ABANDONED))
    return {
        "responses": Count("pk", filter=~Q(status=UsageRecord.Status.IN_PROGRESS)),
        "failures": Count("pk", filter=failed),
    }


class UsageRecordQuerySet(models.QuerySet["UsageRecord"]):
    def ended(self) -> "UsageRecordQuerySet":
        return self.exclude(status=UsageRecord.Status.IN_PROGRESS)

    def unbilled(self) -> "UsageRecordQuerySet":
        """Ended and not yet in the ledger, oldest first."""
        return self.ended().filter(billed_at=None, billing_tries__lt=BILLING_TRIES).order_by("id")

    def awaiting_bill(self) -> "UsageRecordQuerySet":
        """In progress, or unbilled: what they cost is still to come."""
        return self.filter(billed_at=None, billing_tries__lt=BILLING_TRIES)

    def unbillable(self) -> "UsageRecordQuerySet":
        """Dead letters: ended, and billing has failed for them too often."""
        return self.ended().filter(billed_at=None, billing_tries__gte=BILLING_TRIES).order_by("id")

    def billed(self) -> "UsageRecordQuerySet":
        return self.exclude(billed_at=None)

    def without_journal(self) -> "UsageRecordQuerySet":
        """Records that the ledger does not know."""
        return self.filter(journals=None)

    def billed_twice(self) -> "UsageRecordQuerySet":
        """Records with more than one usage entry that nobody reversed (``entries``)."""
        standing = Q(journals__kind="usage", journals__reversed_by=None)
        return self.annotate(entries=Count("journals", filter=standing)).filter(entries__gt=1)

    def of(self, project: Project) -> "UsageRecordQuerySet":
        return self.filter(project=project)

    def between(self, start: datetime, end: datetime | None = None) -> "UsageRecordQuerySet":
        """Started in [start, end)."""
        rows = self.filter(started_at__gte=start)
        return rows if end is None else rows.filter(started_at__lt=end)

    def matching(
        self,
        *,
        organization: str = "",
        project: str = "",
        model: str = "",
        response_ids: Iterable[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> "UsageRecordQuerySet":
        """Of an organisation, a project, a model, by their names; of responses; started in [since, until)."""
        names = {"organization__name": organization, "project__name": project, "model": model}
        rows = self.filter(**{field: name for field, name in names.items() if name})
        response_ids = list(response_ids)
        if response_ids:
            rows = rows.filter(response_id__in=response_ids)
        if since is not None:
            rows = rows.filter(started_at__gte=since)
        return rows if until is None else rows.filter(started_at__lt=until)

    def totals(self) -> dict[str, int]:
        """Sums over the rows: ``responses``, ``failures``, ``tokens``, and tokens by part (see `TOKEN_SUMS`)."""
        sums = self.order_by().aggregate(**_counts(), **TOKEN_SUMS)
        return {name: value or 0 for name, value in sums.items()}

    def by_day(self) -> "models.QuerySet[Any]":
        """Rows of ``day`` (of UTC) and the sums of `totals`, in order; days without records are absent."""
        return self._by(day=TruncDate("started_at", tzinfo=UTC)).order_by("day")

    def by_model(self) -> "models.QuerySet[Any]":
        """Rows of ``name`` (the model) and the sums of `totals`, the most tokens first."""
        return self._by(name=F("model")).order_by("-tokens", "name")

    def by_key(self) -> "models.QuerySet[Any]":
        """Rows of ``key_id``, ``key_name``, ``project_name`` and the sums of `totals`, the most tokens first."""
        names = {"key_name": F("api_key__name"), "project_name": F("project__name")}
        return self._by(key_id=F("api_key"), **names).order_by("-tokens", "key_id")

    def by_render_path(self) -> dict[str, int]:
        """How many responses were asked for in token ids, by the path that their prompt took."""
        rows = self.order_by().exclude(render_path="").values_list("render_path").annotate(Count("pk"))
        return dict(rows)

    def by_transport(self) -> dict[str, int]:
        """How many turns have ended, by the way they were asked for."""
        return dict(self.ended().order_by().values_list("transport").annotate(Count("pk")))

    def newest_times(self) -> "models.QuerySet[Any, tuple[str, float | None, float]]":
        """(transport, first_token_ms, duration_ms) of the newest `TIMES_LOOKED_AT` turns that have ended."""
        timed = self.exclude(duration_ms=None).order_by("-started_at")[:TIMES_LOOKED_AT]
        return timed.values_list("transport", "first_token_ms", "duration_ms")

    def first_token_percentile(self, fraction: float) -> float | None:
        """The milliseconds to the first token that ``fraction`` of the responses stayed within; None without any.

        The nearest rank, by position in the sorted rows: a value that really occurred, the same on every database.
        """
        timed = self.exclude(first_token_ms=None).order_by("first_token_ms")
        rank = math.ceil(timed.count() * fraction)
        return timed.values_list("first_token_ms", flat=True)[rank - 1] if rank else None

    def _by(self, **keys: Any) -> "models.QuerySet[Any]":
        return self.order_by().values(**keys).annotate(**_counts(), **TOKEN_SUMS)

    def backlog(self) -> tuple[int, datetime | None]:
        """How many rows there are, and when the one ended that ended first; None without any.

        Looks at the first `BACKLOG_COUNTED` only, so that it costs little just when there are many.
        """
        counted = self[:BACKLOG_COUNTED].aggregate(count=Count("pk"), oldest=Min("ended_at"))
        return counted["count"], counted["oldest"]

    def of_organization(self, organization_id: int) -> "UsageRecordQuerySet":
        # Through its projects, by which there is an index.
        projects = Project.objects.filter(organization=organization_id).values("pk")
        return self.filter(organization=organization_id, project__in=projects)

    def among(
        self,
        project_ids: Collection[int] | None = None,
        api_key_ids: Collection[int] | None = None,
        models: Collection[str] | None = None,
    ) -> "UsageRecordQuerySet":
        """Only of some projects, keys and models; None: of all."""
        wanted = {"project__in": project_ids, "api_key__in": api_key_ids, "model__in": models}
        return self.filter(**{name: some for name, some in wanted.items() if some is not None})

    def in_buckets(self, columns: Sequence[str]) -> "models.QuerySet[Any]":
        """Rows of a minute's ``start``, the columns and sums, as `RollupQuerySet.in_buckets` has them."""
        minutes = self.order_by().annotate(start=TruncMinute("started_at", tzinfo=UTC)).values("start", *columns)
        sums = {
            "requests": Count("pk"),
            "input": Sum("input_tokens"),
            "cached": Sum("cached_tokens"),
            "cache_write": Sum("cache_write_tokens"),
            "output": Sum("output_tokens"),
        }
        return minutes.annotate(**sums).order_by("start", *columns)

    def in_pages(self, *columns: str) -> Iterator[list[tuple[Any, ...]]]:
        """Tuples of the id and the columns, in the order of ids, up to the newest of now, in pages of `PAGE` or fewer.

        Each page is a query of its own: nothing is held between them, neither rows nor a transaction, and whoever
        reads slowly holds up nobody. The next one begins behind the last id. So a row that is wanted all the while is
        there once, whatever is written meanwhile. A query looks at a window of ids, for else the database might sort
        all that is left for each page; where little is found the next window is wider.
        """
        newest = self.model.objects.order_by("-pk").values_list("pk", flat=True).first()
        oldest = self.model.objects.order_by("pk").values_list("pk", flat=True).first()
        if newest is None or oldest is None:
            return
        rows = self.order_by("pk").values_list("pk", *columns)
        behind, width = oldest - 1, PAGE
        while behind < newest:
            until = min(behind + width, newest)
            page = list(rows.filter(pk__gt=behind, pk__lte=until)[:PAGE])
            if page:
                yield page
            behind = page[-1][0] if len(page) == PAGE else until
            width = max(width // 2, PAGE) if len(page) == PAGE else min(width * 2, WIDEST)

    def in_progress(self) -> "UsageRecordQuerySet":
        return self.filter(status=UsageRecord.Status.IN_PROGRESS)

    def lapsed(self, now: datetime | None = None) -> "UsageRecordQuerySet":
        """In progress, but the process that held the lease is gone. A background response has another to run it."""
        now = now or timezone.now()
        return (
            self.in_progress()
            .filter(lease_until__lt=now)
            .exclude(response_id__in=BackgroundRun.objects.wanted(now).values("pk"))
        )


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
        COMPACT = "compact", "compaction"

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

    tool_calls = models.PositiveIntegerField(
        default=0, help_text="Calls of hosted tools that were run, unless they failed."
    )

    render_path = models.CharField(
        max_length=8, blank=True, help_text="How its prompt was made: append, rewind, full; empty: not of token ids."
    )
    rendered_tokens = models.PositiveBigIntegerField(
        default=0, help_text="Part of input tokens: encoded for this response; the rest was there already."
    )

    started_at = models.DateTimeField(db_index=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    checks_ms = models.FloatField(null=True, blank=True, help_text="Admission, context and validation, to the prompt.")
    render_ms = models.FloatField(null=True, blank=True, help_text="Making the prompt, until the first output.")
    first_token_ms = models.FloatField(null=True, blank=True, help_text="From request to first output event.")
    duration_ms = models.FloatField(null=True, blank=True)
    lease_until = models.DateTimeField(help_text="A reaper may close the row after this.")
    billed_at = models.DateTimeField(null=True, blank=True)
    billing_tries = models.PositiveSmallIntegerField(default=0, help_text="How often billing has failed for it.")
    billing_error = models.CharField(max_length=200, blank=True, help_text="Why it could not be billed.")

    objects = UsageRecordQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        permissions = [("replay_billing", "Can bill usage records again")]
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

    @property
    def usage(self) -> Usage:
        """The tokens as the protocol counts them."""
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens,
            estimated=self.estimated,
        )


class Dashboard(UsageRecord):
    """Usage as a page of figures: the admin lists models, so the page is one. No table, no permissions of its own."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = "dashboard"


class Live(UsageRecord):
    """What goes on now, as a page."""

    class Meta:
        proxy = True
        default_permissions = ()
        permissions = [("close_socket", "Can close clients' sockets")]
        verbose_name_plural = "live view"


class Playground(UsageRecord):
    """Trying models out, as a page."""

    class Meta:
        proxy = True
        default_permissions = ()
        permissions = [("use_playground", "Can use the playground")]
        verbose_name_plural = "playground"
