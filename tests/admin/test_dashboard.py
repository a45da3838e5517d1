"""The dashboard tells what the tables say."""

import xml.etree.ElementTree as ElementTree
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from responses_ws.admin.charts import HEIGHT, TOP, nice_scale, stacked
from responses_ws.admin.dashboard import Card, Row, figures, top_keys, top_models
from responses_ws.billing import ledger
from tests.billing.rows import NOON, make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

PATH = "/admin/responses_ws/dashboard/"


@pytest.fixture
def busy(db):
    """A day of a small company: `NOON` is now."""
    make_prices()
    project = make_project("acme", "chat")
    laptop = make_key(project)
    for number in range(20):
        make_record(
            project,
            api_key=laptop,
            started_at=NOON - timedelta(minutes=number),
            first_token_ms=10.0 * (number + 1),
            input_tokens=1_000,
            cached_tokens=500,
            output_tokens=100,
            reasoning_tokens=50,
            render_path="append" if number else "full",
        )
    make_record(project, status="failed", started_at=NOON - timedelta(hours=1), input_tokens=0, output_tokens=0)
    make_record(project, started_at=datetime(2026, 10, 31, 23, tzinfo=UTC), model="old")
    make_prices(model="old")
    make_record(project, started_at=datetime(2026, 10, 31, 23, tzinfo=UTC), model="old")
    ledger.bill_all()
    make_record(project, status="in_progress", started_at=NOON, input_tokens=0, output_tokens=0)
    make_record(project, started_at=NOON - timedelta(minutes=3), input_tokens=1, output_tokens=0)


def test_the_cards_tell_money_load_speed_and_failures(busy):
    assert figures(NOON)["cards"] == [
        Card("Spend this month", "$0.0410", "since 1 November"),
        Card("Spend last month", "$0.0056", "October 2026"),
        Card("Tokens today", "22k", "22 responses"),
        Card("Generating now", "1", "responses in progress"),
        Card("Live sockets", "0", "in this process"),
        Card("First token", "100 ms", "p50 of 24 h, p95 190 ms"),
        Card("Error rate", "4.5%", "1 of 22 in 24 h"),
        Card("Prompts appended", "95.0%", "1 made whole"),
        Card("Unbilled", "1", "the oldest for 2 min", is_alarming=True),
    ]


def test_rankings_put_tokens_and_spend_together(busy):
    since = NOON - timedelta(days=29)

    assert top_models(since) == [
        Row("m", "", "22", "22k", "$0.0410", "100.00"),
        Row("old", "", "2", "2.2k", "$0.0056", "10.00"),
    ]
    assert [(row.name, row.note, row.spend) for row in top_keys(since)] == [
        ("laptop", "chat", "$0.0410"),
        ("no key", "chat", "$0.0056"),
    ]


def test_charts_hold_every_day_of_the_period(busy):
    shown = figures(NOON)

    assert [day for day, _values in shown["money"].rows][::29] == ["2026-10-31", "2026-11-29"]
    assert shown["money"].rows[0] == ("2026-10-31", ["$0.0056"])
    assert shown["money"].rows[-1] == ("2026-11-29", ["$0.041"])
    assert shown["tokens"].rows[-1] == ("2026-11-29", ["10,001", "10,000", "1,000", "1,000"])
    assert {tuple(values) for _day, values in shown["tokens"].rows[1:-1]} == {("0", "0", "0", "0")}


def test_the_page_opens_empty_and_full(boss, busy):
    page = boss.get(PATH)

    assert page.status_code == 200
    assert page.content.count(b"<svg") >= 4


def test_the_page_opens_without_any_row(boss):
    page = boss.get(PATH).content.decode()

    assert "billing keeps up" in page
    assert "Nothing in 30 days." in page


def test_the_page_has_no_script_and_no_style_of_its_own(boss, busy):
    """A strict Content-Security-Policy may be in force, and an operator may have no internet."""
    page = boss.get(PATH).content.decode()
    ours = page[page.index('class="rws') :]
    ours = ours[: ours.index('<footer id="footer"')]

    assert "<script" not in ours
    assert "style=" not in ours
    assert "http" not in ours


def test_the_pictures_are_well_formed(boss, busy):
    page = boss.get(PATH).content.decode()

    for picture in page.split('<svg class="rws-chart"')[1:]:
        root = ElementTree.fromstring("<svg " + picture[: picture.index("</svg>")] + "</svg>")
        assert len(root.findall("g")) == 30


def test_who_may_view_usage_may_open_it_and_finds_it_in_the_index(log_in):
    allowed, refused = log_in("view_usagerecord"), log_in("view_price")

    assert allowed.get(PATH).status_code == 200
    assert PATH in allowed.get(reverse("admin:index")).content.decode()
    assert refused.get(PATH).status_code == 403
    assert PATH not in refused.get(reverse("admin:index")).content.decode()


def test_names_of_strangers_are_escaped(boss):
    make_record(model="<script>x</script>")
    make_record(started_at=datetime.now(UTC), model="<script>y</script>")

    page = boss.get(PATH).content.decode()

    assert "&lt;script&gt;y" in page
    assert "<script>y" not in page


def test_the_number_of_queries_does_not_depend_on_the_rows(busy):
    with CaptureQueriesContext(connection) as queries:
        figures(NOON)

    assert len(queries) <= 20


@pytest.mark.parametrize(
    ("largest", "scale"),
    [(0, (1, 2)), (1, (1, 2)), (7, (2, 4)), (10, (2, 5)), (11, (5, 3)), (999, (200, 5)), (1_001, (500, 3))],
)
def test_the_scale_is_round_and_holds_the_largest(largest, scale):
    step, count = nice_scale(largest)

    assert (step, count) == scale
    assert step * count >= largest


def test_pieces_are_stacked_from_the_bottom_up():
    day = date(2026, 11, 29)

    chart = stacked([day], {day: {"a": 6, "b": 4, "c": -1}}, {"a": "A", "b": "B", "c": "C"}, str)

    (bar,) = chart.bars
    assert [(piece.series, piece.y, piece.height) for piece in bar.pieces] == [
        ("a", "80.40", "105.60"),
        ("b", "10.00", "70.40"),
    ]
    assert bar.title == "Sun, 29 Nov 2026: 9\nA 6\nB 4\nC -1"
    assert [tick.label for tick in chart.ticks] == ["0", "2", "4", "6", "8", "10"]
    assert (TOP, HEIGHT) == (10, 210)


def test_a_chart_of_nothing_has_a_ground_line_only():
    day = date(2026, 11, 29)

    assert [tick.label for tick in stacked([day], {}, {"a": "A"}, str).ticks] == ["0"]
