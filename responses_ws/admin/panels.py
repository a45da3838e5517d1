"""The parts of the dashboard, each from what it asks of the tables to the words that are shown."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec
from django.contrib import admin
from django.db.models import Q
from django.urls import reverse

from responses_ws.billing import pulse
from responses_ws.models import Budget, Flag, Reconciliation, UsageRecord, UsageRollup
from responses_ws.models.latency import Times

from .formats import age, milliseconds, percent, short_count, short_money, shortened, thousands
from .host import Host
from .scope import Scope

TOP = 8
NEWEST = 10
NEAR = 80
"""Percent of a limit from which on a budget is shown."""
UNCHECKED = timedelta(hours=26)
"""When the books have been looked at too long ago: it is done every night."""
PHASES = {
    "checks": "Checks",
    "render": "Render",
    "first_token": "First token",
    "rest": "The rest of the answer",
    "settle": "Settle",
}


class Card(msgspec.Struct, frozen=True):
    """One figure, and what belongs to it in small."""

    title: str
    value: str
    note: str = ""
    is_alarming: bool = False
    url: str = ""


class NearLimit(msgspec.Struct, frozen=True):
    """A budget that is nearly used up; ``width`` of its bar in percent."""

    name: str
    url: str
    spent: str
    limit: str
    percent: str
    width: str
    is_over: bool


class Row(msgspec.Struct, frozen=True):
    """One line of a ranking; ``share`` is its part of the largest, in percent, for the bar behind it."""

    name: str
    note: str
    url: str
    responses: str
    tokens: str
    spend: str
    share: str


class Ranking(msgspec.Struct, frozen=True):
    title: str
    column: str
    rows: list[Row]


class Way(msgspec.Struct, frozen=True):
    """One way to ask for a turn; times are ``p50, p95``."""

    name: str
    turns: str
    share: str
    first_token: str
    duration: str
    failed: str


class Phase(msgspec.Struct, frozen=True):
    """A part of a turn's time: where its bar begins and how long it is, in percent."""

    name: str
    title: str
    mean: str
    share: str
    x: str
    width: str


def money_cards(scope: Scope, totals: Mapping[str, int], now: datetime) -> list[Card]:
    """What was earned and used."""

    def money(nano: int) -> str:
        return short_money(nano, scope.currency)

    month = scope.of(UsageRollup.objects.days()).month_against_last(now)
    responses, failures = totals["responses"], totals["failures"]
    return [
        Card("Spend this month", money(month["this"]), _against(month, money)),
        Card(f"Spend, {_lower(scope)}", money(totals["amount_nano"]), f"{money(month['last'])} in all of last month"),
        Card(f"Responses, {_lower(scope)}", short_count(responses), f"{short_count(totals['tokens'])} tokens"),
        Card(
            "Error rate",
            percent(failures, responses),
            f"{thousands(failures)} of {thousands(responses)} failed",
            is_alarming=failures * 20 > responses,
        ),
    ]


def load_cards(scope: Scope, times: Times, of_host: Host, books: Reconciliation | None, now: datetime) -> list[Card]:
    """What goes on now, how fast, and whether the books follow."""
    generating = scope.records(UsageRecord.objects.in_progress()).count()
    where = "this process" if of_host.processes == 1 else f"{of_host.processes} processes of this host"
    rate = times.tokens_per_second
    return [
        Card(
            "Generating now",
            thousands(generating),
            f"{thousands(of_host.sockets)} sockets, {thousands(of_host.lanes)} lanes in {where}",
        ),
        Card("First token", milliseconds(times.first_token_p50), f"p50; p95 {milliseconds(times.first_token_p95)}"),
        Card("Tokens per second", "–" if rate is None else f"{rate:,.1f}", "of one response, while it comes"),
        unbilled_card(now),
        books_card(books, now),
    ]


def unbilled_card(now: datetime) -> Card:
    found = pulse.take(now)
    if found.silence is not None and found.is_silent:
        note = f"nothing from beat for {age(found.silence)}"
    elif found.waiting is not None:
        note = f"the oldest for {age(found.waiting)}"
    else:
        note = "billing keeps up"
    url = reverse("admin:responses_ws_usagerecord_changelist") + "?billed_at__isempty=1" if found.unbilled else ""
    return Card("Unbilled", thousands(found.unbilled), note, is_alarming=found.is_late or found.is_silent, url=url)


def books_card(newest: Reconciliation | None, now: datetime) -> Card:
    if newest is None:
        return Card("Books", "–", "never compared: is beat running?")
    when = f"compared {age(now - newest.ended_at)} ago"
    if newest.differences:
        return Card("Books", f"{thousands(newest.differences)} wrong", when, is_alarming=True)
    return Card("Books", "Agree", when, is_alarming=now - newest.ended_at > UNCHECKED)


def rankings(scope: Scope, dearest: Mapping[str, list[dict[str, Any]]]) -> list[Ranking]:
    """Who spends most: what is one step down from here, and models, of `UsageRollupQuerySet.rankings`."""
    found = []
    if scope.organization is None:
        ranked = [
            (row["organization_name"] or "deleted", "", scope.url(organization=row["organization_id"]), row)
            for row in dearest["organizations"]
        ]
        found.append(_ranking("Organisations", "Organisation", ranked, scope))
    if scope.project is None:
        ranked = [
            (
                row["project_name"] or "deleted",
                row["organization_name"] if scope.organization is None else "",
                scope.url(project=row["project_id"]),
                row,
            )
            for row in dearest["projects"]
        ]
        found.append(_ranking("Projects", "Project", ranked, scope))
    if scope.api_key is None and not scope.is_keyless:
        ranked = [
            (
                row["key_name"] or "no key",
                row["project_name"] if scope.project is None else "",
                scope.url(key=row["api_key_id"])
                if row["api_key_id"]
                else scope.url(project=row["project_id"], key="none"),
                row,
            )
            for row in dearest["keys"]
        ]
        found.append(_ranking("API keys", "Key", ranked, scope))
    ranked = [(row["model"], "", scope.url(model=row["model"]), row) for row in dearest["models"]]
    return [*found, _ranking("Models", "Model", ranked, scope)]


def _ranking(title: str, column: str, ranked: list[tuple[str, str, str, Any]], scope: Scope) -> Ranking:
    # Where nothing costs anything, tokens tell who is large.
    measure = "amount_nano" if any(row["amount_nano"] > 0 for *_words, row in ranked) else "tokens"
    largest = max((row[measure] for *_words, row in ranked), default=0)
    return Ranking(
        title,
        column,
        [
            Row(
                name=name,
                note=note,
                url=url,
                responses=thousands(row["responses"]),
                tokens=short_count(row["tokens"]),
                spend=short_money(row["amount_nano"], scope.currency),
                share=f"{max(100 * row[measure] / largest, 0):.2f}" if largest > 0 else "0",
            )
            for name, note, url, row in ranked
        ],
    )


def ways(found: list[dict[str, Any]]) -> list[Way]:
    """WebSocket mode beside HTTP, of rows as `Latencies.transports`."""
    total = sum(row["responses"] for row in found)
    titles = dict(UsageRecord.Transport.choices)
    return [
        Way(
            name=str(titles.get(row["transport"], row["transport"])),
            turns=thousands(row["responses"]),
            share=percent(row["responses"], total),
            first_token=_pair(row["times"].first_token_p50, row["times"].first_token_p95),
            duration=_pair(row["times"].duration_p50, row["times"].duration_p95),
            failed=percent(row["failures"], row["responses"]),
        )
        for row in found
    ]


def phases(times: Times, settle_ms: float | None) -> list[Phase]:
    """Where a turn's time goes, on average; what settling takes is known of this host only."""
    parts = dict(times.parts)
    if not parts:
        return []
    if settle_ms is not None:
        parts["settle"] = settle_ms
    total = sum(parts.values()) or 1
    found, x = [], 0.0
    for name, mean in parts.items():
        width = 100 * mean / total
        found.append(Phase(name, PHASES[name], _short_time(mean), f"{width:.1f}%", f"{x:.3f}", f"{width:.3f}"))
        x += width
    return found


def reasons(scope: Scope, endings: Any, responses: int) -> list[tuple[str, str, str, str, str]]:
    """Failures by their code: code, status, how many, their part of all responses, and the URL of the records."""
    rows = list(endings.by_reason()[:TOP])
    path = reverse("admin:responses_ws_usagerecord_changelist")
    owner = {
        "api_key__id__exact": scope.api_key and scope.api_key.pk,
        "project__id__exact": scope.project and scope.project.pk,
        "project__organization__id__exact": scope.organization and scope.organization.pk,
        "model": scope.model,
    }
    since = {"started_at__gte": scope.period.start.isoformat(), "started_at__lt": scope.period.end.isoformat()}
    # The narrowest owner says it all.
    named = dict([(name, value) for name, value in owner.items() if value and name != "model"][:1])
    model = {"model": scope.model} if scope.model else {}
    return [
        (
            row["reason"] or "not said",
            row["status"],
            thousands(row["responses"]),
            percent(row["responses"], responses),
            f"{path}?"
            + urlencode({"status__exact": row["status"], "reason": row["reason"], **named, **model, **since}),
        )
        for row in rows
    ]


def flags(scope: Scope) -> Card:
    """What classifiers have found and nobody has looked at."""
    found = Flag.objects.open()
    if scope.project is not None:
        found = found.filter(project=scope.project)
    elif scope.organization is not None:
        found = found.filter(project__organization=scope.organization)
    count = found.count()
    url = reverse("admin:responses_ws_flag_changelist") + "?state__exact=open"
    return Card("Flagged turns", thousands(count), "wait for review" if count else "nothing waits", url=url)


def newest(scope: Scope) -> list[dict[str, Any]]:
    """The newest responses of a project or a key; of all, nobody would find theirs."""
    if scope.project is None:
        return []
    rows = scope.records(UsageRecord.objects.between(scope.period.start, scope.period.end)).order_by("-started_at")
    return [
        {
            "id": shortened(record.response_id),
            "url": reverse("admin:responses_ws_dashboard_response", args=(record.response_id,)),
            "model": record.model,
            "status": record.get_status_display(),
            "is_failed": record.status in (UsageRecord.Status.FAILED, UsageRecord.Status.ABANDONED),
            "tokens": thousands(record.input_tokens + record.output_tokens),
            "first_token": milliseconds(record.first_token_ms),
            "duration": milliseconds(record.duration_ms),
            "started_at": record.started_at,
        }
        for record in rows[:NEWEST]
    ]


def budgets(scope: Scope, now: datetime) -> list[NearLimit]:
    """Budgets of which four fifths are billed in their window, the fullest first."""
    found = Budget.objects.near_limit(now, percent=NEAR)
    if scope.organization is not None:
        found = found.filter(organization=scope.organization)
    if scope.project is not None:
        found = found.filter(Q(project=scope.project) | Q(project=None, api_key=None))
    return [
        NearLimit(
            name=str(row),
            url=reverse("admin:responses_ws_budget_change", args=(row.pk,)) if admin.site.is_registered(Budget) else "",
            spent=short_money(row.spent_nano, row.organization.currency),
            limit=short_money(row.limit_nano, row.organization.currency),
            percent=f"{100 * row.spent_nano // row.limit_nano}%",
            width=f"{min(100 * row.spent_nano / row.limit_nano, 100):.2f}",
            is_over=row.spent_nano >= row.limit_nano,
        )
        for row in found[:TOP]
    ]


def _against(month: Mapping[str, int], money: Callable[[int], str]) -> str:
    last = month["last_by_now"]
    if last <= 0:
        return "nothing by this day of last month"
    change = 100 * (month["this"] - last) / last
    return f"{change:+,.0f}% against {money(last)} by this day of last month"


def _lower(scope: Scope) -> str:
    title = scope.period.title
    return title[0].lower() + title[1:]


def _short_time(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 100 else milliseconds(ms)


def _pair(half: float | None, most: float | None) -> str:
    """Two times, between which alone a line may break."""
    return "–" if half is None else ", ".join(milliseconds(one).replace(" ", "\u00a0") for one in (half, most))
