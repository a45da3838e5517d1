"""What an HTTP request costs on its way to a turn, door by door: uvicorn, Django, DRF, ours, and the turn itself.

``python -m benchmarks.http`` posts to doors that do more and more, with the demo project's middleware and without any.
The engine is inside of the process and costs nothing.
"""

import contextlib
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from .crowd import create, opened
from .figures import Findings, arguments
from .idle import heard
from .stack import INSTANT, Server, cpu_seconds, responses_server
from .ways import Peer, dumps
from .wire import BenchmarkError, hear, http_ended, request_head

TURN_SECONDS = 30.0
MODEL = f"{INSTANT}-t10-b10"
UNKNOWN, REFUSED = "unknown", 404
WARM_UP_REQUESTS = 10
TURN = {"model": MODEL, "input": "Go on.", "store": False}
LARGE = {"model": MODEL, "input": "word " * 100_000, "store": False}
DOORS = {
    "uvicorn alone": ("/bare/", TURN),
    "Django's view": ("/django/", TURN),
    "DRF's view": ("/drf/", TURN),
    "ours, refused": ("/v1/responses", {**TURN, "model": UNKNOWN}),
    "a turn as JSON": ("/v1/responses", TURN),
    "a turn as SSE": ("/v1/responses", {**TURN, "stream": True}),
    "a turn as SSE, 500 kB of input": ("/v1/responses", {**LARGE, "stream": True}),
}
SOCKET = "a turn over WebSocket"


def knocks(server: Server, held: contextlib.ExitStack) -> dict[str, Callable[[], float]]:
    """For each door what asks there once, on a connection of its own that is kept; gives the seconds it took."""
    peer = Peer(server.url, server.key, MODEL, TURN_SECONDS)

    def knock(path: str, body: dict[str, object], status: int) -> Callable[[], float]:
        payload = dumps(body)
        headers = {
            "Authorization": f"Bearer {server.key}",
            "Content-Type": "application/json",
            "Content-Length": str(len(payload)),
        }
        request = request_head("POST", path, peer.parts.netloc, headers) + b"\r\n" + payload
        begins = re.compile(b"HTTP/1.1 %d" % status)
        sock = held.enter_context(contextlib.closing(peer.connect()))

        def once() -> float:
            started = time.perf_counter()
            sock.sendall(request)
            answer = hear(sock, first=begins, ended=http_ended, timeout=TURN_SECONDS)
            if not answer.first_at:
                raise BenchmarkError(f"{path} answered {bytes(answer.data[:500])!r}")
            return answer.ended_at - started

        return once

    found = {
        name: knock(path, body, REFUSED if body["model"] == UNKNOWN else 200) for name, (path, body) in DOORS.items()
    }
    (sock,) = opened(server, 1, timeout=TURN_SECONDS)
    held.callback(sock.close)
    found[SOCKET] = partial(heard, sock, create(MODEL))
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Run and print. 1 where something went wrong."""
    parser = arguments("benchmarks.http", __doc__, rounds=5)
    parser.add_argument("--requests", type=int, default=100, help="at each door in each round")
    options = parser.parse_args(given)
    findings = Findings("benchmarks.http", options.rounds, given)
    engine = {
        "ENGINES": {"instant": {"ENGINE": "benchmarks.instant.Instant"}},
        "MODELS": {MODEL: {"ENGINE": "instant"}},
    }
    plain = {
        "ASGI_APPLICATION": "benchmarks.doors.application",
        "ROOT_URLCONF": "benchmarks.doors",
        "RESPONSES_WS": engine,
        # The admin, which nobody opens here, wants middleware.
        "SILENCED_SYSTEM_CHECKS": ["admin.E408", "admin.E409", "admin.E410"],
    }
    settings = {"middleware of the demo project": plain, "no middleware": {**plain, "MIDDLEWARE": []}}
    milliseconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    cpu: dict[tuple[str, str], list[float]] = defaultdict(list)
    try:
        with contextlib.ExitStack() as held:
            servers = {name: held.enter_context(responses_server(settings=given)) for name, given in settings.items()}
            doors = {name: knocks(server, held) for name, server in servers.items()}
            for number in range(-1, options.rounds):
                for name, server in servers.items():
                    for door, knock in doors[name].items():
                        before = cpu_seconds(server.pid) or 0.0
                        took = [knock() for _ in range(options.requests if number >= 0 else WARM_UP_REQUESTS)]
                        used = (cpu_seconds(server.pid) or 0.0) - before
                        if number >= 0:
                            milliseconds[name, door].append(1000 * median(took))
                            cpu[name, door].append(1000 * used / options.requests)
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    for (name, door), rounds in milliseconds.items():
        findings.add("an HTTP request, door by door", door, f"ms, {name}", rounds)
        findings.add("an HTTP request, door by door", door, f"CPU ms, {name}", cpu[name, door])
    findings.tell(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
