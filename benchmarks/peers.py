"""Ours beside other people's servers of the same API: the same engine, the same client, round by round.

``python -m benchmarks.peers`` installs them into environments of their own, which are kept in a cache directory, and
prints who wins what. Its exit code is 1 where somebody else wins what we claim.
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from .figures import Findings, arguments, said
from .loop import Load, Rollout, run
from .products import PRODUCTS, Product, cache, installed, started, version_of
from .stack import Server, cpu_seconds, fake_engine, responses_server
from .turn_overhead import LATE_TURNS, added, edges
from .ways import WAYS, Peer
from .wire import BenchmarkError

OURS = "responses_ws"
OUR_WAYS = ("http-keep", "http-prev", "ws")
TURN_SECONDS = 60.0
WARM_UP_TURNS = 3
PASSED_ON = ", passed on"
Entrant = tuple[str, str]
"""A server's name, and the way in which it is asked."""
SOCKET: Entrant = (OURS, "ws")
ADDED, SPEED = "added ms/turn", "tokens/s"
CLAIMS: tuple[tuple[str, str, Entrant, float], ...] = (
    ("adds less to a turn than agentic-api's socket", ADDED, ("agentic-api", "ws"), 1.0),
    ("adds at most 1/20 of what LiteLLM adds over HTTP", ADDED, ("LiteLLM", "http-keep"), 1 / 20),
    ("has more tokens a second than agentic-api's socket", SPEED, ("agentic-api", "ws"), 1.0),
)
"""What we claim of our socket: in words, the column, against whom, and by which factor of theirs."""


class Race:
    """Everybody who takes part. Who cannot do a way drops out of it with a note, and the others go on."""

    def __init__(self, engine: Server) -> None:
        self.engine = engine
        self.servers: dict[str, Server] = {}
        self.entrants: list[Entrant] = []
        self.prefixes: dict[Entrant, str] = {}
        """What stands before the names of models, where something does."""
        self.passed_on: set[Entrant] = set()
        """Whose requests go to the engine's own Responses API as they are."""
        self.dropped: dict[Entrant, str] = {}

    def join(self, name: str, server: Server, ways: Sequence[str], product: Product | None = None) -> None:
        self.servers[name] = server
        self.entrants += [(name, way) for way in ways]
        if product:
            self.prefixes |= {(name, way): prefix for way, prefix in product.prefixes.items()}
            self.passed_on |= {(name, way) for way in product.passed_on}

    def row(self, entrant: Entrant) -> str:
        return label(entrant) + (PASSED_ON if entrant in self.passed_on else "")

    def peer(self, entrant: Entrant, model: str) -> Peer:
        server = self.servers[entrant[0]]
        model = self.prefixes.get(entrant, "") + model
        return Peer(server.url, server.key, model, TURN_SECONDS, is_ours=entrant[0] == OURS)

    def rounds(self, number: int) -> Sequence[Entrant]:
        """Those that are still in it, in another order each time."""
        running = [entrant for entrant in self.entrants if entrant not in self.dropped]
        turned = number % max(1, len(running))
        return (*running[turned:], *running[:turned])

    def chain(self, entrant: Entrant, load: Load) -> Rollout | None:
        """One loop; None where it fails, which ends that entrant's race."""
        name, way = entrant
        try:
            return run(way, load, self.peer(entrant, load.model), pid=self.servers[name].pid)
        except (BenchmarkError, OSError, KeyError) as error:
            self.dropped[entrant] = f"{type(error).__name__}: {error}"[:300]
            return None

    def stream(self, entrant: Entrant, tokens: int) -> tuple[float, float] | None:
        """Tokens a second of one answer as fast as it comes, and CPU microseconds for each."""
        name, way = entrant
        model = Load(1, tokens, 0).model
        try:
            with contextlib.closing(WAYS[way](self.peer(entrant, model))) as asked:
                asked.open()
                before = cpu_seconds(self.servers[name].pid) or 0.0
                turn = asked.turn("")
                used = (cpu_seconds(self.servers[name].pid) or 0.0) - before
        except (BenchmarkError, OSError, KeyError) as error:
            self.dropped[entrant] = f"{type(error).__name__}: {error}"[:300]
            return None
        return tokens / turn.seconds, 1e6 * used / tokens


def label(entrant: Entrant) -> str:
    return " ".join(entrant)


def chains(race: Race, findings: Findings, load: Load, rounds: int) -> None:
    """Turns of a chain that grows: what each server adds to one, early and late."""
    for entrant in race.rounds(0):
        race.chain(entrant, Load(WARM_UP_TURNS, load.tokens, load.rate))
    found: dict[Entrant, list[tuple[Rollout, Rollout]]] = {}
    for number in range(rounds):
        direct = run("engine", load, Peer(race.engine.url, "", load.model, TURN_SECONDS))
        for entrant in race.rounds(number):
            rollout = race.chain(entrant, load)
            if rollout is not None:
                found.setdefault(entrant, []).append((rollout, direct))
                print(f"  {label(entrant)}: {rollout.seconds:.3f} s", file=sys.stderr, flush=True)
    table = f"chains of {load.turns} turns, {load.tokens} tokens each"
    for entrant, pairs in sorted(found.items(), key=lambda pair: race.entrants.index(pair[0])):
        row = race.row(entrant)
        findings.add(table, row, ADDED, [added(one, direct, "seconds") for one, direct in pairs])
        first = [added(one, direct, "first_token") for one, direct in pairs]
        findings.add(table, row, "added ms to the first token", first)
        findings.add(table, row, "CPU ms/turn", [1000 * (one.cpu(1) or 0.0) for one, _ in pairs])
        early, late = zip(*(edges(one) for one, _ in pairs), strict=True)
        findings.add(table, row, "turns 2–6 ms", early)
        findings.add(table, row, f"last {LATE_TURNS} ms", late)


def streams(race: Race, findings: Findings, tokens: int, rounds: int) -> None:
    """One answer as fast as the engine goes."""
    found: dict[Entrant, list[tuple[float, float]]] = {}
    for number in range(-1, rounds):
        for entrant in race.rounds(number):
            measured = race.stream(entrant, tokens)
            if measured is not None and number >= 0:
                found.setdefault(entrant, []).append(measured)
    table = f"one answer of {tokens} tokens as fast as it comes"
    for entrant, measured in sorted(found.items(), key=lambda pair: race.entrants.index(pair[0])):
        speeds, costs = zip(*measured, strict=True)
        findings.add(table, race.row(entrant), SPEED, speeds)
        findings.add(table, race.row(entrant), "CPU µs/token", costs)


def winners(findings: Findings) -> list[str]:
    """Who is best at what, in Markdown, among those that know what a turn is."""
    lines = ["| | first | | second | |", "| --- | --- | ---: | --- | ---: |"]
    for column in dict.fromkeys(figure.column for figure in findings.figures):
        figures = [figure for figure in findings.figures if figure.column == column]
        figures = [figure for figure in figures if not figure.row.endswith(PASSED_ON)]
        ranked = sorted(figures, key=lambda figure: figure.median, reverse=column == SPEED)
        cells = [cell for figure in ranked[:2] for cell in (figure.row, said(figure.median))]
        lines.append(f"| {column} | {' | '.join(cells)} |")
    return lines


def claims(findings: Findings) -> tuple[list[str], bool]:
    """What we claim beside what was found, and whether somebody else has won one of it."""
    lines, is_lost = ["| we claim that our socket | ours | theirs | |", "| --- | ---: | ---: | --- |"], False
    medians = {(figure.row, figure.column): figure.median for figure in findings.figures}
    for words, column, rival, factor in CLAIMS:
        ours, theirs = medians.get((label(SOCKET), column)), medians.get((label(rival), column))
        if ours is None or theirs is None:
            lines.append(f"| {words} | {ours and said(ours)} | {theirs and said(theirs)} | not measured |")
            continue
        holds = ours > factor * theirs if column == SPEED else ours <= factor * theirs
        is_lost = is_lost or not holds
        lines.append(f"| {words} | {said(ours)} | {said(theirs)} | {'holds' if holds else '**lost**'} |")
    return lines, is_lost


def main(given: Sequence[str] | None = None) -> int:
    """Run and print. 1 where a claim does not hold, 2 where we could not be measured."""
    parser = arguments("benchmarks.peers", __doc__, rounds=3)
    parser.add_argument("--turns", type=int, default=200, help="of a chain; at least 12")
    parser.add_argument("--tokens", type=int, default=10, help="of an answer in a chain")
    parser.add_argument("--stream", type=int, default=20_000, help="tokens of the long answer")
    parser.add_argument("--quick", action="store_true", help="five minutes at most, once everything is installed")
    parser.add_argument("--peers", default=",".join(product.name for product in PRODUCTS), help="which; empty: none")
    parser.add_argument("--environments", type=Path, default=cache(), help="where theirs are kept")
    options = parser.parse_args(given)
    if options.quick:
        options.turns, options.stream = 30, 5000
    chosen = [product for product in PRODUCTS if product.name in options.peers.split(",")]
    load = Load(options.turns, options.tokens, 0)
    findings = Findings("benchmarks.peers", options.rounds, given)
    models = [load.model, Load(1, options.stream, 0).model]
    with contextlib.ExitStack() as stack:
        try:
            race = Race(stack.enter_context(fake_engine(models)))
            race.join(OURS, stack.enter_context(responses_server(race.engine.url)), OUR_WAYS)
        except BenchmarkError as error:
            print(f"benchmark failed: {error}", file=sys.stderr)
            return 2
        for product in chosen:
            findings.notes.append(join(race, product, options.environments, models, stack))
        chains(race, findings, load, options.rounds)
        streams(race, findings, options.stream, options.rounds)
    findings.notes += [f"{label(entrant)} dropped out. {why}" for entrant, why in race.dropped.items()]
    if race.passed_on:
        findings.notes.append(
            "“Passed on”: the request goes to the engine's own Responses API as it is, and the server knows nothing of "
            "the turn. What that adds is told, and not compared."
        )
    told, is_lost = claims(findings)
    findings.notes += ["\n".join(winners(findings)), "\n".join(told)]
    findings.tell(options.json)
    if any(entrant[0] == OURS for entrant in race.dropped):
        return 2
    return 1 if is_lost else 0


def join(race: Race, product: Product, environments: Path, models: Sequence[str], stack: contextlib.ExitStack) -> str:
    """Install and start one of the others; a note about it. Who cannot be is left out."""
    try:
        programs = installed(product, environments)
        server = stack.enter_context(started(product, programs, race.engine, models))
    except (BenchmarkError, OSError) as error:
        return f"{product.name} is not among them. {error}"
    race.join(product.name, server, product.ways, product)
    return f"{product.name} {version_of(product, programs)}, one worker, as it comes."


if __name__ == "__main__":
    sys.exit(main())
