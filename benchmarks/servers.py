"""The same application behind ASGI servers and their settings: what a turn and a token take with each.

``python -m benchmarks.servers`` compares our launcher with uvicorn by hand, piece by piece, and with daphne.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence

from .figures import Findings, arguments
from .loop import Load
from .peers import OURS, Race, chains, streams
from .stack import fake_engine, responses_server
from .wire import BenchmarkError

WAYS = ("ws", "http-prev")
APPLICATION = "project.asgi:application"


def by_uvicorn(*options: str) -> Callable[[int], Sequence[str]]:
    """uvicorn with our settings, and these over them."""

    def launch(port: int) -> Sequence[str]:
        ours = "--ws websockets-sansio --loop uvloop --http httptools --ws-per-message-deflate false --no-access-log"
        return ["-m", "uvicorn", APPLICATION, "--host", "127.0.0.1", "--port", str(port), *ours.split(), *options]

    return launch


def by_daphne(port: int) -> Sequence[str]:
    return ["-m", "daphne", "-b", "127.0.0.1", "-p", str(port), "-v", "0", APPLICATION]


SERVERS: dict[str, Callable[[int], Sequence[str]] | None] = {
    OURS: None,
    "uvicorn": by_uvicorn(),
    "uvicorn, asyncio": by_uvicorn("--loop", "asyncio"),
    "uvicorn, h11": by_uvicorn("--http", "h11"),
    "uvicorn, websockets": by_uvicorn("--ws", "websockets"),
    "daphne": by_daphne,
}
"""``uvicorn``: sans-io websockets, uvloop and httptools; behind it, one piece in place of ours."""


def main(given: Sequence[str] | None = None) -> int:
    """Run and print. 1 where a server did not start."""
    parser = arguments("benchmarks.servers", __doc__, rounds=3)
    parser.add_argument("--turns", type=int, default=30, help="of a chain; at least 12")
    parser.add_argument("--tokens", type=int, default=10, help="of an answer in a chain")
    parser.add_argument("--stream", type=int, default=5000, help="tokens of the long answer")
    options = parser.parse_args(given)
    load = Load(options.turns, options.tokens, 0)
    findings = Findings("benchmarks.servers", options.rounds, given)
    try:
        with contextlib.ExitStack() as stack:
            race = Race(stack.enter_context(fake_engine([load.model, Load(1, options.stream, 0).model])))
            for name, launcher in SERVERS.items():
                race.join(name, stack.enter_context(responses_server(race.engine.url, launcher=launcher)), WAYS)
            chains(race, findings, load, options.rounds)
            streams(race, findings, options.stream, options.rounds)
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    findings.notes += [f"{name}, {way} dropped out. {why}" for (name, way), why in race.dropped.items()]
    findings.tell(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
