"""What it costs an agent's loop that everything is written down: usage, ledger and state, against nothing of it.

``python -m benchmarks.writes`` runs the same loop on two servers: one stores every response in PostgreSQL and Redis
while a Celery worker bills it, the other writes nothing.
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
            way = "ws-stored" if name == "on" else "ws"
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
    question = "SELECT count(*), count(billed_at) FROM written.responses_ws_usagerecord"
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
            on = {**database, "BENCHMARK_SCHEMA": "written", "CELERY_BROKER_URL": redis.url}
            state = {"RESPONSES_WS": {"REDIS_URL": redis.url}}
            off = {**database, "BENCHMARK_SCHEMA": "unwritten"}
            nothing = {"ASGI_APPLICATION": "benchmarks.unwritten.application"}
            written = responses_server(engine.url, models, settings=state, environment=on, beside=[WORKER])
            unwritten = responses_server(engine.url, models, settings=nothing, environment=off)
            servers = {"on": stack.enter_context(written), "off": stack.enter_context(unwritten)}
            for load in loads:
                found = loops(load, servers, options.rounds)
                for name, rollouts in found.items():
                    findings.add(f"{load}, end to end", f"writes {name}", "s", [one.seconds for one in rollouts])
                ratios = [on.seconds / off.seconds for on, off in zip(found["on"], found["off"], strict=True)]
                findings.add(f"{load}, end to end", f"on ÷ off at {load.rate}/s", "ratio", ratios, at_most=1.1)
            findings.notes.append(billed(database))
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    findings.tell(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
