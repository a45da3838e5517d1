"""Credit: given here, and from then on only looked at."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from responses_ws.billing import credits, money
from responses_ws.models import CreditGrant, GrantUse

from .base import OFFICE_CSS, ModelAdmin, TextInput, link_to

SHOWN_USES = 100


class GrantForm(forms.ModelForm):
    """A grant as people say it: an amount in the organisation's currency."""

    amount = forms.CharField(
        widget=TextInput(attrs={"inputmode": "decimal"}),
        help_text="In the organisation's currency, for example 250 or 12.50.",
    )

    class Meta:
        model = CreditGrant
        fields = ("organization", "kind", "priority", "expires_at", "note", "idempotency_key")

    def clean_amount(self) -> int:
        try:
            return money.nano_of(self.cleaned_data["amount"])
        except ValueError as exc:
            raise forms.ValidationError(str(exc)) from exc

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if not self.errors:
            try:
                # All of it happens here or nothing: what the ledger refuses is an error of the form.
                self.made = credits.grant(
                    cleaned["organization"],
                    cleaned["amount"],
                    kind=cleaned["kind"],
                    priority=cleaned["priority"],
                    expires_at=cleaned["expires_at"],
                    note=cleaned["note"],
                    idempotency_key=cleaned["idempotency_key"],
                )
            except ValueError as exc:
                raise forms.ValidationError(str(exc)) from exc
        return cleaned

    def _post_clean(self) -> None:
        """The row is made already, and valid."""

    def save(self, commit: bool = True) -> CreditGrant:
        self.instance = self.made
        self.save_m2m = lambda: None
        return self.made


@admin.register(CreditGrant)
class CreditGrantAdmin(ModelAdmin):
    """Nobody changes or deletes a grant: what is wrong is given again, or expires."""

    form = GrantForm
    list_display = ("organization", "kind", "amount_given", "left", "priority", "expires_at", "note", "created_at")
    list_filter = ("kind", "organization", ("expires_at", admin.EmptyFieldListFilter), "created_at")
    list_select_related = ("organization",)
    search_fields = ("note", "organization__name", "idempotency_key")
    given = ("organization", "kind", "amount", "priority", "expires_at", "note", "idempotency_key")
    shown = (
        *("organization", "kind", "amount_given", "left", "priority", "expires_at"),
        *("note", "idempotency_key", "created_at", "history"),
    )

    class Media:
        css = OFFICE_CSS

    def get_fields(self, request: HttpRequest, obj: CreditGrant | None = None) -> tuple[str, ...]:
        return self.given if obj is None else self.shown

    def get_readonly_fields(self, request: HttpRequest, obj: CreditGrant | None = None) -> tuple[str, ...]:
        return () if obj is None else self.shown

    def get_queryset(self, request: HttpRequest) -> QuerySet[CreditGrant]:
        return super().get_queryset(request).select_related("organization")

    def has_change_permission(self, request: HttpRequest, obj: CreditGrant | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: CreditGrant | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: CreditGrant, form: Any, change: bool) -> None:
        """The form has made it."""

    @admin.display(description="amount", ordering="amount_nano")
    def amount_given(self, grant: CreditGrant) -> str:
        return money.spoken(grant.amount_nano, grant.currency)

    @admin.display(description="left", ordering="remaining_nano")
    def left(self, grant: CreditGrant) -> str:
        return money.spoken(grant.remaining_nano, grant.currency)

    @admin.display(description="newest uses")
    def history(self, grant: CreditGrant) -> SafeString | str:
        uses = GrantUse.objects.filter(grant=grant).select_related("journal__usage").order_by("-pk")[:SHOWN_USES]
        if not uses:
            return "None yet."
        rows = (
            (use.journal.posted_at.strftime("%Y-%m-%d %H:%M:%S"), money.spoken(use.amount_nano, grant.currency), link)
            for use, link in ((use, link_to(use.journal)) for use in uses)
        )
        body = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td></tr>", rows)
        head = "<thead><tr><th>when</th><th>amount</th><th>entry</th></tr></thead>"
        return format_html('<table class="responses-ws-history">{}<tbody>{}</tbody></table>', SafeString(head), body)
