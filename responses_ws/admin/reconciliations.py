"""When the books were compared, and what came of it."""

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_ws.models import Reconciliation

from .base import ReadOnlyAdmin


@admin.register(Reconciliation)
class ReconciliationAdmin(ReadOnlyAdmin):
    list_display = ("ended_at", "agree", "differences")
    fields = ("started_at", "ended_at", "differences", "in_words")
    readonly_fields = fields

    @admin.display(description="agree", boolean=True, ordering="differences")
    def agree(self, reconciliation: Reconciliation) -> bool:
        return reconciliation.differences == 0

    @admin.display(description="the first of them")
    def in_words(self, reconciliation: Reconciliation) -> SafeString | str:
        if not reconciliation.told:
            return "none"
        return format_html('<pre class="responses-ws-content">{}</pre>', reconciliation.told)
