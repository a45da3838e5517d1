"""Pictures of what the benchmarks have found: plain SVG, in the colours of whoever looks at it, light or dark.

``python -m benchmarks.charts`` draws what is in ``var/bench`` into ``docs/images``.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from .figures import said

FOUND, IMAGES = Path("var/bench"), Path("docs/images")
WIDTH, LEFT, RIGHT, TOP = 760, 230, 90, 44
WAYS = {
    "engine": "the engine, directly",
    "http-new": "HTTP, all again, new connections",
    "http-keep": "HTTP, all again",
    "http-prev": "HTTP, previous_response_id",
    "ws": "WebSocket",
    "ws-long": "one long response",
}
BAR, GAP = 20, 8
HEIGHT = 320  # of lines
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 } .small { font-size: 12px; fill: #59636e }
.ours { fill: #0969da } .other { fill: #9aa4af } .line { fill: none; stroke-width: 2 } .grid { stroke: #d1d9e0 }
.s0 { stroke: #0969da } .s1 { stroke: #1a7f37 } .s2 { stroke: #bc4c00 } .s3 { stroke: #8250df } .s4 { stroke: #818b98 }
.t0 { fill: #0969da } .t1 { fill: #1a7f37 } .t2 { fill: #bc4c00 } .t3 { fill: #8250df } .t4 { fill: #59636e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d }
.ours { fill: #4493f8 } .other { fill: #656c76 }
.s0 { stroke: #4493f8 } .s1 { stroke: #3fb950 } .s2 { stroke: #db6d28 } .s3 { stroke: #ab7df8 } .s4 { stroke: #9198a1 }
.t0 { fill: #4493f8 } .t1 { fill: #3fb950 } .t2 { fill: #db6d28 } .t3 { fill: #ab7df8 } .t4 { fill: #9198a1 }
}
</style>"""


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{shown}>{escape(words)}</text>'


def picture(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, *parts, "</svg>", ""])


def bars(title: str, groups: Mapping[str, Mapping[str, float]], *, unit: str, ours: Sequence[str]) -> str:
    """A bar for each value, in groups that have one scale each; those named in ``ours`` stand out."""
    parts, y = [text(0, 18, title, kind="title")], float(TOP)
    for name, values in groups.items():
        scale = (WIDTH - LEFT - RIGHT) / max(values.values())
        if name:
            parts.append(text(0, y + 6, name, kind="small"))
            y += 18
        for label, value in values.items():
            kind = "ours" if label in ours else "other"
            parts += [
                text(LEFT - 10, y + BAR - 5, label, anchor="end"),
                f'<rect x="{LEFT}" y="{y:.0f}" width="{max(1.0, value * scale):.1f}" height="{BAR}" class="{kind}"/>',
                text(LEFT + value * scale + 6, y + BAR - 5, f"{said(value)} {unit}"),
            ]
            y += BAR + GAP
        y += GAP
    return picture(title, y, parts)


def lines(title: str, series: Mapping[str, Sequence[float]], *, across: str) -> str:
    """A line for each series of milliseconds by number, from one on; the scale is logarithmic."""
    points = max(len(values) for values in series.values())
    low = 10 ** math.floor(math.log10(min(min(values) for values in series.values())))
    high = max(max(values) for values in series.values())
    right, bottom, left = WIDTH - 190, HEIGHT - 34, 46

    def place(number: int, value: float) -> tuple[float, float]:
        x = left + (right - left) * (number - 1) / max(1, points - 1)
        return x, bottom - (bottom - TOP) * math.log(value / low) / math.log(high / low)

    parts = [text(0, 18, title, kind="title")]
    mark = low
    while mark <= high:
        _, y = place(1, mark)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.0f}" y2="{y:.0f}" class="grid"/>')
        parts.append(text(left - 6, y + 4, f"{mark:g}", kind="small", anchor="end"))
        mark *= 10
    for number in (1, points // 2, points):
        parts.append(text(place(number, low)[0], bottom + 16, str(number), kind="small", anchor="middle"))
    parts.append(text((left + right) / 2, HEIGHT - 4, across, kind="small", anchor="middle"))
    labels: list[float] = []
    for index, (name, values) in enumerate(sorted(series.items(), key=lambda pair: pair[1][-1])):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(at, value) for at, value in enumerate(values, 1)))
        parts.append(f'<polyline points="{path}" class="line s{index}"/>')
        y = place(points, values[-1])[1]
        # From the lowest line upwards, each name above the one before.
        y = min(y, labels[-1] - 15) if labels else y
        labels.append(y)
        parts.append(text(right + 8, y + 4, name, kind=f"t{index}"))
    return picture(title, HEIGHT, parts)


def smoothed(values: Sequence[float], width: int = 5) -> list[float]:
    """Medians of so many neighbours."""
    return [median(values[max(0, at - width // 2) : at + width // 2 + 1]) for at in range(len(values))]


def agent_loop(found: dict[str, Any]) -> str | None:
    """How long a loop of 100 turns takes, each way; above it what the engine itself takes."""
    seconds: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    ideal: dict[int, float] = {}
    tokens = 0
    for rollout in found["series"]["rollouts"]:
        load = rollout["load"]
        if load["turns"] == 100 and load["rate"] >= 1000 and load["engine"] == "ids":
            seconds[load["rate"]][rollout["way"]].append(rollout["seconds"])
            ideal[load["rate"]] = load["turns"] * (load["tokens"] - 1) / load["rate"]
            tokens = load["tokens"]
    if not seconds:
        return None
    groups = {
        f"{rate} tokens/s": {"the engine's own time": ideal[rate]}
        | {WAYS[way]: median(rounds) for way, rounds in ways.items() if way != "engine"}
        for rate, ways in seconds.items()
    }
    title = f"An agent's loop of 100 tool calls, {tokens} tokens a turn: end to end"
    return bars(title, groups, unit="s", ours=(WAYS["ws"],))


def turn_overhead(found: dict[str, Any]) -> str | None:
    """What a turn takes, by its number in the chain."""
    wanted = ("engine", "http-keep", "http-prev", "ws")
    names = {f"{way}, ids": WAYS[way] for way in wanted}
    series = {names[row]: smoothed(values) for row, values in found["series"].items() if row in names}
    title = "Milliseconds of a turn as its conversation grows, engine asked in token ids"
    return lines(title, series, across="turn") if series else None


def peers(found: dict[str, Any]) -> str | None:
    """What each server adds to a turn."""
    column = "added ms/turn"
    figures = [figure for figure in found["figures"] if figure["column"] == column]
    values = {figure["row"]: figure["median"] for figure in figures if not figure["row"].endswith("passed on")}
    ranked = dict(sorted(values.items(), key=lambda pair: pair[1]))
    ours = [row for row in ranked if row.startswith("responses_ws")]
    return bars("Milliseconds added to a turn of 10 tokens", {"": ranked}, unit="ms", ours=ours) if ranked else None


CHARTS = {"agent_loop": agent_loop, "turn_overhead": turn_overhead, "peers": peers}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.charts", description=__doc__.splitlines()[0])
    parser.add_argument("--found", type=Path, default=FOUND, help="where the benchmarks' JSON is")
    parser.add_argument("--into", type=Path, default=IMAGES)
    options = parser.parse_args(given)
    for name, draw in CHARTS.items():
        path = options.found / f"{name}.json"
        drawn = draw(json.loads(path.read_text())) if path.is_file() else None
        if drawn is None:
            print(f"nothing to draw of {name}", file=sys.stderr)
            continue
        options.into.mkdir(parents=True, exist_ok=True)
        (options.into / f"{name.replace('_', '-')}.svg").write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
