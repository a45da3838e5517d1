"""What is told of the ledger to other billing systems, and what none of them would take."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from responses_ws.billing import money
from responses_ws.conf import app_settings
from responses_ws.models import Delivery

from .base import ReadOnlyAdmin, link_to
from .formats import shortened


class StateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("waiting", "waiting"), ("given_up", "given up"), ("sent", "sent")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        wanted = {
            "waiting": queryset.filter(pk__in=Delivery.objects.waiting()),
            "given_up": queryset.filter(pk__in=Delivery.objects.given_up()),
            "sent": queryset.exclude(sent_at=None),
        }
        return wanted.get(self.value() or "", queryset)


class SinkFilter(admin.SimpleListFilter):
    """The sinks of the settings: those of the rows would be looked for in all of them."""

    title = "sink"
    parameter_name = "sink"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in app_settings.BILLING_SINKS]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(sink=self.value()) if self.value() else queryset


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ("response", "sink", "condition", "error", "tries", "due_at", "kind", "amount", "organization")
    list_filter = (StateFilter, SinkFilter, "journal__organization")
    list_select_related = ("journal__organization",)
    search_fields = ("journal__usage__response_id__startswith",)
    search_help_text = "A response id, or its beginning."
    fieldsets = (
        (None, {"fields": ("sink", "entry", "condition", "amount")}),
        ("Tries", {"fields": ("tries", "first_tried_at", "due_at", "sent_at", "error")}),
        ("What is told", {"fields": ("body",)}),
    )
    readonly_fields = ("entry", "condition", "amount")
    actions = ("send_again",)

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("responses_ws.replay_billing")

    @admin.action(description="Send again what was given up", permissions=["replay"])
    def send_again(self, request: HttpRequest, deliveries: QuerySet[Any]) -> None:
        again = Delivery.objects.filter(pk__in=deliveries.order_by().values("pk")).send_again()
        self.message_user(request, f"{again} deliveries will be tried again within seconds.")

    @admin.display(description="response")
    def response(self, delivery: Delivery) -> str:
        return shortened(delivery.body["response_id"])

    @admin.display(description="kind")
    def kind(self, delivery: Delivery) -> str:
        return str(delivery.journal.get_kind_display())

    @admin.display(description="organization")
    def organization(self, delivery: Delivery) -> str:
        return str(delivery.journal.organization)

    @admin.display(description="amount")
    def amount(self, delivery: Delivery) -> str:
        return money.spoken(delivery.body["amount_nano"], delivery.body["currency"])

    @admin.display(description="state")
    def condition(self, delivery: Delivery) -> str:
        return delivery.state

    @admin.display(description="entry of the ledger")
    def entry(self, delivery: Delivery) -> SafeString | str:
        return link_to(delivery.journal)
