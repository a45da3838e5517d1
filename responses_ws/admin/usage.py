"""What was consumed."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, StreamingHttpResponse
from django.urls import path, reverse
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe

from responses_ws.billing import money, usage_csv
from responses_ws.billing.outcomes import explained
from responses_ws.billing.rerating import rerate
from responses_ws.models import Journal, Posting, UsageRecord, UsageRollup

from .base import HAS_UNFOLD, ProjectFilter, ReadOnlyAdmin, link_to
from .formats import dollars, milliseconds, shortened, thousands


def _tokens(field: str, title: str) -> Any:
    """A column that shows a token count with separators."""

    @admin.display(description=title, ordering=field)
    def column(record: UsageRecord) -> str:
        return thousands(getattr(record, field))

    column.__name__ = field  # the class of its cells
    return column


class UnbillableFilter(admin.SimpleListFilter):
    """Dead letters: records that billing has given up."""

    title = "billing"
    parameter_name = "billing"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("failed", "has given up")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(pk__in=UsageRecord.objects.unbillable()) if self.value() == "failed" else queryset


class ModelFilter(admin.SimpleListFilter):
    """The models of the roll-ups: those of the records would be looked for in all of them."""

    title = "model"
    parameter_name = "model"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in UsageRollup.objects.model_names()]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(model=self.value()) if self.value() else queryset


class RenderPathFilter(admin.SimpleListFilter):
    title = "render path"
    parameter_name = "render_path"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in ("append", "rewind", "full")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(render_path=self.value()) if self.value() else queryset


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnlyAdmin):
    """Read-only: a correction is a reversal in the ledger, not another number here."""

    actions = ("bill_again", "compare_rating", "rate_again")

    list_display = (
        "short_id",
        "project",
        "model",
        "status",
        "counted",
        "cost",
        "why",
        _tokens("input_tokens", "input"),
        _tokens("cached_tokens", "cached"),
        _tokens("output_tokens", "output"),
        _tokens("reasoning_tokens", "reasoning"),
        "first_token",
        "started_at",
        "transport",
    )
    list_filter = (
        "status",
        "transport",
        "started_at",
        ("billed_at", admin.EmptyFieldListFilter),
        UnbillableFilter,
        "is_warmup",
        "estimated",
        RenderPathFilter,
        ModelFilter,
        "project__organization",
        ("project", ProjectFilter),
    )
    list_select_related = ("project__organization",)
    search_fields = ("response_id__startswith",)
    search_help_text = "A response id, or its beginning."
    fieldsets = (
        (None, {"fields": ("response_id", "status", "reason", "model", "service_tier", "transport")}),
        ("Owner", {"fields": ("organization", "project", "api_key")}),
        (
            "Tokens",
            {
                "fields": (
                    *("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens"),
                    *("estimated", "is_warmup", "render_path", "rendered_tokens"),
                )
            },
        ),
        ("Time", {"fields": ("started_at", "ended_at", "first_token", "duration", "lease_until")}),
        ("Money", {"fields": ("cost", "outcome", "billed_at", "billing_tries", "billing_error", "entries")}),
    )
    readonly_fields = ("first_token", "duration", "cost", "outcome", "entries")

    def get_urls(self) -> list[Any]:
        export = self.admin_site.admin_view(self.export_view)
        return [path("export.csv", export, name="responses_ws_usagerecord_export"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        answer = super().changelist_view(request, extra_context)
        listed = getattr(answer, "context_data", None) or {}
        if "cl" in listed:
            # What is filtered and searched for, of all pages.
            query = listed["cl"].get_query_string(remove=["p", "all"])
            listed["has_unfold"] = HAS_UNFOLD
            listed["export_url"] = reverse("admin:responses_ws_usagerecord_export") + query
        return answer

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """The records that the list with the same query string has, however many, as CSV."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            records = self.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            return HttpResponseRedirect(reverse("admin:responses_ws_usagerecord_changelist"))
        # A server that is not asynchronous would wait for the end of an asynchronous stream.
        lines = usage_csv.stream if isinstance(request, ASGIRequest) else usage_csv.pieces
        headers = {"Content-Disposition": 'attachment; filename="usage.csv"', "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(lines(records), content_type="text/csv; charset=utf-8", headers=headers)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        return (
            super()
            .get_queryset(request)
            .annotate(cost_nano=Posting.objects.cost_of_each(), memo=Journal.objects.memo_of_each())
        )

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("responses_ws.replay_billing")

    @admin.action(description="Try again to bill selected records", permissions=["replay"])
    def bill_again(self, request: HttpRequest, records: QuerySet[Any]) -> None:
        again = UsageRecord.objects.unbillable().filter(pk__in=records.values("pk")).update(billing_tries=0)
        self.message_user(request, f"{again} records will be tried again within seconds.")

    @admin.action(description="Show what rating again would change", permissions=["replay"])
    def compare_rating(self, request: HttpRequest, records: QuerySet[Any]) -> None:
        self._rate(request, records, apply=False)

    @admin.action(description="Rate selected records again", permissions=["replay"])
    def rate_again(self, request: HttpRequest, records: QuerySet[Any]) -> None:
        self._rate(request, records, apply=True)

    def _rate(self, request: HttpRequest, records: QuerySet[Any], *, apply: bool) -> None:
        rows = UsageRecord.objects.filter(pk__in=records.order_by().values("pk"))
        changed = list(rerate(rows, f"rated again by {request.user.get_username()}", apply=apply))
        for currency in sorted({one.currency for one in changed}):
            own = [one for one in changed if one.currency == currency]
            sums = (sum(one.before_nano for one in own), sum(one.after_nano for one in own))
            before, after = (money.spoken(nano, currency) for nano in sums)
            verb = "were rated again" if apply else "would cost something else"
            self.message_user(request, f"{len(own)} records {verb}: {before} → {after}.", messages.WARNING)
        if not changed:
            self.message_user(request, "Nothing changes: they cost what they cost.")

    @admin.display(description="response", ordering="response_id")
    def short_id(self, record: UsageRecord) -> str:
        return shortened(record.response_id)

    @admin.display(description="first token", ordering="first_token_ms")
    def first_token(self, record: UsageRecord) -> str:
        return milliseconds(record.first_token_ms)

    @admin.display(description="duration", ordering="duration_ms")
    def duration(self, record: UsageRecord) -> str:
        return milliseconds(record.duration_ms)

    @admin.display(description="cost")
    def cost(self, record: UsageRecord) -> str:
        return "–" if record.billed_at is None else dollars(record.cost_nano)

    @admin.display(description="tokens", ordering="estimated")
    def counted(self, record: UsageRecord) -> str:
        return "estimated" if record.estimated else "measured"

    @admin.display(description="why")
    def why(self, record: UsageRecord) -> str:
        return record.memo or ""

    @admin.display(description="outcome")
    def outcome(self, record: UsageRecord) -> str:
        return explained(record, record.memo)

    @admin.display(description="ledger entries")
    def entries(self, record: UsageRecord) -> str:
        return format_html_join(mark_safe("<br>"), "{}", ((link_to(journal),) for journal in record.journals.all()))
