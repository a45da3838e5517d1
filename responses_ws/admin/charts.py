"""Stacked bars and lines as numbers for an SVG: no script, no inline style, nothing fetched. Pure."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby

import msgspec

WIDTH, HEIGHT = 560, 200
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 10, 24
PLOT_WIDTH = WIDTH - LEFT - RIGHT
PLOT_HEIGHT = HEIGHT - TOP - BOTTOM
GAP = 0.28
"""The part of a column's width that stays empty."""
MOST_LABELS = 6

Values = Mapping[datetime, Mapping[str, float | None]]
"""By the beginning of an hour or a day, and by series."""

_ZEROS, _CENTS = re.compile(r"(\.\d\d)0+\b"), re.compile(r"\.\d\d(?!\d)")


class Bars(msgspec.Struct, frozen=True):
    """All rectangles of a series, as one path: a page has hundreds of them."""

    series: str
    path: str
    is_open: bool = False
    """Of the last hour or day, which is not over."""


class Dot(msgspec.Struct, frozen=True):
    """A value with no neighbours: a line would not show it."""

    series: str
    x: str
    y: str


class Column(msgspec.Struct, frozen=True):
    """One hour or day to point at, and what it says there."""

    x: str
    width: str
    title: str
    label: str
    """Under the axis; empty for most."""
    label_x: str


class Tick(msgspec.Struct, frozen=True):
    """A line across the plot with its value at the left."""

    y: str
    label: str


class Line(msgspec.Struct, frozen=True):
    """A run of values without a gap, as the points of a polyline."""

    series: str
    points: str


class Chart(msgspec.Struct, frozen=True):
    """All of one picture."""

    series: list[tuple[str, str]]
    """Name and title, the lowest piece first."""
    columns: list[Column]
    ticks: list[Tick]
    rows: list[tuple[str, list[str]]]
    """The same as a table: hour or day, and a value per series."""
    summary: str
    """In a sentence, for who cannot see it."""
    bars: list[Bars] = []
    lines: list[Line] = []
    dots: list[Dot] = []
    is_empty: bool = False
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    plot_height: int = PLOT_HEIGHT
    top: int = TOP
    right: int = LEFT + PLOT_WIDTH


def stacked(
    starts: Sequence[datetime],
    values: Values,
    series: Mapping[str, str],
    show: Callable[[int], str],
    show_tick: Callable[[int], str] | None = None,
    *,
    is_open: bool = False,
) -> Chart:
    """One bar an hour or a day.

    Args:
        starts: all of the axis; those without values are empty columns.
        values: integers; a negative value (a reversal) is drawn as nothing and told in full.
        series: title by name, the lowest piece first.
        show: a value in words, for titles and the table; ``show_tick`` the same for the axis.
        is_open: the last one is not over.
    """
    told = [{name: int(values.get(start, {}).get(name) or 0) for name in series} for start in starts]
    largest = max((sum(max(value, 0) for value in parts.values()) for parts in told), default=0)
    step, count = nice_scale(largest)
    columns, rows = [], []
    paths: dict[tuple[str, bool], str] = defaultdict(str)
    for place, start, parts in zip(_places(starts), starts, told, strict=True):
        is_last = is_open and start == starts[-1]
        top = float(TOP + PLOT_HEIGHT)
        for name, value in parts.items():
            height = max(value, 0) * PLOT_HEIGHT / (step * count)
            top -= height
            if height:
                paths[name, is_last] += place.bar(top, height)
        words = [f"{title} {show(parts[name])}" for name, title in series.items() if len(series) > 1]
        so_far = " so far" if is_last else ""
        columns.append(place.column("\n".join([f"{place.spoken}{so_far}: {show(sum(parts.values()))}", *words])))
        rows.append((place.name, [show(parts[name]) for name in series]))
    total = sum(sum(parts.values()) for parts in told)
    return Chart(
        series=list(series.items()),
        columns=columns,
        ticks=_ticks(step, count, largest, show_tick or show),
        rows=rows,
        bars=[Bars(name, path, is_last) for (name, is_last), path in paths.items()],
        summary=f"{show(total)} in all, at most {show(largest)} at once." if largest else "Nothing in this time.",
        is_empty=not any(any(parts.values()) for parts in told),
    )


def lines(starts: Sequence[datetime], values: Values, series: Mapping[str, str], show: Callable[[float], str]) -> Chart:
    """A line a series; where there is no value, there is a gap."""
    told = [{name: values.get(start, {}).get(name) for name in series} for start in starts]
    known = [value for parts in told for value in parts.values() if value is not None]
    largest = math.ceil(max(known, default=0))
    step, count = nice_scale(largest)
    places = _places(starts)
    drawn: list[Line] = []
    dots: list[Dot] = []
    for name in series:
        points = [
            (place.middle, None if value is None else _number(TOP + PLOT_HEIGHT * (1 - value / (step * count))))
            for place, value in zip(places, [parts[name] for parts in told], strict=True)
        ]
        for is_known, run in groupby(points, key=lambda point: point[1] is not None):
            found = [f"{x},{y}" for x, y in run]
            if is_known and len(found) == 1:
                dots.append(Dot(name, *found[0].split(",")))
            elif is_known:
                drawn.append(Line(name, " ".join(found)))
    columns, rows = [], []
    for place, parts in zip(places, told, strict=True):
        spoken = {name: "–" if value is None else show(value) for name, value in parts.items()}
        words = [f"{title} {spoken[name]}" for name, title in series.items()]
        columns.append(place.column("\n".join([place.spoken, *words])))
        rows.append((place.name, list(spoken.values())))
    return Chart(
        series=list(series.items()),
        columns=columns,
        ticks=_ticks(step, count, largest, show),
        rows=rows,
        summary=f"Between {show(min(known))} and {show(max(known))}." if known else "Nothing in this time.",
        lines=drawn,
        dots=dots,
        is_empty=not known,
    )


def nice_scale(largest: int) -> tuple[int, int]:
    """The step between lines, 1, 2 or 5 times a power of ten, and how many steps hold ``largest``: 2 to 5."""
    if largest <= 0:
        return 1, 2
    power = 10 ** max(math.floor(math.log10(largest)) - 1, 0)
    for factor in (1, 2, 5, 10, 20, 50):
        step = factor * power
        count = max(-(-largest // step), 2)
        if count <= 5:
            break
    return step, count


class _Place(msgspec.Struct, frozen=True):
    """Where an hour or a day stands, and what it is called."""

    x: float
    width: float
    name: str
    spoken: str
    label: str

    @property
    def middle(self) -> str:
        return _number(self.x + self.width / 2)

    def bar(self, top: float, height: float) -> str:
        width = self.width * (1 - GAP)
        return f"M{self.x + self.width * GAP / 2:.2f} {top:.2f}h{width:.2f}v{height:.2f}h-{width:.2f}z"

    def column(self, title: str) -> Column:
        return Column(x=_number(self.x), width=_number(self.width), title=title, label=self.label, label_x=self.middle)


def _places(starts: Sequence[datetime]) -> list[_Place]:
    width = PLOT_WIDTH / max(len(starts), 1)
    is_hourly = len(starts) > 1 and starts[1] - starts[0] < timedelta(days=1)
    between = max(-(-len(starts) // MOST_LABELS), 1)
    places = []
    for number, start in enumerate(starts):
        day = f"{start.day} {start:%b}"
        # Counted from the newest, which is the one people look for.
        is_labelled = (len(starts) - 1 - number) % between == 0
        label = f"{start:%H:%M}" if is_hourly else day
        places.append(
            _Place(
                x=LEFT + number * width,
                width=width,
                name=f"{start:%Y-%m-%d %H:%M}" if is_hourly else f"{start:%Y-%m-%d}",
                spoken=f"{start:%a}, {day}, {start:%H:%M}" if is_hourly else f"{start:%a}, {day} {start:%Y}",
                label=label if is_labelled else "",
            )
        )
    return places


def _ticks(step: int, count: int, largest: int, show: Callable[[int], str]) -> list[Tick]:
    # Without any value the least unit would be shown, in all its digits.
    numbers = range(count + 1 if largest > 0 else 1)
    labels = [show(step * number) for number in numbers]
    # Next to $1.00 half a dollar is $0.50, not $0.5000.
    even = [_ZEROS.sub(r"\1", label) for label in labels]
    if all(_CENTS.search(label) for label in even):
        labels = even
    return [Tick(_number(TOP + PLOT_HEIGHT - PLOT_HEIGHT * number / count), labels[number]) for number in numbers]


def _number(value: float) -> str:
    """A coordinate, to a hundredth, in a form that no locale changes."""
    return f"{value:.2f}"
