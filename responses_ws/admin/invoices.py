"""Invoices: looked at as they are sent, and settled by who may."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from responses_ws.billing import documents, invoices, money
from responses_ws.billing.invoices import InvoiceError
from responses_ws.models import Invoice

from .base import ReadOnlyAdmin

DOCUMENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
"""Of the page as it is sent, which is one file: nothing runs on it and nothing is fetched for it."""


class StateFilter(admin.SimpleListFilter):
    """The status, and of what waits for money, what has waited too long."""

    title = "status"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [*Invoice.Status.choices, ("overdue", "overdue")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() == "overdue":
            return queryset.overdue(timezone.now())
        return queryset.filter(status=self.value()) if self.value() else queryset


@admin.register(Invoice)
class InvoiceAdmin(ReadOnlyAdmin):
    """Nothing of an invoice is edited. What becomes of it is said by buttons, with a permission of their own."""

    change_form_template = "admin/responses_ws/invoice/change_form.html"
    list_display = ("name", "organization", "kind", "status", "period", "total", "still_open", "due_on")
    list_filter = (StateFilter, "kind", "organization", "period_start")
    list_select_related = ("organization",)
    search_fields = ("reference", "organization__name")
    search_help_text = "A number, or an organisation."
    fields = ()
    actions = ("finalize_selected", "preview_selected", "pay_selected")

    class Media:
        css = {"all": ("responses_ws/office.css", "responses_ws/invoice.css")}

    def get_urls(self) -> list[Any]:
        order = self.admin_site.admin_view(require_POST(self.order_view))
        document = self.admin_site.admin_view(self.document_view)
        return [
            path("<int:invoice_id>/order/", order, name="responses_ws_invoice_order"),
            path("<int:invoice_id>/document.<str:form>", document, name="responses_ws_invoice_document"),
            *super().get_urls(),
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Invoice]:
        return super().get_queryset(request).with_open()

    def has_settle_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("responses_ws.settle_invoice")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        one = self.get_object(request, object_id)
        shown = {} if one is None else self._shown(request, one)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **shown})

    def _shown(self, request: HttpRequest, one: Invoice) -> dict[str, Any]:
        is_sent = one.kind == Invoice.Kind.INVOICE and one.status in (Invoice.Status.FINALIZED, Invoice.Status.PAID)
        orders = []
        if self.has_settle_permission(request):
            orders = [
                name
                for name, is_possible in {
                    "finalize": one.status == Invoice.Status.DRAFT and one.period_end <= timezone.now(),
                    "preview": one.status == Invoice.Status.DRAFT,
                    "pay": is_sent and one.status == Invoice.Status.FINALIZED,
                    "credit": is_sent and one.open_cents > 0,
                    "void": is_sent and one.credited_cents == 0 and not (one.paid_at and one.total_cents),
                }.items()
                if is_possible
            ]
        related = Invoice.objects.filter(Q(corrects=one) | Q(pk=one.corrects_id)).order_by("pk")
        return {**documents.context(one), "orders": orders, "related": related, "computed_at": one.computed_at}

    def document_view(self, request: HttpRequest, invoice_id: int, form: str) -> HttpResponse:
        """The invoice as it is sent."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        one = get_object_or_404(Invoice.objects.select_related("organization", "corrects"), pk=invoice_id)
        answers: dict[str, Callable[[], HttpResponse]] = {
            "html": lambda: HttpResponse(documents.html(one), headers={"Content-Security-Policy": DOCUMENT_POLICY}),
            "pdf": lambda: HttpResponse(documents.pdf(one), content_type="application/pdf"),
            "csv": lambda: HttpResponse("".join(documents.csv(one)), content_type="text/csv; charset=utf-8"),
            "json": lambda: JsonResponse(documents.as_json(one), json_dumps_params={"indent": 2}),
        }
        if form not in answers:
            raise Http404
        try:
            answer = answers[form]()
        except documents.Unavailable as exc:
            messages.error(request, str(exc))
            return self._back(one.pk)
        if form != "html":
            name = documents.file_name(one, form)
            answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return answer

    def order_view(self, request: HttpRequest, invoice_id: int) -> HttpResponse:
        """``POST``: the buttons of an invoice's own page: ``order``, and for some ``memo`` and ``amount``."""
        if not (self.has_view_permission(request) and self.has_settle_permission(request)):
            raise PermissionDenied
        one = get_object_or_404(Invoice.objects.select_related("organization"), pk=invoice_id)
        memo = request.POST.get("memo", "").strip()
        orders: dict[str, tuple[Callable[[], Any], str]] = {
            "finalize": (lambda: invoices.finalize(one), "Finalised."),
            "preview": (lambda: invoices.preview(one), "Computed again."),
            "pay": (lambda: invoices.pay(one, memo=memo), "Marked as paid."),
            "void": (lambda: invoices.void(one, memo), "Void. What was on it is in this draft."),
            "credit": (lambda: invoices.credit(one, self._cents(request, one), memo), "Credited."),
        }
        do, said = orders.get(request.POST.get("order", ""), (None, ""))
        if do is None:
            return self._back(one.pk)
        try:
            made = do()
        except ValueError as exc:
            messages.error(request, f"Not done: {exc}.")
            return self._back(one.pk)
        self.log_change(request, one, said)
        messages.success(request, said)
        return self._back(made.pk if isinstance(made, Invoice) else one.pk)

    @staticmethod
    def _cents(request: HttpRequest, one: Invoice) -> int | None:
        """The amount that was given, in the smallest coin. None: all. Raises ValueError."""
        amount = request.POST.get("amount", "").strip()
        if not amount:
            return None
        cents, rest = divmod(money.nano_of(amount), money.nano_per_cent(one.currency))
        if rest:
            raise InvoiceError(f"{amount} is no amount of {one.currency} in coins")
        return cents

    @staticmethod
    def _back(pk: int) -> HttpResponse:
        return HttpResponseRedirect(reverse("admin:responses_ws_invoice_change", args=(pk,)))

    @admin.action(description="Finalise selected drafts", permissions=["settle"])
    def finalize_selected(self, request: HttpRequest, queryset: Any) -> None:
        self._each(request, queryset, invoices.finalize, "finalised")

    @admin.action(description="Compute selected drafts again", permissions=["settle"])
    def preview_selected(self, request: HttpRequest, queryset: Any) -> None:
        self._each(request, queryset, invoices.preview, "computed again")

    @admin.action(description="Mark selected invoices as paid", permissions=["settle"])
    def pay_selected(self, request: HttpRequest, queryset: Any) -> None:
        self._each(request, queryset, invoices.pay, "paid")

    def _each(self, request: HttpRequest, queryset: Any, do: Callable[[Invoice], None], said: str) -> None:
        done = 0
        for one in queryset.order_by("period_start", "pk"):
            try:
                do(one)
            except InvoiceError as exc:
                messages.error(request, f"{one}: {exc}.")
            else:
                done += 1
                self.log_change(request, one, f"{said.capitalize()}.")
        if done:
            messages.success(request, f"{done} {said}.")

    @admin.display(description="number", ordering="reference")
    def name(self, one: Invoice) -> str:
        return one.reference or "draft"

    @admin.display(description="period", ordering="period_start")
    def period(self, one: Invoice) -> str:
        whole_month = invoices.month_of(one.period_start) == (one.period_start, one.period_end)
        return f"{one.period_start:%B %Y}" if whole_month else f"{one.period_start:%Y-%m-%d} – {one.last_day}"

    @admin.display(description="total", ordering="total_cents")
    def total(self, one: Invoice) -> str:
        return money.spoken(one.total_cents * money.nano_per_cent(one.currency), one.currency)

    @admin.display(description="open", ordering="open_cents")
    def still_open(self, one: Invoice) -> str:
        if one.kind != Invoice.Kind.INVOICE or one.status != Invoice.Status.FINALIZED:
            return "–"
        return money.spoken(one.open_cents * money.nano_per_cent(one.currency), one.currency)

    @admin.display(description="due", ordering="due_at")
    def due_on(self, one: Invoice) -> str:
        return f"{one.due_at:%Y-%m-%d}" if one.due_at else "–"
