"""An agent's loop of K tool calls, run each way side by side: what the API adds to the engine's own time.

``python -m benchmarks.agent_loop`` starts the fake engine and the server, runs every row and prints one table.
"""

import argparse
import contextlib
import gc
import itertools
import json
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from .report import Load, Rollout, header, table, versions
from .stack import Server, cpu_seconds, fake_engine, responses_server
from .ways import WAYS, Peer
from .wire import BenchmarkError

OUTPUT_CHARACTERS = 2048  # what a tool gives back each turn
EMBEDDED_MODEL = "smollm2"
EMBEDDED_OUTPUT_CHARACTERS = 512  # it reads some 80 tokens a second and has room for 4,096
EMBEDDED_TURN_SECONDS = 120
SOURCES = ("argparse.py", "ast.py", "inspect.py", "typing.py", "pathlib.py", "shutil.py", "tarfile.py", "zipfile.py")
PACES = ((20, 65), (100, 1000), (100, 0))  # (tokens a turn, tokens a second; 0: as fast as it goes)
WARM_UP_TURNS = 3


def tool_outputs(characters: int = OUTPUT_CHARACTERS) -> Iterator[str]:
    """Slices of Python's standard library, always the same ones in the same order."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path for name in SOURCES if (path := library / name).is_file()]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    for start in itertools.cycle(range(0, len(text) - characters, characters)):
        yield text[start : start + characters]


def run(way_name: str, load: Load, peer: Peer, *, pid: int = 0) -> Rollout:
    """Run one loop.

    Raises:
        BenchmarkError: a turn failed, or the history did not reach the engine.
    """
    rollout = Rollout(load, way_name)
    outputs = tool_outputs(EMBEDDED_OUTPUT_CHARACTERS if peer.is_forced else OUTPUT_CHARACTERS)
    output = ""
    gc.collect()
    cpu_before = cpu_seconds(pid)
    way = WAYS[way_name](peer)
    with contextlib.closing(way):
        started = time.perf_counter()
        way.open()
        rollout.connect = time.perf_counter() - started
        for number in range(1, load.turns + 1):
            turn = way.turn(output)
            is_counted = rollout.turns and turn.input_tokens
            if is_counted and turn.input_tokens - rollout.turns[-1].input_tokens < len(output) // 5:
                raise BenchmarkError(f"{way_name}: at turn {number} the engine did not get the history: {turn}")
            rollout.turns.append(turn)
            output = next(outputs)
    cpu_after = cpu_seconds(pid)
    rollout.cpu = cpu_after - cpu_before if cpu_before is not None and cpu_after is not None else None
    return rollout


def measure(
    loads: Sequence[Load], ways: Sequence[str], repeats: int, *, engine: Server | None, server: Server, model: str = ""
) -> list[Rollout]:
    """Every load, every way, ``repeats`` times; the order of the ways turns round by round.

    ``model`` replaces the fake engine's names where the server stands in front of another engine.
    """
    rollouts = []

    def once(way: str, load: Load) -> Rollout:
        there = engine if way == "engine" else server
        assert there, "the engine is measured only where it is ours"
        is_embedded = model == EMBEDDED_MODEL
        # Generous: a turn that takes ten times the engine's own time is a fault, not a figure.
        timeout = EMBEDDED_TURN_SECONDS if is_embedded else 20 + 10 * load.ideal_turn
        before = there.rendered_tokens() or 0
        rollout = run(way, load, Peer(there.url, there.key, model or load.model, timeout, is_embedded), pid=there.pid)
        after = there.rendered_tokens()
        rollout.rendered_tokens = after - before if after is not None else None
        return rollout

    for load in loads:
        for way in ways:
            once(way, replace(load, turns=WARM_UP_TURNS))
        for repeat in range(repeats):
            turned = repeat % len(ways)
            for way in (*ways[turned:], *ways[:turned]):
                rollouts.append(once(way, load))
                print(f"  {load} {way}: {rollouts[-1].seconds:.3f} s", file=sys.stderr, flush=True)
    return sorted(rollouts, key=lambda rollout: (loads.index(rollout.load), ways.index(rollout.way)))


def write_json(path: Path, rollouts: Sequence[Rollout], lines: Sequence[str]) -> None:
    """Write every turn: ``{about, versions, rollouts: [{load, way, connect, cpu, seconds, growth, turns: […]}]}``."""
    runs = [asdict(rollout) | {"seconds": rollout.seconds, "growth": rollout.growth} for rollout in rollouts]
    path.write_text(json.dumps({"about": lines, "versions": versions(), "rollouts": runs}, indent=1))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_loop", description=__doc__.splitlines()[0])
    parser.add_argument("-K", "--turns", default="20,100", help="tool calls of a loop, comma-separated")
    parser.add_argument(
        "--paces", default=",".join(f"{tokens}x{rate}" for tokens, rate in PACES), help="TOKENSxRATE,…; rate 0: at once"
    )
    parser.add_argument("--ways", default=",".join(WAYS), help="which ways, comma-separated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ttft-ms", type=int, default=0, help="what the engine waits before its first token")
    parser.add_argument("--quick", action="store_true", help="under a minute: K = 20 and 100, fast paces")
    parser.add_argument("--json", type=Path, help="write every turn's times to this file")
    parser.add_argument("--embedded", action="store_true", help="against the embedded SmolLM2, for real; K = 10")
    parser.add_argument("--target", help="a running server's URL ending in /v1, instead of starting ours")
    parser.add_argument("--key", default="", help="the key for --target")
    parser.add_argument("--model", default="", help="the model to ask --target for; it must call the tool each turn")
    options = parser.parse_args(arguments)
    if options.embedded:
        options.model = EMBEDDED_MODEL
        options.turns = "10" if options.turns == parser.get_default("turns") else options.turns
    return options


def loads_of(options: argparse.Namespace) -> list[Load]:
    """The rows asked for. Of a model that is not our fake engine's nothing is known but the number of turns."""
    turns = [int(part) for part in options.turns.split(",")]
    if options.model:
        return [Load(number, 0, 0) for number in turns]
    if options.quick:
        return [Load(20, 100, 1000, options.ttft_ms), *(Load(turns, 100, 0, options.ttft_ms) for turns in (20, 100))]
    paces = [tuple(int(part) for part in pace.split("x")) for pace in options.paces.split(",")]
    return [Load(number, tokens, rate, options.ttft_ms) for number in turns for tokens, rate in paces]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print. 1 where a turn went wrong."""
    options = parse(arguments)
    ways = [way for way in options.ways.split(",") if way != "engine" or not (options.target or options.embedded)]
    loads = loads_of(options)
    load_before = os.getloadavg()[0]
    try:
        with contextlib.ExitStack() as stack:
            if options.target:
                engine, server = None, Server(options.target.rstrip("/"), options.key)
            elif options.embedded:
                engine, server = None, stack.enter_context(responses_server())
            else:
                engine = stack.enter_context(fake_engine(sorted({load.model for load in loads})))
                needed = any(way != "engine" for way in ways)
                server = stack.enter_context(responses_server(engine.url)) if needed else engine
            rollouts = measure(
                loads_of(options), ways, options.repeats, engine=engine, server=server, model=options.model
            )
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    lines = header(options.repeats, load_before=load_before)
    print("\n".join(lines), table(rollouts), sep="\n\n")
    if options.json:
        write_json(options.json, rollouts, lines)
    return 0


if __name__ == "__main__":
    # Leave through the context managers: they end the processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
