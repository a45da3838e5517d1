"""From raw turns to a table: what is counted, and how."""

import os
import platform
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from .ways import Turn

EDGE_TURNS = 10  # the first and the last ten turns are compared


@dataclass(frozen=True, slots=True)
class Load:
    """One row's work: ``turns`` tool calls, ``tokens`` a turn at ``rate`` a second (0: as fast as it goes)."""

    turns: int
    tokens: int
    rate: int
    ttft_ms: int = 0

    @property
    def model(self) -> str:
        """The name by which our fake engine is told."""
        return f"fake-t{self.tokens}-r{self.rate}-f{self.ttft_ms}"

    @property
    def ideal_turn(self) -> float:
        """Seconds the engine itself takes: the last token is due ``tokens - 1`` intervals after the first."""
        return self.ttft_ms / 1000 + ((self.tokens - 1) / self.rate if self.rate else 0.0)


@dataclass(slots=True)
class Rollout:
    """One loop of one way. Times in seconds; ``cpu`` is the server's, None where it was not measured.

    ``rendered_tokens``: how many token ids the server has made of text; None where it makes none.
    """

    load: Load
    way: str
    connect: float = 0.0
    cpu: float | None = None
    rendered_tokens: int | None = None
    turns: list[Turn] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """End to end: the connection kept by the way and every turn. What the client does between turns is left out."""
        return self.connect + sum(turn.seconds for turn in self.turns)

    @property
    def overheads(self) -> list[float]:
        """What each turn took above the engine's own time."""
        return [turn.seconds - self.load.ideal_turn for turn in self.turns]

    @property
    def growth(self) -> float:
        """Overhead of the last ten turns ÷ the first ten, by medians; of short loops, the halves."""
        edge = max(1, min(EDGE_TURNS, len(self.turns) // 2))
        return median(self.overheads[-edge:]) / max(median(self.overheads[:edge]), 1e-9)


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
        lines.extend(f"| {load.turns} | {rate} | {way} | {line(runs, base)} |" for way, runs in ways.items())
    return "\n".join(lines)


def line(runs: Sequence[Rollout], base: float | None) -> str:
    """The measured cells of one way."""
    seconds = [run.seconds for run in runs]
    first = [turn.first_token * 1000 for run in runs for turn in run.turns]
    overhead = median(sum(run.overheads) / len(run.turns) for run in runs) * 1000
    cpu = [run.cpu / len(run.turns) * 1000 for run in runs if run.cpu is not None]
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


def header(rounds: int, *, load_before: float, module: str = "benchmarks.agent_loop") -> list[str]:
    """Where, when and how it was measured: a benchmark without this is no evidence.

    ``load_before`` is the machine's load average at the start: what else ran is in the figures.
    """
    load = f"load {load_before:.2f} before, {os.getloadavg()[0]:.2f} after"
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
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
    for name in ("django", "channels", "uvicorn", "uvloop", "websockets", "aiohttp"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found
