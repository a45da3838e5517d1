"""What the server adds to a turn and to its first token, over calling the engine directly; early and late in a chain.

``python -m benchmarks.turn_overhead`` runs chains of 200 turns, 10 tokens each as fast as the engine goes, every way
and straight against the engine, and compares them turn by turn.
"""

import contextlib
import sys
from collections.abc import Sequence
from statistics import median

from .figures import Findings, arguments
from .loop import ASKED_IN, Load, Rollout, run
from .stack import Server, fake_engine, responses_server
from .ways import Peer
from .wire import BenchmarkError

WAYS = ("engine", "http-keep", "http-prev", "ws", "ws-long")
EARLY = slice(1, 6)  # turns 2 to 6: the first one opens the chain
LATE_TURNS = 6
WARM_UP_TURNS = 8
TURN_SECONDS = 30.0
GROWTH = {"chat": 1.5, "ids": 1.2}
"""What is aimed at for the WebSocket way, by engine."""


def added(rollout: Rollout, direct: Rollout, what: str) -> float:
    """Milliseconds above the same turn of the direct chain: the median over all turns but the first."""
    pairs = list(zip(rollout.turns, direct.turns, strict=True))[1:]
    return 1000 * median(getattr(turn, what) - getattr(base, what) for turn, base in pairs)


def edges(rollout: Rollout) -> tuple[float, float]:
    """Milliseconds of a turn early and late in the chain, medians."""
    seconds = [turn.seconds for turn in rollout.turns]
    return 1000 * median(seconds[EARLY]), 1000 * median(seconds[-LATE_TURNS:])


def growth(rollout: Rollout, direct: Rollout) -> float:
    """What is added to a turn late in the chain ÷ early in it. A direct call takes longer late, too."""
    over = [turn.seconds - base.seconds for turn, base in zip(rollout.turns, direct.turns, strict=True)]
    return median(over[-LATE_TURNS:]) / median(over[EARLY])


def chains(load: Load, ways: Sequence[str], rounds: int, engine: Server, server: Server) -> dict[str, list[Rollout]]:
    """The rollouts of every way, round by round; the order of the ways turns with each."""
    found: dict[str, list[Rollout]] = {way: [] for way in ways}
    for number in range(-1, rounds):
        turned = number % len(ways)
        for way in (*ways[turned:], *ways[:turned]):
            there = engine if way == "engine" else server
            peer = Peer(there.url, there.key, load.model, TURN_SECONDS)
            if number < 0:
                run(way, Load(WARM_UP_TURNS, load.tokens, load.rate, engine=load.engine), peer)
                continue
            found[way].append(run(way, load, peer, pid=there.pid))
            print(f"  {load.engine} {way}: {found[way][-1].seconds:.3f} s", file=sys.stderr, flush=True)
    return found


def tell(findings: Findings, load: Load, found: dict[str, list[Rollout]], *, beside: str = "") -> None:
    """Add one engine's figures. ``beside``: how this server differs from the one that aims are for."""
    table = f"engine asked in {ASKED_IN[load.engine]}, {load.turns} turns of {load.tokens} tokens"
    direct, suffix = found["engine"], "".join(f", {word}" for word in (load.engine, beside) if word not in ("", "chat"))
    table += f", {beside}" if beside else ""
    # The direct call last: it has fewer columns.
    for way, rollouts in sorted(found.items(), key=lambda pair: pair[0] == "engine"):
        row = way + suffix
        early, late = zip(*map(edges, rollouts), strict=True)
        if way != "engine":
            over = [added(rollout, base, "seconds") for rollout, base in zip(rollouts, direct, strict=True)]
            findings.add(table, row, "added ms/turn", over, **({} if beside else target(way, load.engine)))
            first = [added(rollout, base, "first_token") for rollout, base in zip(rollouts, direct, strict=True)]
            findings.add(table, row, "added ms to the first token", first)
        findings.add(table, row, "turns 2–6 ms", early)
        findings.add(table, row, f"last {LATE_TURNS} ms", late)
        if way != "engine":
            grown = [growth(rollout, base) for rollout, base in zip(rollouts, direct, strict=True)]
            aim = GROWTH.get(load.engine) if way == "ws" and not beside else None
            findings.add(table, row, "growth of what is added", grown, at_most=aim)
        findings.add(table, row, "last ÷ first", [after / before for before, after in zip(early, late, strict=True)])
        for column, start, stop in (("CPU ms/turn", 1, None), ("CPU of the last", load.turns - LATE_TURNS, None)):
            cpu = [1000 * used for rollout in rollouts if (used := rollout.cpu(start, stop)) is not None]
            if cpu:
                findings.add(table, row, column, cpu)
        turns = zip(*(rollout.turns for rollout in rollouts), strict=True)
        findings.series[row] = [1000 * median(turn.seconds for turn in same) for same in turns]
    if "ws" in found and "ws-long" in found:
        pairs = zip(found["ws"], found["ws-long"], strict=True)
        apart = [added(familiar, long, "seconds") for familiar, long in pairs]
        findings.add(table, "ws over ws-long" + suffix, "added ms/turn", apart, at_most=0.3)


def target(way: str, engine: str) -> dict[str, float]:
    """What is aimed at in milliseconds a turn."""
    targets = {"ws": 1.0, "http-prev": 4.0}
    return {"at_most": targets[way]} if engine == "chat" and way in targets else {}


def main(given: Sequence[str] | None = None) -> int:
    """Run and print. 1 where a turn went wrong."""
    parser = arguments("benchmarks.turn_overhead", __doc__, rounds=3)
    parser.add_argument("--turns", type=int, default=200, help="of a chain; at least 12")
    parser.add_argument("--tokens", type=int, default=10, help="of an answer")
    parser.add_argument("--engines", default="chat,ids", help="what the engine is asked in")
    parser.add_argument("--ways", default=",".join(WAYS), help="which ways; engine is always among them")
    options = parser.parse_args(given)
    if options.turns < 2 * LATE_TURNS:
        parser.error(f"--turns: at least {2 * LATE_TURNS}")
    ways = list(dict.fromkeys(["engine", *options.ways.split(",")]))
    loads = [Load(options.turns, options.tokens, 0, engine=engine) for engine in options.engines.split(",")]
    models = [load.model for load in loads]
    findings = Findings("benchmarks.turn_overhead", options.rounds, given)
    try:
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(fake_engine(models))
            server = stack.enter_context(responses_server(engine.url, models))
            for load in loads:
                tell(findings, load, chains(load, ways, options.rounds, engine, server))
            commit = {"RESPONSES_WS": {"DURABILITY": "commit"}}
            committing = stack.enter_context(responses_server(engine.url, models, settings=commit))
            found = chains(loads[0], ["engine", "ws"], options.rounds, engine, committing)
            tell(findings, loads[0], found, beside="by commit")
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    findings.notes.append("`engine` is the direct call, and its CPU the engine's; on other lines it is the server's.")
    findings.tell(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
