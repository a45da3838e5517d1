"""Prices, and the ledger to look at."""

from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from responses_ws.billing.pricing import MAX_AMOUNT_NANO
from responses_ws.models import Account, Journal, Posting, Price, RatedLine

from .base import ModelAdmin, ProjectFilter, ReadOnlyAdmin, ReadOnlyInline, TextInput, link_to
from .formats import NANO_PER_DOLLAR, dollars, shortened, thousands


class PriceForm(forms.ModelForm):
    """A price as people say it, USD for a million tokens; stored as an integer of nano-USD."""

    usd_per_million = forms.DecimalField(
        label="USD per million tokens",
        min_value=0,
        max_value=MAX_AMOUNT_NANO // NANO_PER_DOLLAR,
        max_digits=16,
        decimal_places=9,
        widget=TextInput(attrs={"inputmode": "decimal"}),
        help_text="Up to nine decimals, for example 2.50.",
    )

    class Meta:
        model = Price
        fields = ("model", "component", "valid_from", "valid_to")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.is_used:
            # Not only hidden: a declared field would still be taken from a forged post.
            del self.fields["usd_per_million"]
        elif self.instance.pk:
            nano = self.instance.nano_per_million
            self.initial["usd_per_million"] = dollars(nano).replace("$", "").replace(",", "")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        usd = cleaned.get("usd_per_million")
        if usd is not None:
            # Decimal only moves its point here: exact for every price the field lets in.
            self.instance.nano_per_million = int(Decimal(usd).scaleb(9))
        return cleaned

    def clean_valid_to(self) -> Any:
        end = self.cleaned_data.get("valid_to")
        last = self.instance.last_used_at if self.instance.pk else None
        if end is not None and last is not None and end <= last:
            raise forms.ValidationError(f"Turns that started until {last:%Y-%m-%d %H:%M:%S} UTC were billed with it.")
        return end


@admin.register(Price)
class PriceAdmin(ModelAdmin):
    """Prices can be written until they are used. From then on they can only be ended, and others started."""

    form = PriceForm
    fields = ("model", "component", "usd_per_million", "valid_from", "valid_to")
    list_display = ("model", "component", "per_million", "valid_from", "valid_to", "is_used")
    list_filter = ("model", "component", ("valid_to", admin.EmptyFieldListFilter))
    search_fields = ("model",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Price]:
        return super().get_queryset(request).with_use()

    def get_fields(self, request: HttpRequest, obj: Price | None = None) -> tuple[str, ...]:
        if obj is not None and (obj.is_used or not self.has_change_permission(request, obj)):
            return ("model", "component", "per_million", "valid_from", "valid_to")
        return self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Price | None = None) -> tuple[str, ...]:
        if obj is None or not obj.is_used:
            return ("per_million",)
        # What has ended stays ended: turns after it were billed without it.
        ended = ("valid_to",) if obj.valid_to is not None and obj.valid_to <= timezone.now() else ()
        return ("model", "component", "per_million", "valid_from", *ended)

    def has_delete_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or not obj.is_used)

    @admin.display(description="USD per million tokens", ordering="nano_per_million")
    def per_million(self, price: Price) -> str:
        return dollars(price.nano_per_million)

    @admin.display(description="used", boolean=True)
    def is_used(self, price: Price) -> bool:
        return price.used


class RatedLineInline(ReadOnlyInline):
    model = RatedLine
    fields = ("component", "tokens", "per_million", "amount")
    readonly_fields = fields
    verbose_name_plural = "the working"

    def get_queryset(self, request: HttpRequest) -> QuerySet[RatedLine]:
        return super().get_queryset(request).select_related("price")

    @admin.display(description="tokens")
    def tokens(self, line: RatedLine) -> str:
        return thousands(line.quantity)

    @admin.display(description="USD per million tokens")
    def per_million(self, line: RatedLine) -> str:
        return "–" if line.price is None else dollars(line.price.nano_per_million)

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
