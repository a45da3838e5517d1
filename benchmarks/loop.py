"""One agent loop, run one way: the load, and what it took."""

import contextlib
import gc
import itertools
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from .stack import HARMONY, IDS, cpu_seconds
from .ways import WAYS, Peer, Turn
from .wire import BenchmarkError

EDGE_TURNS = 10  # the first and the last ten turns are compared
OUTPUT_CHARACTERS = 2048  # what a tool gives back each turn
EMBEDDED_OUTPUT_CHARACTERS = 512  # the embedded model reads some 80 tokens a second and has room for 4,096
ASKED_IN = {"chat": "messages", "ids": "token ids", "harmony": "token ids of o200k"}
SOURCES = ("argparse.py", "ast.py", "inspect.py", "typing.py", "pathlib.py", "shutil.py", "tarfile.py", "zipfile.py")


@dataclass(frozen=True, slots=True)
class Load:
    """One row's work: ``turns`` tool calls, ``tokens`` a turn at ``rate`` a second (0: as fast as it goes).

    ``engine``: what it is asked in, ``chat`` for messages, ``ids`` for token ids, ``harmony`` for those of gpt-oss.
    """

    turns: int
    tokens: int
    rate: int
    ttft_ms: int = 0
    engine: str = "chat"

    def __str__(self) -> str:
        pace = f"{self.tokens} tokens at {self.rate or 'any'}/s" if self.tokens else "the model's own"
        return f"K = {self.turns}, {pace}, asked in {ASKED_IN[self.engine]}"

    @property
    def model(self) -> str:
        """The name by which our fake engine is told."""
        start = {"chat": "fake", "ids": IDS, "harmony": HARMONY}[self.engine]
        return f"{start}-t{self.tokens}-r{self.rate}-f{self.ttft_ms}"

    @property
    def ideal_turn(self) -> float:
        """Seconds the engine itself takes: the last token is due ``tokens - 1`` intervals after the first."""
        return self.ttft_ms / 1000 + ((self.tokens - 1) / self.rate if self.rate else 0.0)


@dataclass(slots=True)
class Rollout:
    """One loop of one way. Times in seconds; ``cpu_marks``: the server's CPU time before its first turn and after each.

    ``rendered_tokens``: how many token ids the server has made of text; None where it makes none.
    """

    load: Load
    way: str
    connect: float = 0.0
    cpu_marks: list[float | None] = field(default_factory=list)
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

    def cpu(self, start: int = 0, stop: int | None = None) -> float | None:
        """The server's CPU seconds a turn from turn ``start`` to before ``stop``; None where it was not measured."""
        end = len(self.turns) if stop is None else stop
        if len(self.cpu_marks) <= end:
            return None
        before, after = self.cpu_marks[start], self.cpu_marks[end]
        return None if before is None or after is None else (after - before) / (end - start)


def tool_outputs(characters: int = OUTPUT_CHARACTERS) -> Iterator[str]:
    """Slices of Python's standard library, always the same ones in the same order."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path for name in SOURCES if (path := library / name).is_file()]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    for start in itertools.cycle(range(0, len(text) - characters, characters)):
        yield text[start : start + characters]


def run(way_name: str, load: Load, peer: Peer, *, pid: int = 0) -> Rollout:
    """Run one loop. ``pid`` is the server whose CPU time is noted.

    Raises:
        BenchmarkError: a turn failed, or the history did not reach the engine.
    """
    rollout = Rollout(load, way_name)
    outputs = tool_outputs(EMBEDDED_OUTPUT_CHARACTERS if peer.is_forced else OUTPUT_CHARACTERS)
    output = ""
    gc.collect()
    way = WAYS[way_name](peer)
    with contextlib.closing(way):
        started = time.perf_counter()
        way.open()
        rollout.connect = time.perf_counter() - started
        rollout.cpu_marks.append(cpu_seconds(pid))
        for number in range(1, load.turns + 1):
            turn = way.turn(output)
            rollout.cpu_marks.append(cpu_seconds(pid))
            is_counted = rollout.turns and turn.input_tokens
            # White space, of which code is full, is many characters a token in large vocabularies.
            if is_counted and turn.input_tokens - rollout.turns[-1].input_tokens < len(output) // 10:
                raise BenchmarkError(f"{way_name}: at turn {number} the engine did not get the history: {turn}")
            rollout.turns.append(turn)
            output = next(outputs)
    return rollout
