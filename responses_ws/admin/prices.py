"""The price book."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from responses_ws.billing import money
from responses_ws.billing.price_sources import nano_of_price
from responses_ws.billing.pricing import TOOL_CALL
from responses_ws.models import Price

from .base import ModelAdmin, TextInput
from .formats import thousands

THING = ("currency", "model", "service_tier", "component", "min_context")


def per_unit(price: Price) -> str:
    """A price as people say it: ``2.50 USD`` for a million tokens, or ``25.00 USD / 1,000 calls``."""
    if price.component == TOOL_CALL:
        return f"{money.spoken(price.nano_per_million // 1_000, price.currency)} / 1,000 calls"
    return money.spoken(price.nano_per_million, price.currency)


class PriceForm(forms.ModelForm):
    """A price as people say it, for a million tokens or a thousand calls; stored as an integer of nano units."""

    price = forms.CharField(
        label="Price per million tokens",
        max_length=40,
        widget=TextInput(attrs={"inputmode": "decimal"}),
        help_text="Of hosted tool calls: per thousand calls. Up to nine decimals, for example 2.50.",
    )

    class Meta:
        model = Price
        fields = (*THING, "valid_from", "valid_to")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.is_used:
            # Not only hidden: a declared field would still be taken from a forged post.
            del self.fields["price"]
        elif self.instance.pk:
            of_calls = self.instance.component == TOOL_CALL
            self.initial["price"] = money.plain(self.instance.nano_per_million // (1_000 if of_calls else 1))

    def clean_currency(self) -> str:
        currency: str = self.cleaned_data["currency"].upper()
        if not (len(currency) == 3 and currency.isascii() and currency.isalpha()):
            raise forms.ValidationError("Three letters, such as USD.")
        return currency

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if cleaned.get("price") is not None:
            try:
                self.instance.nano_per_million = nano_of_price(cleaned.get("component", ""), cleaned["price"])
            except ValueError as exc:
                self.add_error("price", f"{exc}.")
        return cleaned

    def clean_valid_to(self) -> Any:
        end = self.cleaned_data.get("valid_to")
        last = self.instance.last_used_at if self.instance.pk else None
        if end is not None and last is not None and end <= last:
            raise forms.ValidationError(
                f"Turns that started until {last:%Y-%m-%d %H:%M:%S} UTC were billed with it. Was it wrong? Withdraw it."
            )
        return end


class StateFilter(admin.SimpleListFilter):
    """Prices by what they are now."""

    title = "state"
    parameter_name = "state"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("now", "in force"), ("planned", "planned"), ("past", "past"), ("withdrawn", "withdrawn")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = timezone.now()
        conditions = {
            "now": Q(withdrawn_at=None, valid_from__lte=now) & (Q(valid_to=None) | Q(valid_to__gt=now)),
            "planned": Q(withdrawn_at=None, valid_from__gt=now),
            "past": Q(withdrawn_at=None, valid_to__lte=now),
            "withdrawn": Q(withdrawn_at__isnull=False),
        }
        chosen = conditions.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(chosen)


@admin.register(Price)
class PriceAdmin(ModelAdmin):
    """Prices can be written until they are used. From then on they can only be ended, and others started."""

    form = PriceForm
    actions = ("withdraw",)
    list_display = (
        *("model", "component", "tier", "context", "per_million", "valid_from", "valid_to", "state", "is_used"),
    )
    list_filter = (StateFilter, "currency", "component", "service_tier", "model")
    search_fields = ("model",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Price]:
        return super().get_queryset(request).with_use()

    def get_fields(self, request: HttpRequest, obj: Price | None = None) -> tuple[str, ...]:
        if obj is not None and (obj.is_used or not self.has_change_permission(request, obj)):
            return (*THING, "per_million", "valid_from", "valid_to", "state")
        return (*THING, "price", "valid_from", "valid_to")

    def get_readonly_fields(self, request: HttpRequest, obj: Price | None = None) -> tuple[str, ...]:
        if obj is None or not obj.is_used:
            return ("per_million", "state")
        # What has ended stays ended: turns after it were billed without it.
        has_ended = obj.withdrawn_at is not None or (obj.valid_to is not None and obj.valid_to <= timezone.now())
        return (*THING, "per_million", "valid_from", "state", *(("valid_to",) if has_ended else ()))

    def has_delete_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or not obj.is_used)

    @admin.action(description="Withdraw selected prices: they were wrong", permissions=["change"])
    def withdraw(self, request: HttpRequest, prices: QuerySet[Price]) -> None:
        standing = list(prices.filter(withdrawn_at=None))
        for price in standing:
            price.withdraw()
        self.message_user(
            request,
            f"{len(standing)} prices are withdrawn. What was billed by them stays until it is rated again.",
            messages.WARNING,
        )

    @admin.display(description="service tier", ordering="service_tier")
    def tier(self, price: Price) -> str:
        return price.service_tier or "all"

    @admin.display(description="from tokens", ordering="min_context")
    def context(self, price: Price) -> str:
        return thousands(price.min_context) if price.min_context else ""

    @admin.display(description="per million tokens", ordering="nano_per_million")
    def per_million(self, price: Price) -> str:
        return per_unit(price)

    @admin.display(description="state")
    def state(self, price: Price) -> str:
        if price.withdrawn_at is not None:
            return f"withdrawn {price.withdrawn_at:%Y-%m-%d}"
        now = timezone.now()
        if price.valid_from > now:
            return "planned"
        return "in force" if price.is_valid_at(now) else "past"

    @admin.display(description="used", boolean=True)
    def is_used(self, price: Price) -> bool:
        return price.used
