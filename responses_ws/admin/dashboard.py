"""The page an operator keeps open: money, load, speed, failures, and whether billing keeps up."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone

from responses_ws.models import Dashboard, EndingRollup, LatencyRollup, Reconciliation, UsageRecord, UsageRollup
from responses_ws.models.rollups import total_of

from . import choices, panels, timeline
from .base import Page
from .charts import Chart, lines, stacked
from .formats import dollars, milliseconds, short_count, short_money, thousands
from .host import host
from .scope import PERIODS, Scope, scope_of

TOKEN_SERIES = {"uncached": "Input", "cached": "Cached input", "answer": "Output", "reasoning": "Reasoning"}
ENDING_SERIES = {
    "completed": "Completed",
    "incomplete": "Incomplete",
    "cancelled": "Cancelled",
    "failures": "Failed",
}
TIME_SERIES = {"p50": "p50", "p95": "p95"}


@admin.register(Dashboard)
class DashboardAdmin(Page):
    permission = "responses_ws.view_usagerecord"

    def get_urls(self) -> list[Any]:
        name = "responses_ws_dashboard_response"
        view = self.admin_site.admin_view(self.response_view)
        return [path("responses/<str:response_id>/", view, name=name), *super().get_urls()]

    def page(self, request: HttpRequest) -> HttpResponse:
        scope = scope_of(request.GET)
        return self.render(request, "admin/responses_ws/dashboard.html", figures(scope, request.user.has_perm))

    def response_view(self, request: HttpRequest, response_id: str) -> HttpResponse:
        """What became of one response, and when."""
        self.check_permission(request)
        told = timeline.of(response_id, may_see_content=request.user.has_perm("responses_ws.view_content"))
        if told is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, response_id)
        return self.render(request, "admin/responses_ws/response.html", {"title": "Response", **told})


def figures(scope: Scope, may: Any = lambda _permission: True, now: datetime | None = None) -> dict[str, Any]:
    """Everything on the page.

    Args:
        may: whether who looks has a permission; panels that need another than the page's are left out without it.
    """
    now = now or timezone.now()
    rows = scope.within(UsageRollup.objects)
    endings = scope.within(EndingRollup.objects.failures())
    series, speed, of_host = rows.series(), scope.within(LatencyRollup.objects).latencies(), host()
    totals = total_of(series.values())
    is_new = not series and not UsageRecord.objects.exists()
    books = Reconciliation.objects.newest()
    return {
        "title": "Dashboard",
        "scope": scope,
        "periods": [(name, title, scope.period.name == name) for name, title in PERIODS.items()],
        "choices": choices.choices(scope),
        "trail": choices.trail(scope),
        "now": now,
        "is_new": is_new,
        "steps": choices.first_steps(may) if is_new else [],
        "books": books if may("responses_ws.view_reconciliation") else None,
        "money_cards": panels.money_cards(scope, totals, now),
        "load_cards": panels.load_cards(scope, speed.times, of_host, books, now),
        "charts": charts(scope, series, speed.series, now),
        "rankings": panels.rankings(scope, rows.rankings(panels.TOP)),
        "ways": panels.ways(speed.transports),
        "phases": panels.phases(speed.times, of_host.settle_ms),
        "host": of_host,
        "reasons": panels.reasons(scope, endings, totals["responses"]),
        "budgets": panels.budgets(scope, now) if may("responses_ws.view_budget") else None,
        "flags": panels.flags(scope) if may("responses_ws.view_flag") else None,
        "newest": panels.newest(scope),
    }


def charts(
    scope: Scope, rows: Mapping[datetime, Mapping[str, Any]], times: Mapping[datetime, Any], now: datetime
) -> list[Any]:
    """(title, chart) of each, in order."""
    starts, is_open = scope.period.starts(), scope.period.end > now

    def money(nano: int) -> str:
        return short_money(nano, scope.currency)

    spend = {start: {"money": row["amount_nano"]} for start, row in rows.items()}
    first = {start: {"p50": of.first_token_p50, "p95": of.first_token_p95} for start, of in times.items()}

    def money_tick(nano: int) -> str:
        return money(nano) if scope.currency != "USD" else dollars(nano)

    made: list[tuple[str, str, Chart]] = [
        ("spend", "Spend", stacked(starts, spend, {"money": "Spend"}, money, money_tick, is_open=is_open)),
        ("tokens", "Tokens", stacked(starts, rows, TOKEN_SERIES, thousands, short_count, is_open=is_open)),
        ("responses", "Responses", stacked(starts, rows, ENDING_SERIES, thousands, short_count, is_open=is_open)),
        ("first-token", "Time to first token", lines(starts, first, TIME_SERIES, milliseconds)),
    ]
    return made
