"""From raw turns to a table: what is counted, and how."""

import os
import platform
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from .loop import Load, Rollout


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which ``share`` of the values lie (nearest rank)."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def table(rollouts: Sequence[Rollout]) -> str:
    """The table, in Markdown: one line a way, medians over the repeats, the spread of the whole in brackets."""
    titles = [
        "K", "tokens × rate", "way", "end to end s (min–max)", "÷ http-new", "first token ms p50 / p95",
        "overhead ms/turn", "last ten ÷ first ten", "server CPU ms/turn", "sent kB", "input tokens (cached)",
        "rendered tokens",
    ]  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "| ---: | ---: | --- |" + " ---: |" * (len(titles) - 3)]
    loads: dict[Load, dict[str, list[Rollout]]] = defaultdict(lambda: defaultdict(list))
    for rollout in rollouts:
        loads[rollout.load][rollout.way].append(rollout)
    for load, ways in loads.items():
        base = median(r.seconds for r in ways["http-new"]) if "http-new" in ways else None
        ideal = f"ideal {load.ideal_turn * load.turns:.2f}" if load.ideal_turn else "at once"
        rate = f"{load.tokens} × {load.rate or 'max'} ({ideal})" if load.tokens else "the model's own"
        rate += "" if load.engine == "chat" else f", {load.engine}"
        lines.extend(f"| {load.turns} | {rate} | {way} | {line(runs, base)} |" for way, runs in ways.items())
    return "\n".join(lines)


def line(runs: Sequence[Rollout], base: float | None) -> str:
    """The measured cells of one way."""
    seconds = [run.seconds for run in runs]
    first = [turn.first_token * 1000 for run in runs for turn in run.turns]
    overhead = median(sum(run.overheads) / len(run.turns) for run in runs) * 1000
    cpu = [cpu * 1000 for run in runs if (cpu := run.cpu()) is not None]
    cells = [
        f"{median(seconds):.3f} ({min(seconds):.3f}–{max(seconds):.3f})",
        f"{median(seconds) / base:.2f}" if base else "–",
        f"{percentile(first, 0.5):.1f} / {percentile(first, 0.95):.1f}",
        f"{overhead:.2f}",
        f"{median(run.growth for run in runs):.2f}",
        f"{median(cpu):.2f}" if cpu else "–",
        f"{median(sum(turn.sent_bytes for turn in run.turns) for run in runs) / 1000:.0f}",
        tokens(runs),
        f"{median(run.rendered_tokens or 0 for run in runs):.0f}" if runs[0].rendered_tokens else "–",
    ]
    return " | ".join(cells)


def tokens(runs: Sequence[Rollout]) -> str:
    """Input tokens of all turns of a loop, and how many of them the engine had cached: its own word."""
    told = median(sum(turn.input_tokens for turn in run.turns) for run in runs)
    cached = median(sum(turn.cached_tokens for turn in run.turns) for run in runs)
    return f"{told:.0f} ({cached / told:.0%})" if told else "–"


def header(rounds: int, *, load_before: float, module: str, given: Sequence[str] | None = None) -> list[str]:
    """Where, when and how it was measured: a benchmark without this is no evidence.

    ``load_before`` is the machine's load average at the start: what else ran is in the figures. ``given``: the
    arguments, where they are not the command line's.
    """
    load = f"load {load_before:.2f} before, {os.getloadavg()[0]:.2f} after"
    command = shlex.join(["python", "-m", module, *(sys.argv[1:] if given is None else given)])
    return [
        f"- machine: {processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, {load}",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "- versions: " + ", ".join(f"{name} {found}" for name, found in versions().items()),
        f"- command: `{command}`",
        f"- {rounds} rounds, the ways interleaved in each; medians; (min–max) of the rounds; loopback only",
    ]


def processor() -> str:
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(text.split(":", 1)[1].strip() for text in lines if text.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Python and the packages a figure depends on."""
    found = {"python": platform.python_version()}
    for name in ("django", "channels", "uvicorn", "uvloop", "websockets", "httptools", "tiktoken"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found
