"""What sockets cost that do nothing, one that does not read, and one that waits for the database.

``python -m benchmarks.idle`` holds many sockets open, without a turn, with one behind each, and with long chains; lets
a client leave 40 MB unread; and has one socket wait half a second for a read while another runs its turns. Linux only.
"""

import contextlib
import re
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from .crowd import COMPLETED, create, opened
from .figures import Findings, arguments
from .loop import ASKED_IN, Load, tool_outputs
from .stack import Server, fake_engine, responses_server
from .ways import TERMINAL, HttpKeep, Peer, Way, WebSocket, dumps
from .wire import BenchmarkError, frame, hear, turn_ended

KIB, MIB = 1024, 1024 * 1024
TURN_SECONDS = 30.0
WARM_UP_SOCKETS = 20
CACHED_TOKENS, BYTES_A_TOKEN = 2000, 4
UNREAD_TOKENS = 190_000  # of more than 210 bytes a frame: 40 MB
UNREAD_SECONDS = 3.0
SETTLED_SECONDS = 0.5
SLOW_SECONDS = 0.5
SLOW_ID = "resp_" + "5" * 48
"""A response whose reading takes `SLOW_SECONDS`, with `benchmarks.slow_reads`."""
ANSWER = {engine: Load(1, 10, 0, engine=engine).model for engine in ("chat", "ids")}
MUCH = Load(1, 5000, 0).model
UNREAD = Load(1, UNREAD_TOKENS, 0).model
MODELS = [*ANSWER.values(), MUCH, UNREAD]
ENDED = re.compile(COMPLETED)
REFUSED = re.compile(rb'"type":"error"')


def resident(server: Server) -> int:
    """Bytes of memory that the server's process holds."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * KIB
    raise BenchmarkError("the system does not tell how much memory a process holds")


def settled(server: Server) -> int:
    """The same, once it has not changed for a while."""
    held, since = resident(server), time.perf_counter()
    deadline = since + 20 * SETTLED_SECONDS
    while (now := time.perf_counter()) - since < SETTLED_SECONDS and now < deadline:
        time.sleep(0.05)
        if (found := resident(server)) != held:
            held, since = found, now
    return held


def heard(sock: socket.socket, message: bytes) -> float:
    """Ask, and read the turn to its end; gives the seconds it took."""
    started = time.perf_counter()
    sock.sendall(message)
    answer = hear(sock, first=ENDED, ended=turn_ended(TERMINAL), timeout=TURN_SECONDS)
    if not answer.first_at:
        raise BenchmarkError(f"not the answer that was due: {bytes(answer.data[-500:])!r}")
    return answer.ended_at - started


def a_socket(server: Server, sockets: int, message: bytes | None, held: contextlib.ExitStack) -> float:
    """KiB for each of so many more sockets, with one turn behind it where a ``message`` asks for one.

    They stay open until ``held`` is closed: what is given back is not missed by those that come next.
    """
    before = settled(server)
    for sock in opened(server, sockets, timeout=TURN_SECONDS):
        held.callback(sock.close)
        if message:
            heard(sock, message)
    return (settled(server) - before) / sockets / KIB


def chain_to_json(server: Server, engine: str, sockets: int, turns: int, held: contextlib.ExitStack) -> float:
    """What so many more chains take in memory, as a multiple of their items' JSON. They stay until ``held`` closes."""
    peer = Peer(server.url, server.key, ANSWER[engine], TURN_SECONDS)

    def hold(way: Way) -> None:
        held.enter_context(contextlib.closing(way)).open()
        outputs = tool_outputs()
        for number in range(turns):
            way.turn(next(outputs) if number else "")

    # A client that sends all of it again has all of it.
    resending = HttpKeep(peer)
    hold(resending)
    before = settled(server)
    for _ in range(sockets):
        hold(WebSocket(peer))
    return (settled(server) - before) / (sockets * sum(len(item) + 1 for item in resending.items))


def unread(server: Server) -> float:
    """MiB that the server holds more, at most, while a client has asked for 40 MB and reads nothing."""
    with contextlib.ExitStack() as held:
        polite, rude = opened(server, 2, timeout=TURN_SECONDS)
        held.callback(polite.close)
        held.callback(rude.close)
        heard(polite, create(MUCH))
        before = most = settled(server)
        rude.sendall(create(UNREAD))
        until = time.perf_counter() + UNREAD_SECONDS
        while time.perf_counter() < until:
            most = max(most, resident(server))
            # It is a busy server: others are served meanwhile.
            heard(polite, create(ANSWER["chat"]))
    return (most - before) / MIB


def beside_a_slow_read(server: Server, turns: int) -> tuple[list[float], list[float]]:
    """Milliseconds of another socket's turns, alone, and each behind the beginning of a slow read."""
    alone, beside = [], []
    asks = dumps({"type": "response.create", "model": ANSWER["chat"], "input": "x", "previous_response_id": SLOW_ID})
    with contextlib.ExitStack() as held:
        waiting, other = opened(server, 2, timeout=TURN_SECONDS)
        held.callback(waiting.close)
        held.callback(other.close)
        message = create(ANSWER["chat"])
        heard(other, message)
        for _ in range(turns):
            alone.append(1000 * heard(other, message))
            started = time.perf_counter()
            waiting.sendall(frame(asks))
            beside.append(1000 * heard(other, message))
            refusal = hear(waiting, first=REFUSED, ended=turn_ended(REFUSED), timeout=TURN_SECONDS)
            if not refusal.first_at or refusal.ended_at - started < SLOW_SECONDS:
                raise BenchmarkError(f"that read was not slow: {bytes(refusal.data[-500:])!r}")
    return alone, beside


def main(given: Sequence[str] | None = None) -> int:
    """Run and print. 1 where something went wrong."""
    parser = arguments("benchmarks.idle", __doc__, rounds=3)
    parser.add_argument("--sockets", type=int, default=500, help="more of each kind in each round")
    parser.add_argument(
        "--chains", type=int, default=8, help="more in each round, whose memory is compared with their JSON"
    )
    parser.add_argument("--turns", type=int, default=100, help="of such a chain")
    parser.add_argument("--slow-reads", type=int, default=5, help="of each round")
    options = parser.parse_args(given)
    if not sys.platform.startswith("linux"):
        parser.error("only Linux tells what a process holds")
    findings = Findings("benchmarks.idle", options.rounds, given)
    text = "word" * (CACHED_TOKENS * BYTES_A_TOKEN // 4)
    rows: tuple[tuple[str, bytes | None, float], ...] = (
        ("idle socket", None, 40),
        ("idle socket with a cached turn of 2k tokens, messages", create(ANSWER["chat"], text), 56),
        ("idle socket with a cached turn of 2k tokens, token ids", create(ANSWER["ids"], text), 56),
    )
    slow = {"ASGI_APPLICATION": "benchmarks.slow_reads.application"}
    try:
        with fake_engine(MODELS) as engine:
            for row, message, most in rows:
                # What one kind has left behind in the allocator would be in the next one's figures.
                with contextlib.ExitStack() as held:
                    server = held.enter_context(responses_server(engine.url, MODELS))
                    a_socket(server, WARM_UP_SOCKETS, message, held)
                    found = [a_socket(server, options.sockets, message, held) for _ in range(options.rounds)]
                findings.add("memory", row, "KiB", found, at_most=most)
            for name in ANSWER:
                with contextlib.ExitStack() as held:
                    server = held.enter_context(responses_server(engine.url, MODELS))
                    chains = partial(chain_to_json, server, name, turns=options.turns, held=held)
                    chains(sockets=1)
                    ratios = [chains(sockets=options.chains) for _ in range(options.rounds)]
                row = f"a chain of {options.turns} turns, {ASKED_IN[name]}"
                findings.add("memory of a chain", row, "÷ its JSON", ratios, at_most=2)
            with responses_server(engine.url, MODELS, settings=slow) as server:
                # The first is not counted: the allocator keeps what an answer of that size takes.
                more = [unread(server) for _ in range(-1, options.rounds)][1:]
                pairs = [beside_a_slow_read(server, options.slow_reads) for _ in range(options.rounds)]
            findings.add("a client that does not read", "40 MB unread", "more MiB", more, at_most=4)
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    table = f"another socket's turn while one waits {SLOW_SECONDS:g} s for the database"
    findings.add(table, "nobody waits", "ms", [median(alone) for alone, _ in pairs])
    findings.add(table, "one waits", "ms", [median(beside) for _, beside in pairs], at_most=20)
    findings.add(table, "one waits", "slowest ms", [max(beside) for _, beside in pairs])
    findings.tell(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
