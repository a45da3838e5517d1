"""Pictures as numbers: bars that are stacked, lines with gaps, scales that people read."""

from datetime import UTC, datetime, timedelta

import pytest

from responses_ws.admin.charts import Dot, lines, nice_scale, stacked
from responses_ws.admin.formats import short_dollars

DAY = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("largest", "scale"),
    [(0, (1, 2)), (1, (1, 2)), (7, (2, 4)), (10, (2, 5)), (11, (5, 3)), (999, (200, 5)), (1_001, (500, 3))],
)
def test_the_scale_is_round_and_holds_the_largest(largest, scale):
    step, count = nice_scale(largest)

    assert (step, count) == scale
    assert step * count >= largest


def test_bars_are_stacked_from_the_bottom_up_and_a_reversal_is_told_not_drawn():
    chart = stacked([DAY], {DAY: {"a": 6, "b": 4, "c": -1}}, {"a": "A", "b": "B", "c": "C"}, str)

    (column,) = chart.columns
    # 166 high and 494 wide, of which a part is a gap; 6 of 10 end on the ground, 4 stand on them.
    assert [(bars.series, bars.path) for bars in chart.bars] == [
        ("a", "M123.16 76.40h355.68v99.60h-355.68z"),
        ("b", "M123.16 10.00h355.68v66.40h-355.68z"),
    ]
    assert column.title == "Sun, 29 Nov 2026: 9\nA 6\nB 4\nC -1"
    assert [tick.label for tick in chart.ticks] == ["0", "2", "4", "6", "8", "10"]


@pytest.mark.parametrize(
    ("largest", "labels"),
    [
        (2 * 10**9, ["$0.00", "$0.50", "$1.00", "$1.50", "$2.00"]),
        (5 * 10**7, ["$0.00", "$0.01", "$0.02", "$0.03", "$0.04", "$0.05"]),
        (2 * 10**6, ["$0.00", "$0.0005", "$0.001", "$0.0015", "$0.002"]),
    ],
    ids=["dollars", "cents", "less than cents"],
)
def test_the_labels_of_an_axis_have_as_many_places_as_they_need(largest, labels):
    chart = stacked([DAY], {DAY: {"a": largest}}, {"a": "A"}, short_dollars)

    assert [tick.label for tick in chart.ticks] == labels


def test_bars_of_what_is_not_over_are_their_own_and_say_so():
    starts = [DAY, DAY + timedelta(days=1)]
    chart = stacked(starts, {start: {"a": 1} for start in starts}, {"a": "A"}, str, is_open=True)

    assert [(bars.series, bars.is_open, bars.path.count("M")) for bars in chart.bars] == [
        ("a", False, 1),
        ("a", True, 1),
    ]
    assert [column.title for column in chart.columns] == ["Sun, 29 Nov 2026: 1", "Mon, 30 Nov 2026 so far: 1"]


def test_a_chart_of_nothing_has_a_ground_line_only():
    for chart in (stacked([DAY], {}, {"a": "A"}, str), lines([DAY], {}, {"a": "A"}, str)):
        assert [tick.label for tick in chart.ticks] == ["0"]
        assert chart.is_empty and chart.summary == "Nothing in this time."


def test_a_line_stops_where_nothing_is_known_and_a_lonely_value_is_a_dot():
    starts = [DAY + timedelta(hours=number) for number in range(5)]
    values = {starts[0]: {"p50": 10.0}, starts[1]: {"p50": 20.0}, starts[3]: {"p50": 15.0}, starts[4]: {}}

    chart = lines(starts, values, {"p50": "p50"}, "{:.0f} ms".format)

    (line,) = chart.lines
    (dot,) = chart.dots
    assert len(line.points.split()) == 2
    assert isinstance(dot, Dot) and line.points.split()[0] < dot.x
    assert [row[1] for row in chart.rows] == [["10 ms"], ["20 ms"], ["–"], ["15 ms"], ["–"]]


@pytest.mark.parametrize("count", [1, 7, 24, 30, 90, 400])
def test_no_more_labels_than_fit_and_the_newest_has_one(count):
    starts = [DAY - timedelta(days=count - 1 - number) for number in range(count)]

    labels = [column.label for column in stacked(starts, {}, {"a": "A"}, str).columns]

    assert labels[-1] == "29 Nov"
    assert sum(map(bool, labels)) <= 6
