"""What it costs an agent's loop that everything is written down: usage, ledger and state, against nothing of it.

``python -m benchmarks.writes`` runs the same loop on three servers: two store every response in PostgreSQL and Redis
while a Celery worker bills it, one by commit and one by journal; the third writes nothing.
"""

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psycopg

from tests.live import Redis

from .durability import postgres
from .figures import Findings, arguments
from .loop import Load, Rollout, run
from .stack import Server, fake_engine, responses_server
from .ways import Peer
from .wire import BenchmarkError

WARM_UP_TURNS = 3
QUIET = "--concurrency 1 --pool solo --without-gossip --without-mingle --loglevel ERROR"
WORKER = [
    *(sys.executable, "-m", "celery", "-A", "project", "worker", "-Q", "celery,responses_ws.billing"),
    *QUIET.split(),
]


def loops(load: Load, servers: dict[str, Server], rounds: int) -> dict[str, list[Rollout]]:
    """The rollouts of each server, in turn."""
    found: dict[str, list[Rollout]] = {name: [] for name in servers}
    for number in range(-1, rounds):
        for name in sorted(servers, reverse=bool(number % 2)):
            server = servers[name]
            peer = Peer(server.url, server.key, load.model)
            way = "ws" if name == "off" else "ws-stored"
            if number < 0:
                run(way, Load(WARM_UP_TURNS, load.tokens, load.rate, engine=load.engine), peer)
                continue
            found[name].append(run(way, load, peer, pid=server.pid))
    return found


def billed(database: dict[str, str]) -> str:
    """How much of it the worker has done: without it nothing would have been compared.

    Raises:
        BenchmarkError: nothing is billed.
    """
    question = "SELECT count(*), count(billed_at) FROM by_commit.responses_ws_usagerecord"
    with psycopg.connect(host=database["PGHOST"], user="postgres", dbname="postgres") as connection:
        records, done = connection.execute(question).fetchone() or (0, 0)
    if not done:
        raise BenchmarkError(f"none of {records} usage records is billed")
    return f"{done} of {records} usage records were billed when the last loop ended."


def main(given: Sequence[str] | None = None) -> int:
    """Run and print. 1 where something went wrong."""
    parser = arguments("benchmarks.writes", __doc__, rounds=3)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rates", default="1000,4000", help="tokens a second, comma-separated")
    options = parser.parse_args(given)
    loads = [Load(options.turns, options.tokens, int(rate), engine="ids") for rate in options.rates.split(",")]
    models = [load.model for load in loads]
    findings = Findings("benchmarks.writes", options.rounds, given)
    try:
        with contextlib.ExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="responses-ws-bench-")))
            home.chmod(0o755)
            database = stack.enter_context(postgres(home))
            redis = stack.enter_context(Redis(directory=home / "redis"))
            engine = stack.enter_context(fake_engine(models))
            servers = {}
            for number, durability in enumerate(("commit", "journal")):
                # Brokers of their own: each worker bills what its server has written.
                broker = redis.url.removesuffix("0") + str(number)
                on = {**database, "BENCHMARK_SCHEMA": f"by_{durability}", "CELERY_BROKER_URL": broker}
                state = {"RESPONSES_WS": {"REDIS_URL": redis.url, "DURABILITY": durability}}
                written = responses_server(engine.url, models, settings=state, environment=on, beside=[WORKER])
                servers[f"on, by {durability}"] = stack.enter_context(written)
            off = {**database, "BENCHMARK_SCHEMA": "unwritten"}
            nothing = {"ASGI_APPLICATION": "benchmarks.unwritten.application"}
            servers["off"] = stack.enter_context(
                responses_server(engine.url, models, settings=nothing, environment=off)
            )
            for load in loads:
                found = loops(load, servers, options.rounds)
                for name, rollouts in found.items():
                    findings.add(f"{load}, end to end", f"writes {name}", "s", [one.seconds for one in rollouts])
                for name in servers:
                    ratios = [on.seconds / off.seconds for on, off in zip(found[name], found["off"], strict=True)]
                    if name != "off":
                        row = f"{name}, ÷ off at {load.rate}/s"
                        findings.add(f"{load}, end to end", row, "ratio", ratios, at_most=1.1)
            findings.notes.append(billed(database))
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    findings.tell(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
