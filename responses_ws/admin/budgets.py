"""Budgets: how much may be spent, what is spent and held of it now, and who was told."""

from typing import Any

from asgiref.sync import async_to_sync
from django import forms
from django.contrib import admin
from django.core.validators import validate_email
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_ws.billing import money
from responses_ws.billing.budgets import rule_of
from responses_ws.models import Budget, BudgetAlert
from responses_ws.models.budgets import ALERT_TRIES, alert_percents
from responses_ws.serving.budgets import holds

from .base import OFFICE_CSS, ModelAdmin, ProjectFilter, ReadOnlyAdmin, Textarea, TextInput


class BudgetForm(forms.ModelForm):
    """A budget as people say it: an amount of the organisation's currency, percents and addresses in words."""

    limit = forms.CharField(
        max_length=40,
        widget=TextInput(attrs={"inputmode": "decimal"}),
        help_text="In the currency of the organisation, for example 250 or 12.50.",
    )
    alerts = forms.CharField(
        label="Alerts at", required=False, max_length=200, widget=TextInput(), help_text="Percents, such as 80, 100."
    )
    addresses = forms.CharField(
        label="E-mail to", required=False, widget=Textarea(attrs={"rows": 2}), help_text="One address a line."
    )
    webhook_url = forms.URLField(
        label="Webhook",
        required=False,
        assume_scheme="https",
        widget=TextInput(),
        help_text="Is told, too, with a POST of JSON.",
    )

    class Meta:
        model = Budget
        fields = ("organization", "project", "api_key", "model", "window", "is_hard", "is_active", "webhook_url")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        percents = self.instance.alert_percents if self.instance.pk else alert_percents()
        if "alerts" in self.fields:
            self.initial["alerts"] = ", ".join(map(str, percents))
            self.initial["addresses"] = "\n".join(self.instance.emails)
        if self.instance.pk and "limit" in self.fields:
            self.initial["limit"] = money.plain(self.instance.limit_nano)

    def clean_limit(self) -> str:
        try:
            self.instance.limit_nano = money.nano_of(self.cleaned_data["limit"].strip())
        except ValueError as exc:
            raise forms.ValidationError(f"{exc}.") from exc
        return str(self.cleaned_data["limit"])

    def clean_alerts(self) -> str:
        given = self.cleaned_data["alerts"].replace("%", " ").replace(",", " ").split()
        if not all(one.isascii() and one.isdigit() and 0 < int(one) <= 1000 for one in given):
            raise forms.ValidationError("Whole percents from 1 to 1000, such as 80, 100.")
        self.instance.alert_percents = sorted(set(map(int, given)))
        return str(self.cleaned_data["alerts"])

    def clean_addresses(self) -> str:
        given = self.cleaned_data["addresses"].replace(",", " ").split()
        for one in given:
            validate_email(one)
        self.instance.emails = given
        return str(self.cleaned_data["addresses"])


@admin.register(Budget)
class BudgetAdmin(ModelAdmin):
    form = BudgetForm
    list_display = ("whose", "window", "limit", "used", "spent", "left", "is_hard", "is_active")
    list_filter = ("window", "is_hard", "is_active", "organization", ("project", ProjectFilter))
    list_select_related = ("organization", "project", "api_key")
    list_per_page = 50
    search_fields = ("organization__name", "project__name", "api_key__name", "model")
    autocomplete_fields = ("organization", "project", "api_key")
    readonly_fields = ("used", "spent", "held", "left", "told")
    fieldsets = (
        (None, {"fields": ("organization", "project", "api_key", "model", "window", "limit", "is_hard", "is_active")}),
        ("Who is told", {"fields": ("alerts", "addresses", "webhook_url")}),
        ("In this window", {"fields": ("used", "spent", "held", "left", "told")}),
    )

    class Media:
        css = OFFICE_CSS

    def get_fieldsets(self, request: HttpRequest, obj: Budget | None = None) -> Any:
        if obj is None:
            return self.fieldsets[:2]
        if self.has_change_permission(request, obj):
            return self.fieldsets
        whose = ("organization", "project", "api_key", "model", "window", "limit_shown", "is_hard", "is_active")
        return ((None, {"fields": whose}), self.fieldsets[2])

    def get_readonly_fields(self, request: HttpRequest, obj: Budget | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, "limit_shown")

    @admin.display(description="budget of", ordering="organization")
    def whose(self, budget: Budget) -> str:
        return str(budget).rpartition(" per ")[0]

    @admin.display(description="limit", ordering="limit_nano")
    def limit(self, budget: Budget) -> str:
        return money.spoken(budget.limit_nano, budget.organization.currency)

    limit_shown = limit

    def get_queryset(self, request: HttpRequest) -> QuerySet[Budget]:
        return super().get_queryset(request).with_spent(timezone.now())

    @admin.display(description="used")
    def used(self, budget: Budget) -> SafeString:
        percent = 100 * budget.spent_nano // budget.limit_nano
        return format_html(
            '<svg class="rws-meter{0}" width="120" height="8" role="img" aria-label="{1} % used">'
            '<rect class="rws-track" width="120" height="8" rx="4"/>'
            '<rect class="rws-share" width="{2}" height="8" rx="4"/></svg> {1} %',
            " rws-alarming" if percent >= 100 else "",
            percent,
            min(100, max(0, percent)) * 120 // 100,
        )

    @admin.display(description="spent", ordering="spent_nano")
    def spent(self, budget: Budget) -> str:
        return _to_the_cent(budget.spent_nano, budget.organization.currency)

    @admin.display(description="left")
    def left(self, budget: Budget) -> str:
        return _to_the_cent(budget.limit_nano - budget.spent_nano, budget.organization.currency)

    @admin.display(description="held by responses that run or are being billed")
    def held(self, budget: Budget) -> str:
        if not (budget.is_hard and budget.is_active):
            return "nothing: it refuses nobody"
        standing = async_to_sync(holds.standing)(rule_of(budget).at(timezone.now()))
        return "unknown" if standing is None else _to_the_cent(standing[1], budget.organization.currency)

    @admin.display(description="told in this window")
    def told(self, budget: Budget) -> str:
        alerts = budget.alerts.filter(window_start=budget.window_start).order_by("percent")
        return ", ".join(f"{alert.percent} % ({_state_of(alert)})" for alert in alerts) or "nobody yet"


@admin.register(BudgetAlert)
class BudgetAlertAdmin(ReadOnlyAdmin):
    list_display = ("budget", "percent", "window_start", "spent", "created_at", "state")
    list_filter = ("percent", "budget__organization")
    list_select_related = ("budget__organization", "budget__project", "budget__api_key")
    fields = ("budget", "percent", "window_start", "spent", "created_at", "state", "told", "tries", "error")
    readonly_fields = fields

    @admin.display(description="spent then", ordering="spent_nano")
    def spent(self, alert: BudgetAlert) -> str:
        return money.spoken(alert.spent_nano, alert.budget.organization.currency)

    @admin.display(description="state")
    def state(self, alert: BudgetAlert) -> str:
        return _state_of(alert)


def _state_of(alert: BudgetAlert) -> str:
    if alert.told_at is not None:
        return f"told {alert.told_at:%Y-%m-%d %H:%M}"
    return "given up" if alert.tries >= ALERT_TRIES else "being told"


def _to_the_cent(nano: int, currency: str) -> str:
    """What is a cent or more without the fractions of one: those are the ledger's."""
    cents = money.cents_of(nano, currency)
    return money.spoken(cents * money.nano_per_cent(currency) if cents else nano, currency)
