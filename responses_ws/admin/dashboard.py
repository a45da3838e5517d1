"""The page an operator opens first: money, load, speed, failures, and whether billing keeps up."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from responses_ws.models import Dashboard, Posting, UsageRecord
from responses_ws.models.usage import UsageRecordQuerySet

from .base import Page
from .charts import Chart, stacked
from .formats import age, dollars, milliseconds, percent, short_count, short_dollars, thousands
from .ways import Host, host, ways

DAYS = 30
TOP = 8
LATE = timedelta(minutes=1)
"""When waiting records turn red: the sweep comes every 5 seconds."""
_REMADE = {"rewind": "cut back a little", "full": "made whole"}
TOKEN_SERIES = {"uncached": "Input", "cached": "Cached input", "answer": "Output", "reasoning": "Reasoning"}


class Card(msgspec.Struct, frozen=True):
    """One figure, and what belongs to it in small."""

    title: str
    value: str
    note: str = ""
    is_alarming: bool = False


class Row(msgspec.Struct, frozen=True):
    """One line of a ranking; ``share`` is its part of the largest, in percent, for the bar behind it."""

    name: str
    note: str
    responses: str
    tokens: str
    spend: str
    share: str


@admin.register(Dashboard)
class DashboardAdmin(Page):
    permission = "responses_ws.view_usagerecord"

    def page(self, request: HttpRequest) -> HttpResponse:
        return self.render(request, "admin/responses_ws/dashboard.html", {"title": "Dashboard", **figures()})


def figures(now: datetime | None = None) -> dict[str, Any]:
    """Everything on the page. Days and months are those of the current time zone."""
    now = now or timezone.now()
    today = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    since = today - timedelta(days=DAYS - 1)
    money = money_chart(since)
    of_host = host()
    return {
        "days": DAYS,
        "cards": cards(now, today, of_host),
        "ways": ways(UsageRecord.objects.between(now - timedelta(hours=24))),
        "host": of_host,
        "money": money,
        "money_total": short_dollars(money.total),
        "tokens": token_chart(since),
        "token_series": list(TOKEN_SERIES.items()),
        "rankings": [("Models", "Model", top_models(since)), ("API keys", "Key", top_keys(since))],
    }


def cards(now: datetime, today: datetime, of_host: Host) -> list[Card]:
    month = today.replace(day=1)
    last_month = (month - timedelta(days=1)).replace(day=1)
    charges = Posting.objects.charges()
    spent_last = charges.between(last_month, month).total()
    records = UsageRecord.objects.all()
    of_today = records.between(today).totals()
    recent = records.between(now - timedelta(hours=24))
    counts = recent.totals()
    half, most = (recent.first_token_percentile(fraction) for fraction in (0.5, 0.95))
    generating = records.in_progress().count()
    where = "in this process" if of_host.processes == 1 else f"in {of_host.processes} processes of this host"
    return [
        Card("Spend this month", short_dollars(charges.between(month).total()), f"since {month.day} {month:%B}"),
        Card("Spend last month", short_dollars(spent_last), f"{last_month:%B %Y}"),
        Card("Tokens today", short_count(of_today["tokens"]), f"{thousands(of_today['responses'])} responses"),
        Card("Generating now", thousands(generating), "responses in progress"),
        Card("Live sockets", thousands(of_host.sockets), where),
        Card("First token", milliseconds(half), f"p50 of 24 h, p95 {milliseconds(most)}"),
        Card(
            "Error rate",
            percent(counts["failures"], counts["responses"]),
            f"{thousands(counts['failures'])} of {thousands(counts['responses'])} in 24 h",
            is_alarming=counts["failures"] * 20 > counts["responses"],
        ),
        prompts_card(recent),
        unbilled_card(now),
    ]


def prompts_card(records: UsageRecordQuerySet) -> Card:
    """Whether prompts are appended to, which costs what is new, or made again."""
    paths = records.by_render_path()
    total = sum(paths.values())
    others = ", ".join(f"{thousands(paths[path])} {word}" for path, word in _REMADE.items() if path in paths)
    return Card("Prompts appended", percent(paths.get("append", 0), total), others or "of those in token ids, 24 h")


def unbilled_card(now: datetime) -> Card:
    count, oldest = UsageRecord.objects.unbilled().backlog()
    if oldest is None:
        return Card("Unbilled", thousands(count), "billing keeps up")
    return Card("Unbilled", thousands(count), f"the oldest for {age(now - oldest)}", is_alarming=now - oldest > LATE)


def money_chart(since: datetime) -> Chart:
    rows = Posting.objects.charges().between(since).by_day()
    values = {row["day"]: {"money": row["amount_nano"]} for row in rows}
    return stacked(_days(since), values, {"money": "Spend"}, dollars)


def token_chart(since: datetime) -> Chart:
    values = {row["day"]: row for row in UsageRecord.objects.between(since).by_day()}
    return stacked(_days(since), values, TOKEN_SERIES, thousands, short_count)


def top_models(since: datetime) -> list[Row]:
    spend = {row["model"]: row["amount_nano"] for row in Posting.objects.charges().between(since).by_model()}
    rows = UsageRecord.objects.between(since).by_model()[:TOP]
    return _ranked([(row["name"], "", row, spend.get(row["name"], 0)) for row in rows])


def top_keys(since: datetime) -> list[Row]:
    charges = Posting.objects.charges().between(since).by_key()
    spend = {(row["key_id"], row["project_name"]): row["amount_nano"] for row in charges}
    rows = UsageRecord.objects.between(since).by_key()[:TOP]
    return _ranked(
        [
            (row["key_name"] or "no key", row["project_name"], row, spend.get((row["key_id"], row["project_name"]), 0))
            for row in rows
        ]
    )


def _ranked(entries: list[tuple[str, str, dict[str, Any], int]]) -> list[Row]:
    largest = max((row["tokens"] for _name, _note, row, _spend in entries), default=0)
    return [
        Row(
            name=name,
            note=note,
            responses=thousands(row["responses"]),
            tokens=short_count(row["tokens"]),
            spend=short_dollars(spend),
            share=f"{100 * row['tokens'] / largest:.2f}" if largest else "0",
        )
        for name, note, row, spend in entries
    ]


def _days(since: datetime) -> list[Any]:
    return [(since + timedelta(days=number)).date() for number in range(DAYS)]
