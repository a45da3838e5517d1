"""The ledger to look at."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from responses_ws.models import Account, Journal, Posting, RatedLine

from .base import ProjectFilter, ReadOnlyAdmin, ReadOnlyInline, link_to
from .formats import dollars, shortened, thousands
from .prices import per_unit


class RatedLineInline(ReadOnlyInline):
    model = RatedLine
    fields = ("component", "tokens", "per_million", "amount")
    readonly_fields = fields
    verbose_name_plural = "the working"

    def get_queryset(self, request: HttpRequest) -> QuerySet[RatedLine]:
        return super().get_queryset(request).select_related("price")

    @admin.display(description="tokens, or calls")
    def tokens(self, line: RatedLine) -> str:
        return thousands(line.quantity)

    @admin.display(description="per million tokens")
    def per_million(self, line: RatedLine) -> str:
        return "–" if line.price is None else per_unit(line.price)

    @admin.display(description="amount")
    def amount(self, line: RatedLine) -> str:
        return dollars(line.amount_nano)


class PostingInline(ReadOnlyInline):
    model = Posting
    fields = ("account", "debit", "credit")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Posting]:
        return super().get_queryset(request).select_related("account__organization")

    @admin.display(description="debit")
    def debit(self, posting: Posting) -> str:
        return dollars(posting.amount_nano) if posting.amount_nano > 0 else ""

    @admin.display(description="credit")
    def credit(self, posting: Posting) -> str:
        return dollars(-posting.amount_nano) if posting.amount_nano < 0 else ""


@admin.register(Journal)
class JournalAdmin(ReadOnlyAdmin):
    list_display = ("response", "kind", "project", "model", "amount", "memo", "occurred_at", "posted_at")
    list_filter = (
        "kind",
        "occurred_at",
        ("memo", admin.EmptyFieldListFilter),
        "usage__organization",
        ("usage__project", ProjectFilter),
    )
    list_select_related = ("usage__project__organization",)
    search_fields = ("usage__response_id__startswith",)
    search_help_text = "A response id, or its beginning."
    fields = ("idempotency_key", "kind", "usage_link", "amount", "memo", "reverses", "occurred_at", "posted_at")
    readonly_fields = fields
    inlines = (RatedLineInline, PostingInline)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Journal]:
        return super().get_queryset(request).with_sums()

    @admin.display(description="response", ordering="idempotency_key")
    def response(self, journal: Journal) -> str:
        return shortened(journal.idempotency_key if journal.usage is None else journal.usage.response_id)

    @admin.display(description="project")
    def project(self, journal: Journal) -> str:
        return "–" if journal.usage is None else str(journal.usage.project)

    @admin.display(description="model", ordering="usage__model")
    def model(self, journal: Journal) -> str:
        return "–" if journal.usage is None else journal.usage.model

    @admin.display(description="amount", ordering="debit_nano")
    def amount(self, journal: Journal) -> str:
        return dollars(journal.debit_nano)

    @admin.display(description="usage record")
    def usage_link(self, journal: Journal) -> SafeString | str:
        return link_to(journal.usage)


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    list_display = ("organization", "kind", "currency", "balance")
    list_filter = ("kind", "organization")
    list_select_related = ("organization",)
    fields = list_display
    readonly_fields = list_display

    @admin.display(description="balance", ordering="balance_nano")
    def balance(self, account: Account) -> str:
        return dollars(account.balance_nano)
