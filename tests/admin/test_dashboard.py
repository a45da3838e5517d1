"""The dashboard tells what the tables say, to who may see it, without script, style or anything from elsewhere."""

import re
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from responses_ws.admin.base import HAS_UNFOLD
from responses_ws.admin.dashboard import figures
from responses_ws.admin.panels import Card
from responses_ws.admin.scope import scope_of
from responses_ws.billing import ledger
from responses_ws.models import Budget, Heartbeat, Reconciliation, UsageRecord
from tests.billing.rows import NOON, make_key, make_prices, make_project, make_record

from .conftest import make_flag

pytestmark = pytest.mark.django_db

PATH = "/admin/responses_ws/dashboard/"


@pytest.fixture
def busy(db):
    """A month of a small company: `NOON` is now."""
    make_prices()
    project = make_project("acme", "chat")
    laptop = make_key(project)
    for number in range(20):
        make_record(
            project,
            api_key=laptop,
            started_at=NOON - timedelta(minutes=number),
            first_token_ms=100.0,
            duration_ms=1_100.0,
            checks_ms=2.0,
            render_ms=8.0,
            cached_tokens=500,
            reasoning_tokens=50,
        )
    make_record(project, status="failed", reason="engine_error", started_at=NOON - timedelta(hours=1), transport="sse")
    make_record(make_project("globex", "lab"), started_at=datetime(2026, 10, 3, 5, tzinfo=UTC))
    ledger.bill_all()
    make_record(project, status="in_progress", started_at=NOON)
    make_record(project, started_at=NOON - timedelta(minutes=3))
    return laptop


def shown(now=NOON, **given):
    return figures(scope_of(given, now), now=now)


def cards(of, name):
    return {card.title: card for card in of[name]}


def test_money_is_told_against_last_month_up_to_the_same_day(busy):
    found = cards(shown(), "money_cards")

    # 20 × (500 × $2 + 500 × $0.50 + 100 × $8) a million; in October 1,000 × $2 + 100 × $8
    assert found["Spend this month"].value == "$0.0410"
    assert found["Spend this month"].note == "+1,364% against $0.0028 by this day of last month"
    assert found["Error rate"] == Card("Error rate", "4.8%", "1 of 21 failed")
    assert found["Responses, last 30 days"].note == "23.1k tokens"


def test_load_and_health_are_told(busy):
    found = cards(shown(), "load_cards")

    assert found["Generating now"].value == "1"
    assert found["First token"].value != "–"
    assert found["Unbilled"].is_alarming and found["Unbilled"].note == "the oldest for 2 min"
    assert found["Books"].note == "never compared: is beat running?"


def test_a_beat_that_is_silent_is_told_before_usage_waits(busy):
    Heartbeat.objects.create(name=Heartbeat.BEAT, at=NOON - timedelta(minutes=3))
    UsageRecord.objects.unbilled().update(billed_at=NOON)

    card = cards(shown(), "load_cards")["Unbilled"]

    assert card == Card("Unbilled", "0", "nothing from beat for 3 min", is_alarming=True)


def test_the_books_are_a_card_when_right_and_a_banner_when_wrong(boss, busy):
    Reconciliation.objects.create(started_at=NOON, ended_at=NOON - timedelta(hours=3), differences=0)
    assert cards(shown(), "load_cards")["Books"] == Card("Books", "Agree", "compared 3 h ago")
    assert cards(shown(NOON + timedelta(days=2)), "load_cards")["Books"].is_alarming
    assert "do not agree" not in boss.get(PATH).content.decode()

    wrong = Reconciliation.objects.create(started_at=NOON, ended_at=NOON, differences=2, told="balance: …")

    assert cards(shown(), "load_cards")["Books"] == Card("Books", "2 wrong", "compared 0 s ago", is_alarming=True)
    page = boss.get(PATH).content.decode()
    assert "do not agree" in page
    assert reverse("admin:responses_ws_reconciliation_change", args=(wrong.pk,)) in page


def test_charts_hold_every_day_or_hour_of_the_period(busy):
    days = {id: chart for id, _title, chart in shown()["charts"]}
    hours = {id: chart for id, _title, chart in shown(period="24h")["charts"]}

    assert [name for name, _values in days["spend"].rows][::29] == ["2026-10-31", "2026-11-29"]
    assert days["spend"].rows[-1] == ("2026-11-29", ["$0.0410"])
    assert days["tokens"].rows[-1] == ("2026-11-29", ["11,000", "10,000", "1,100", "1,000"])
    assert days["responses"].rows[-1] == ("2026-11-29", ["20", "0", "0", "1"])
    assert hours["responses"].rows[-2:] == [
        ("2026-11-29 11:00", ["19", "0", "0", "1"]),
        ("2026-11-29 12:00", ["1", "0", "0", "0"]),
    ]


def test_one_goes_down_from_organisation_to_project_to_key_to_response(boss, busy):
    path, titles = PATH + "?from=2026-11-01&to=2026-11-30", []
    for _step in range(3):
        page = boss.get(path).content.decode()
        titles.append(re.findall(r"<h3>(Organisations|Projects|API keys|Models|Newest responses)</h3>", page))
        link = re.search(r'<th scope="row"><a href="(\?[^"]*)" data-soft>(acme|chat|laptop)</a>', page)
        path = PATH + link[1].replace("&amp;", "&")
    of_key = boss.get(path).content.decode()
    response = re.search(r'<a href="(/admin/responses_ws/dashboard/responses/[^"]+)">', of_key)

    assert titles == [
        ["Organisations", "Projects", "API keys", "Models"],
        ["Projects", "API keys", "Models"],
        ["API keys", "Models", "Newest responses"],
    ]
    assert 'aria-current="page">laptop<' in of_key
    assert boss.get(response[1]).status_code == 200


def test_filters_leave_only_what_they_name(busy):
    only_globex = shown(organization=str(make_project("globex", "lab").organization_id), period="last_month")
    only_other = shown(model="another")

    assert cards(only_globex, "money_cards")["Responses, last month"].value == "1"
    assert cards(only_other, "money_cards")["Responses, last 30 days"].value == "0"
    assert [row.name for ranking in only_globex["rankings"] for row in ranking.rows] == ["lab", "no key", "m"]


def test_ways_failures_and_times_are_told(busy):
    found = shown()

    assert [(way.name, way.turns, way.failed) for way in found["ways"]] == [
        ("WebSocket", "20", "0.0%"),
        ("SSE", "1", "100.0%"),
    ]
    ((code, status, count, share, _url),) = found["reasons"]
    assert (code, status, count, share) == ("engine_error", "failed", "1", "4.8%")
    assert {phase.title: phase.mean for phase in found["phases"]} == {
        "Checks": "2.0 ms",
        "Render": "8.0 ms",
        "First token": "90.0 ms",
        "The rest of the answer": "1.00 s",
    }


def test_a_failure_leads_to_its_records(boss, busy):
    ((*_words, url),) = shown()["reasons"]

    page = boss.get(url)

    assert page.status_code == 200
    assert [record.reason for record in page.context["cl"].queryset] == ["engine_error"]


def test_budgets_near_their_limit_are_shown_the_fullest_first(busy):
    owner = busy.project.organization
    Budget.objects.create(organization=owner, limit_nano=50_000_000)
    Budget.objects.create(organization=owner, project=busy.project, limit_nano=20_000_000)
    Budget.objects.create(organization=owner, limit_nano=60_000_000)
    Budget.objects.create(organization=owner, limit_nano=1, is_active=False)

    assert [(budget.percent, budget.is_over) for budget in shown()["budgets"]] == [("205%", True), ("82%", False)]


def test_flags_that_wait_are_counted_where_one_looks(busy):
    make_flag(busy.project, "resp_1")
    make_flag(busy.project, "resp_2", state="dismissed", reviewed_at=NOON)

    assert shown()["flags"].value == "1"
    assert shown(organization=str(make_project("globex").organization_id))["flags"].value == "0"


def test_panels_of_other_tables_are_for_who_may_see_these(log_in, busy):
    Reconciliation.objects.create(started_at=NOON, differences=2)
    page = log_in("view_usagerecord").get(PATH).content.decode()

    assert "Budgets near their limit" not in page
    assert "Flagged turns" not in page
    assert "do not agree" not in page


def test_a_newcomer_is_told_what_to_do_first(boss, log_in):
    page = boss.get(PATH).content.decode()
    assert "Nothing has been asked yet" in page
    assert reverse("admin:responses_ws_apikey_add") in page[page.index("rws-welcome") :]

    make_record()

    assert "Nothing has been asked yet" not in boss.get(PATH).content.decode()
    assert UsageRecord.objects.count() == 1


def test_who_may_view_usage_may_open_it_and_finds_it_in_the_index(log_in):
    allowed, refused = log_in("view_usagerecord"), log_in("view_price")

    assert allowed.get(PATH).status_code == 200
    assert PATH in allowed.get(reverse("admin:index")).content.decode()
    assert refused.get(PATH).status_code == 403
    assert PATH not in refused.get(reverse("admin:index")).content.decode()


def test_names_of_strangers_are_escaped(boss):
    make_record(make_project("<b>o", "<b>p"), model="<script>y</script>", reason="<i>r", status="failed")
    ledger.bill_all()
    project = make_project("<b>o", "<b>p")

    for query in ("?from=2026-11-01&to=2026-11-30", f"?from=2026-11-01&to=2026-11-30&project={project.pk}"):
        page = boss.get(PATH + query).content.decode()

        assert "&lt;script&gt;y" in page and "&lt;b&gt;p" in page
        for raw in ("<script>y", "<b>p", "<b>o", "<i>r"):
            assert raw not in page


def test_the_number_of_queries_does_not_depend_on_the_rows(busy):
    with CaptureQueriesContext(connection) as few:
        shown()
    for number in range(12):
        project = make_project(f"org {number}", f"project {number}")
        make_record(project, api_key=make_key(project), model=f"model {number}")
    ledger.bill_all()
    with CaptureQueriesContext(connection) as many:
        shown()

    assert len(few) == len(many) <= 32


class Ours(HTMLParser):
    """What of a page is our own: from ``div.rws`` to its end."""

    def __init__(self):
        super().__init__()
        self.depth = 0
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if self.depth or "rws" in (given.get("class") or "").split():
            self.tags.append((tag, given))
            self.depth += tag not in ("input", "br", "hr", "img", "meta", "link")
            if tag in ("h1", "h2", "h3"):
                self.headings.append(tag)

    def handle_startendtag(self, tag, attrs):
        if self.depth:
            self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self.depth -= bool(self.depth)


def ours(page: str) -> Ours:
    found = Ours()
    found.feed(page)
    assert found.tags and found.depth == 0
    return found


@pytest.fixture
def our_pages(boss, busy):
    Reconciliation.objects.create(started_at=NOON, differences=2)
    response = reverse("admin:responses_ws_dashboard_response", args=(UsageRecord.objects.first().response_id,))
    return [
        boss.get(path) for path in (PATH, f"{PATH}?project={busy.project_id}&from=2026-11-01&to=2026-11-30", response)
    ]


def test_our_pages_have_no_script_and_no_style_of_their_own(our_pages):
    for page in our_pages:
        for tag, given in ours(page.content.decode()).tags:
            assert tag not in ("script", "style", "iframe", "object"), tag
            assert "style" not in given
            assert not [name for name in given if name.startswith("on")]


def test_nothing_on_our_pages_comes_from_elsewhere(our_pages):
    for page in our_pages:
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "'unsafe-inline'" not in policy.partition("style-src")[0]
        if not HAS_UNFOLD:
            assert "unsafe" not in policy
        for address in re.findall(r'(?:src|href|action)="([^"]*)"', page.content.decode()):
            assert not re.match(r"(?:[a-z]+:)?//", address), address


def test_our_static_files_load_nothing_from_elsewhere():
    files = [path for path in Path(finders.find("responses_ws/page.css")).parent.rglob("*") if path.is_file()]

    assert len(files) > 3
    for path in files:
        if path.suffix in (".css", ".js", ".mjs", ".html", ".svg"):
            text = path.read_text()
            found = re.findall(r"""(?:@import|url\(|\bfrom|\bimport\(?|fetch\()\s*["']?(?:[a-z]+:)?//[^\s"')]+""", text)
            assert not found, (path.name, found)


def test_our_pages_can_be_read_without_seeing_them(our_pages):
    for page in our_pages:
        found = ours(page.content.decode())
        levels = [int(heading[1]) for heading in found.headings]

        # No level is left out on the way down; the page's own title is the first.
        steps = zip([1, *levels], levels, strict=False)
        assert all(after - before <= 1 for before, after in steps), levels
        for tag, given in found.tags:
            if tag == "svg":
                assert given.get("aria-hidden") or (given["role"] == "img" and given["aria-label"])
            if tag == "th":
                assert given["scope"] in ("col", "row")
        names = [given["id"] for _tag, given in found.tags if "id" in given]
        assert len(names) == len(set(names))
        labels = {name for _tag, given in found.tags for name in (given.get("aria-labelledby") or "").split()}
        assert labels <= set(names)
        # Every picture of a time has its table.
        charts = [given for tag, given in found.tags if tag == "svg" and given.get("class") == "rws-chart"]
        assert len(charts) == sum(tag == "summary" for tag, _given in found.tags) - page.content.count(b"Other days")


def test_the_pictures_are_well_formed(boss, busy):
    page = boss.get(PATH).content.decode()

    pictures = page.split('<svg class="rws-chart"')[1:]
    assert len(pictures) == 4
    for picture in pictures:
        root = ElementTree.fromstring("<svg " + picture[: picture.index("</svg>")] + "</svg>")
        assert len(root.findall("g")) == 30
