"""Stacked bars as numbers for an SVG: no script, no inline style, nothing fetched. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date

import msgspec

WIDTH, HEIGHT = 560, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 10, 24
PLOT_WIDTH = WIDTH - LEFT - RIGHT
PLOT_HEIGHT = HEIGHT - TOP - BOTTOM
GAP = 0.28
"""The part of a day's width that stays empty."""


class Piece(msgspec.Struct, frozen=True):
    """One rectangle of a bar, in SVG units."""

    series: str
    y: str
    height: str


class Bar(msgspec.Struct, frozen=True):
    """One day: its pieces from the bottom up, the whole column to point at, and what it says there."""

    x: str
    width: str
    column_x: str
    column_width: str
    pieces: list[Piece]
    title: str
    label: str
    """Under the axis; empty for most days."""
    label_x: str


class Tick(msgspec.Struct, frozen=True):
    """A line across the plot with its value at the left."""

    y: str
    label: str


class Chart(msgspec.Struct, frozen=True):
    """All of one picture."""

    bars: list[Bar]
    ticks: list[Tick]
    rows: list[tuple[str, list[str]]]
    """The same as a table: day, and a value per series."""
    total: int
    """All days together."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    plot_width: int = PLOT_WIDTH
    plot_height: int = PLOT_HEIGHT
    top: int = TOP
    base: int = TOP + PLOT_HEIGHT
    right: int = LEFT + PLOT_WIDTH


def stacked(
    days: Sequence[date],
    values: Mapping[date, Mapping[str, int]],
    series: Mapping[str, str],
    show: Callable[[int], str],
    show_tick: Callable[[int], str] | None = None,
) -> Chart:
    """One bar a day.

    Args:
        days: every day of the axis; those without values are empty columns.
        values: by day and series; a negative value (a reversal) is drawn as nothing and told in full.
        series: title by name, the lowest piece first.
        show: a value in words, for titles and the table; ``show_tick`` the same for the axis.
    """
    totals = {day: sum(max(values.get(day, {}).get(name, 0), 0) for name in series) for day in days}
    largest = max(totals.values(), default=0)
    step, count = nice_scale(largest)
    full = step * count
    column = PLOT_WIDTH / max(len(days), 1)
    bars, rows = [], []
    for number, day in enumerate(days):
        parts = {name: values.get(day, {}).get(name, 0) for name in series}
        x = LEFT + number * column
        top = float(TOP + PLOT_HEIGHT)
        pieces = []
        for name, value in parts.items():
            height = max(value, 0) * PLOT_HEIGHT / full
            top -= height
            if height:
                pieces.append(Piece(name, _number(top), _number(height)))
        words = [f"{title} {show(parts[name])}" for name, title in series.items() if len(series) > 1]
        title = "\n".join([f"{day:%a, %d %b %Y}: {show(sum(parts.values()))}", *words])
        # Weekly, counted from the newest day, which is the one people look for.
        label = f"{day:%d %b}".lstrip("0") if (len(days) - 1 - number) % 7 == 0 else ""
        bars.append(
            Bar(
                x=_number(x + column * GAP / 2),
                width=_number(column * (1 - GAP)),
                column_x=_number(x),
                column_width=_number(column),
                pieces=pieces,
                title=title,
                label=label,
                label_x=_number(x + column / 2),
            )
        )
        rows.append((f"{day:%Y-%m-%d}", [show(parts[name]) for name in series]))
    ticks = [
        Tick(_number(TOP + PLOT_HEIGHT - PLOT_HEIGHT * number / count), (show_tick or show)(step * number))
        # Without any bar the least unit would be shown, in all its digits.
        for number in range(count + 1 if largest > 0 else 1)
    ]
    total = sum(sum(values.get(day, {}).get(name, 0) for name in series) for day in days)
    return Chart(bars, ticks, rows, total)


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


def _number(value: float) -> str:
    """A coordinate, to a hundredth, in a form that no locale changes."""
    return f"{value:.2f}"
