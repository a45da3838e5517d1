"""Tokens through sockets: how many a second, what one costs, and how evenly they come when they are paced.

``python -m benchmarks.stream`` has one socket take an answer as fast as it comes, over HTTP too and straight from the
engine; has paced answers on many; and compares our frame with the least that one costs.
"""

import contextlib
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import TypeVar

from .crowd import COMPLETED, Crowd
from .figures import Findings, arguments
from .stack import INSTANT, ROOT, Server, cpu_seconds, fake_engine, responses_server, running
from .ways import WAYS, Peer
from .wire import BenchmarkError, connect, frame, hear, turn_ended, upgrade

TURN_SECONDS = 60.0
FULL_SPEED = ("ws", "http-prev", "engine")
BURST_RATE = 4000
PACED_SOCKETS, PACED_RATE = 64, 100
EVEN_SOCKETS = 16
EVEN_RATES = (1000, 1250, 1500, 2000, 2500, 3000, 4000)
EVENLY = 0.99
"""The share of its rate that the slowest stream has to keep."""
INSTANT_TOKENS = 16_000
INSTANT_READS = (1, 16)
"""How many of them the engine inside of the process says at a time. Frames are compared where there are some to send:
what comes alone costs a way through the event loop, which picows does not go."""


@dataclass(frozen=True, slots=True)
class Shares:
    """CPU seconds of the processes of a measurement, and how long it took."""

    wall: float
    server: float
    engine: float
    client: float

    def __str__(self) -> str:
        parts = (("server", self.server), ("engine", self.engine), ("client", self.client))
        return ", ".join(f"{name} {used / self.wall:.0%}" for name, used in parts)


def model_of(tokens: float, rate: int = 0) -> str:
    """The engine's name for so many tokens at that rate; 0: as fast as it goes."""
    return f"fake-t{int(tokens)}-r{rate}-f0"


def models(tokens: int, seconds: float) -> list[str]:
    """All that are asked for: the engine has to list them."""
    paces = (BURST_RATE, PACED_RATE, *EVEN_RATES)
    return [model_of(tokens), model_of(tokens // 4), *(model_of(rate * seconds, rate) for rate in paces)]


T = TypeVar("T")


def watched(server: Server, engine: Server | None, work: Callable[[], T]) -> tuple[T, Shares]:
    """Do it, and tell who worked for it."""

    def marks() -> list[float]:
        return [
            cpu_seconds(server.pid) or 0.0,
            (cpu_seconds(engine.pid) or 0.0) if engine else 0.0,
            time.process_time(),
        ]

    before, started = marks(), time.perf_counter()
    found = work()
    wall = time.perf_counter() - started
    return found, Shares(wall, *(after - earlier for after, earlier in zip(marks(), before, strict=True)))


def full_speed(findings: Findings, engine: Server, server: Server, *, tokens: int, rounds: int) -> None:
    """One answer as fast as the engine goes: tokens a second, and what the server spends on one."""
    model = model_of(tokens)
    speeds: dict[str, list[float]] = {way: [] for way in FULL_SPEED}
    costs: dict[str, list[float]] = {way: [] for way in FULL_SPEED}
    for number in range(-1, rounds):
        turned = number % len(FULL_SPEED)
        for name in (*FULL_SPEED[turned:], *FULL_SPEED[:turned]):
            there = engine if name == "engine" else server
            with contextlib.closing(WAYS[name](Peer(there.url, there.key, model, TURN_SECONDS))) as way:
                way.open()
                turn, shares = watched(there, None, partial(way.turn, ""))
            if number >= 0:
                speeds[name].append(tokens / turn.seconds)
                costs[name].append(1e6 * shares.server / tokens)
    table = f"one socket, {tokens} tokens as fast as they come"
    for name in FULL_SPEED:
        is_ours = name == "ws"
        findings.add(table, name, "tokens/s", speeds[name], at_least=45_000 if is_ours else None)
        findings.add(table, name, "CPU µs/token", costs[name], at_most=18 if is_ours else None)


def burst(findings: Findings, server: Server, *, seconds: float, rounds: int) -> None:
    """A pace of thousands on one socket: whether it is held."""
    tokens = int(BURST_RATE * seconds)
    rates = []
    with Crowd(server, 1) as crowd:
        for _ in range(rounds):
            (stream,) = crowd.turn(model_of(tokens, BURST_RATE), tokens)
            rates.append(stream.rate)
    table = f"one socket at {BURST_RATE} tokens/s for {seconds:g} s"
    findings.add(table, "ws", f"tokens/s of {BURST_RATE}", rates, at_least=EVENLY * BURST_RATE)


def paced(findings: Findings, engine: Server, server: Server, *, seconds: float, rounds: int) -> None:
    """Many slow streams on one worker: what a token costs that comes alone."""
    tokens = int(PACED_RATE * seconds)
    costs, slowest = [], []
    model = model_of(tokens, PACED_RATE)
    with Crowd(server, PACED_SOCKETS) as crowd:
        for _ in range(rounds):
            streams, shares = watched(server, engine, partial(crowd.turn, model, tokens))
            costs.append(1e6 * shares.server / (tokens * PACED_SOCKETS))
            slowest.append(min(stream.rate for stream in streams))
    table = f"{PACED_SOCKETS} sockets at {PACED_RATE} tokens/s for {seconds:g} s"
    findings.add(table, "ws", "CPU µs/token, paced", costs, at_most=75)
    findings.add(table, "ws", "lowest stream's tokens/s", slowest)
    findings.notes.append(f"{table}: of one core, {shares}.")


def even(findings: Findings, engine: Server, server: Server, *, seconds: float, rounds: int) -> None:
    """Fast streams on two workers: the slowest of them; then faster and faster, until one falls behind."""
    table = f"{EVEN_SOCKETS} sockets on 2 workers, each for {seconds:g} s"
    with Crowd(server, EVEN_SOCKETS) as crowd:
        for rate in EVEN_RATES:
            tokens = int(rate * seconds)
            model = model_of(tokens, rate)
            lowest, middle = [], []
            for _ in range(rounds if rate == EVEN_RATES[0] else 1):
                streams, shares = watched(server, engine, partial(crowd.turn, model, tokens))
                lowest.append(min(stream.rate for stream in streams))
                middle.append(median(stream.rate for stream in streams))
            aim = EVENLY * rate if rate == EVEN_RATES[0] else None
            findings.add(table, f"at {rate} tokens/s", "lowest stream's tokens/s", lowest, at_least=aim)
            findings.add(table, f"at {rate} tokens/s", "median stream's", middle)
            findings.notes.append(f"{EVEN_SOCKETS} × {rate} tokens/s: of one core, {shares}.")
            if median(lowest) < EVENLY * rate:
                findings.notes.append(f"It breaks at {EVEN_SOCKETS} × {rate} = {EVEN_SOCKETS * rate} tokens/s.")
                return
    findings.notes.append(f"It did not break at {EVEN_SOCKETS} × {EVEN_RATES[-1]} tokens/s.")


def scaling(findings: Findings, engine: Server, servers: dict[int, Server], *, tokens: int, rounds: int) -> None:
    """Throughput of one worker and of two, on as many cores as there are."""
    table, model = f"{EVEN_SOCKETS} sockets as fast as they come", model_of(tokens)
    for workers, server in servers.items():
        speeds = []
        with Crowd(server, EVEN_SOCKETS) as crowd:
            for _ in range(rounds):
                streams, shares = watched(server, engine, partial(crowd.turn, model, tokens))
                whole = max(stream.last_at for stream in streams) - min(stream.started_at for stream in streams)
                speeds.append(EVEN_SOCKETS * tokens / whole)
        findings.add(table, f"{workers} worker(s)", "tokens/s, all sockets", speeds)
        findings.notes.append(f"{workers} worker(s), {table}: of one core, {shares}.")


def instant_model(each: int) -> str:
    return f"{INSTANT}-t{INSTANT_TOKENS}-b{each}"


def frames(findings: Findings, server: Server, *, rounds: int) -> None:
    """Our frame, from an engine inside of the process, against that of a server which does nothing else."""
    costs: dict[int, list[float]] = {each: [] for each in INSTANT_READS}
    least: dict[int, list[float]] = {each: [] for each in INSTANT_READS}
    with contextlib.ExitStack() as stack:
        floor = stack.enter_context(floor_server()) if find_spec("picows") else None
        crowd = stack.enter_context(Crowd(server, 1))
        for number, each in itertools.product(range(-1, rounds), INSTANT_READS):
            _, shares = watched(server, None, partial(crowd.turn, instant_model(each), INSTANT_TOKENS))
            if number >= 0:
                costs[each].append(1e6 * shares.server / INSTANT_TOKENS)
            if floor:
                _, shares = watched(floor, None, partial(floor_frames, floor, INSTANT_TOKENS, each))
                if number >= 0:
                    least[each].append(1e6 * shares.server / INSTANT_TOKENS)
    table = "one frame of an answer, from an engine in the process"
    for each, found in costs.items():
        row = f"{each} at a time"
        findings.add(table, row, "CPU µs/frame", found)
        if least[each]:
            findings.add(table, row, "picows' CPU µs/frame", least[each])
            ratios = [ours / floor for ours, floor in zip(found, least[each], strict=True)]
            findings.add(table, row, "ours ÷ picows'", ratios, at_most=3 if each > 1 else None)
    if not find_spec("picows"):
        findings.notes.append("picows is not installed: pip install picows tells what a frame costs at least.")


@contextlib.contextmanager
def floor_server() -> Iterator[Server]:
    command = [sys.executable, "-m", "benchmarks.floor"]
    with running(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout, "piped above"
        with process.stdout:
            port = process.stdout.readline().strip()
        if not port:
            raise BenchmarkError("the floor server did not start")
        yield Server(f"http://127.0.0.1:{port}", pid=process.pid)


def floor_frames(floor: Server, frames: int, each: int) -> None:
    """So many frames on one socket, ``each`` of them in one step."""
    last = re.compile(COMPLETED)
    host, port = floor.url.removeprefix("http://").split(":")
    with contextlib.closing(connect(host, int(port), timeout=TURN_SECONDS)) as sock:
        upgrade(sock, "/", host, {})
        sock.sendall(frame(f"{frames} {each}".encode()))
        heard = hear(sock, first=last, ended=turn_ended(last), timeout=TURN_SECONDS)
        if not heard.first_at:
            raise BenchmarkError(f"no frames: {bytes(heard.data[-200:])!r}")


def main(given: Sequence[str] | None = None) -> int:
    """Run and print. 1 where something went wrong."""
    parser = arguments("benchmarks.stream", __doc__, rounds=3)
    parser.add_argument("--tokens", type=int, default=20_000, help="of an answer as fast as it comes")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a paced answer")
    parser.add_argument("--parts", default="full,burst,paced,even,scaling,frames", help="which, comma-separated")
    options = parser.parse_args(given)
    parts, rounds, seconds = options.parts.split(","), options.rounds, options.seconds
    findings = Findings("benchmarks.stream", rounds, given)
    try:
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(fake_engine(models(options.tokens, seconds)))
            server = stack.enter_context(responses_server(engine.url, [instant_model(each) for each in INSTANT_READS]))
            if "full" in parts:
                full_speed(findings, engine, server, tokens=options.tokens, rounds=rounds)
            if "burst" in parts:
                burst(findings, server, seconds=seconds, rounds=rounds)
            if "paced" in parts:
                paced(findings, engine, server, seconds=seconds, rounds=rounds)
            if "frames" in parts:
                frames(findings, server, rounds=rounds)
            if {"even", "scaling"} & set(parts):
                pair = stack.enter_context(responses_server(engine.url, workers=2))
                if "even" in parts:
                    even(findings, engine, pair, seconds=seconds, rounds=rounds)
                if "scaling" in parts:
                    scaling(findings, engine, {1: server, 2: pair}, tokens=options.tokens // 4, rounds=rounds)
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    findings.tell(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
