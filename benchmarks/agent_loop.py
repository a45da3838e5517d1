"""An agent's loop of K tool calls, run each way side by side: what the API adds to the engine's own time.

``python -m benchmarks.agent_loop`` starts the fake engine and the server, runs every row and prints one table.
"""

import argparse
import contextlib
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import median

from .figures import Findings, arguments
from .loop import Load, Rollout, run
from .report import table
from .stack import Server, fake_engine, responses_server
from .ways import WAYS, Peer
from .wire import BenchmarkError

EMBEDDED_MODEL = "smollm2"
EMBEDDED_TURN_SECONDS = 120
PACES = ((20, 65), (100, 1000), (100, 4000))  # (tokens a turn, tokens a second; 0: as fast as it goes)
AIMS: dict[tuple[str, int], tuple[float | None, float | None, float | None]] = {
    ("tokenizers", 1000): (0.55, 1.05, 0.05),
    ("tokenizers", 4000): (0.28, 1.15, 0.05),
    ("tiktoken", 1000): (0.80, 1.05, 0.05),
    ("tiktoken", 4000): (0.50, 1.15, 0.05),
}
"""Of WebSocket with 100 turns, by what makes ids of texts and by tokens a second: end to end ÷ the whole history on new
connections, and ÷ the engine's own time; the first token ÷ that of the former."""
WARM_UP_TURNS = 3
USUAL_WAYS = [name for name in WAYS if name != "ws-stored"]


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


def compare(findings: Findings, rollouts: Sequence[Rollout], tokenizer: str) -> None:
    """What a WebSocket saves, round by round, where the engine has a pace. ``tokenizer``: what makes ids of texts."""
    loads: dict[Load, dict[str, list[Rollout]]] = defaultdict(lambda: defaultdict(list))
    for rollout in rollouts:
        loads[rollout.load][rollout.way].append(rollout)
    for load, ways in loads.items():
        if not load.ideal_turn or not {"ws", "http-new"} <= ways.keys():
            continue
        pairs = list(zip(ways["ws"], ways["http-new"], strict=True))
        aims = AIMS.get((tokenizer, load.rate)) if load.turns == 100 and load.engine != "chat" else None
        resent, ideal, first = aims or (None, None, None)
        row = str(load)
        whole = [ws.seconds / new.seconds for ws, new in pairs]
        findings.add("WebSocket, end to end", row, "÷ http-new", whole, at_most=resent)
        over = [ws.seconds / (load.turns * load.ideal_turn) for ws, _ in pairs]
        findings.add("WebSocket, end to end", row, "÷ the engine's own time", over, at_most=ideal)
        sooner = [first_token(ws) / first_token(new) for ws, new in pairs]
        findings.add("WebSocket, end to end", row, "first token p50 ÷ http-new", sooner, at_most=first)


def first_token(rollout: Rollout) -> float:
    return median(turn.first_token for turn in rollout.turns)


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("benchmarks.agent_loop", __doc__, rounds=3)
    parser.add_argument("-K", "--turns", default="20,100", help="tool calls of a loop, comma-separated")
    parser.add_argument(
        "--paces", default=",".join(f"{tokens}x{rate}" for tokens, rate in PACES), help="TOKENSxRATE,…; rate 0: at once"
    )
    parser.add_argument("--engines", default="ids", help="what it is asked in: ids, harmony, chat")
    parser.add_argument("--ways", default=",".join(USUAL_WAYS), help="which ways, comma-separated")
    parser.add_argument(
        "--tokenizers", action="store_true", help="make ids of texts by that package alone, as without tiktoken"
    )
    parser.add_argument("--ttft-ms", type=int, default=0, help="what the engine waits before its first token")
    parser.add_argument("--quick", action="store_true", help="under a minute: K = 20 and 100, fast paces")
    parser.add_argument("--embedded", action="store_true", help="against the embedded SmolLM2, for real; K = 10")
    parser.add_argument("--target", help="a running server's URL ending in /v1, instead of starting ours")
    parser.add_argument("--key", default="", help="the key for --target")
    parser.add_argument("--model", default="", help="the model to ask --target for; it must call the tool each turn")
    options = parser.parse_args(given)
    if options.embedded:
        options.model = EMBEDDED_MODEL
        options.turns = "10" if options.turns == parser.get_default("turns") else options.turns
    return options


def loads_of(options: argparse.Namespace) -> list[Load]:
    """The rows asked for. Of a model that is not our fake engine's nothing is known but the number of turns."""
    turns = [int(part) for part in options.turns.split(",")]
    if options.model:
        return [Load(number, 0, 0) for number in turns]
    engines = options.engines.split(",")
    if options.quick:
        quick = [(20, 100, 1000), (20, 100, 0), (100, 100, 0)]
        return [Load(*one, options.ttft_ms, engine) for engine in engines for one in quick]
    paces = [tuple(int(part) for part in pace.split("x")) for pace in options.paces.split(",")]
    return [
        Load(number, tokens, rate, options.ttft_ms, engine)
        for engine in engines
        for number in turns
        for tokens, rate in paces
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Run and print. 1 where a turn went wrong."""
    options = parse(given)
    ways = [way for way in options.ways.split(",") if way != "engine" or not (options.target or options.embedded)]
    loads = loads_of(options)
    models = sorted({load.model for load in loads})
    findings = Findings("benchmarks.agent_loop", options.rounds, given)
    try:
        with contextlib.ExitStack() as stack:
            if options.target:
                engine, server = None, Server(options.target.rstrip("/"), options.key)
            elif options.embedded:
                engine, server = None, stack.enter_context(responses_server())
            else:
                engine = stack.enter_context(fake_engine(models))
                needed = any(way != "engine" for way in ways)
                without = {"BENCHMARK_WITHOUT": "tiktoken"} if options.tokenizers else {}
                ours = responses_server(engine.url, models, environment=without)
                server = stack.enter_context(ours) if needed else engine
            rollouts = measure(loads, ways, options.rounds, engine=engine, server=server, model=options.model)
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    findings.texts.append(table(rollouts))
    findings.series["rollouts"] = [
        asdict(rollout) | {"seconds": rollout.seconds, "growth": rollout.growth} for rollout in rollouts
    ]
    compare(findings, rollouts, "tokenizers" if options.tokenizers else "tiktoken")
    findings.tell(options.json)
    return 0


if __name__ == "__main__":
    # Leave through the context managers: they end the processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
