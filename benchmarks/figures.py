"""What a benchmark has found, beside what was aimed at: tables to read, and JSON for charts."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from .report import header, versions


@dataclass(frozen=True, slots=True)
class Figure:
    """One cell: a value for each round. ``at_most`` and ``at_least`` are what it is aimed at; neither is asserted."""

    table: str
    row: str
    column: str
    rounds: Sequence[float]
    at_most: float | None = None
    at_least: float | None = None

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def target(self) -> str:
        return f"≤ {said(self.at_most)}" if self.at_most is not None else f"≥ {said(self.at_least or 0)}"

    @property
    def is_met(self) -> bool | None:
        """None where nothing is aimed at."""
        if self.at_most is not None:
            return self.median <= self.at_most
        return None if self.at_least is None else self.median >= self.at_least

    def __str__(self) -> str:
        spread = f" ({said(min(self.rounds))}–{said(max(self.rounds))})" if len(self.rounds) > 1 else ""
        return said(self.median) + spread


def said(value: float) -> str:
    """A number with as many places as are worth reading."""
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{places}f}"


@dataclass(slots=True)
class Findings:
    """All of one run. ``texts`` stand before the tables and ``notes`` behind them; ``series`` is for charts alone.

    ``given``: the arguments of the run, None for those of the command line.
    """

    module: str
    rounds: int
    given: Sequence[str] | None
    figures: list[Figure] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    def add(self, table: str, row: str, column: str, rounds: Sequence[float], **aimed: float | None) -> None:
        self.figures.append(Figure(table, row, column, list(rounds), **aimed))

    def tell(self, path: Path | None = None) -> None:
        """Print everything; write it to ``path``."""
        lines = header(self.rounds, load_before=self.load_before, module=self.module, given=self.given)
        print("\n".join(lines), *self.texts, sep="\n\n")
        for name in dict.fromkeys(figure.table for figure in self.figures):
            print("", f"**{name}**", "", *self._table(name), sep="\n")
        if any(figure.is_met is not None for figure in self.figures):
            print("", *self._targets(), sep="\n")
        for note in self.notes:
            print(f"\n{note}")
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        told = [asdict(figure) | {"median": figure.median, "is_met": figure.is_met} for figure in self.figures]
        written = {"about": lines, "versions": versions(), "figures": told, "notes": self.notes, "series": self.series}
        path.write_text(json.dumps(written, indent=1))

    def _table(self, name: str) -> list[str]:
        figures = [figure for figure in self.figures if figure.table == name]
        columns = list(dict.fromkeys(figure.column for figure in figures))
        cells = {(figure.row, figure.column): str(figure) for figure in figures}
        lines = [f"| | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
        for row in dict.fromkeys(figure.row for figure in figures):
            lines.append(f"| {row} | {' | '.join(cells.get((row, column), '') for column in columns)} |")
        return lines

    def _targets(self) -> list[str]:
        lines = ["| aimed at | found | target | |", "| --- | ---: | ---: | --- |"]
        for figure in self.figures:
            if figure.is_met is not None:
                verdict = "met" if figure.is_met else "**missed**"
                lines.append(f"| {figure.row}: {figure.column} | {said(figure.median)} | {figure.target} | {verdict} |")
        return lines


def arguments(module: str, about: str, *, rounds: int) -> argparse.ArgumentParser:
    """What every benchmark takes."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser
