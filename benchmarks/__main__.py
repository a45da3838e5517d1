"""The benchmarks of the README, one after the other, in a quarter of an hour.

``python -m benchmarks``, or ``make bench``: what they find is written to ``var/bench``. Each is a module with more
options of its own.
"""

import argparse
import signal
import sys

from . import agent_loop, charts, http, idle, stream, turn_overhead

LOOP = ["-K", "100", "--paces", "100x1000,100x4000"]
RUNS = {
    "agent_loop": (agent_loop.main, [*LOOP, "--ways", "engine,http-new,http-prev,ws,ws-long"]),
    "agent_loop_tokenizers": (agent_loop.main, [*LOOP, "--ways", "engine,http-new,ws", "--tokenizers"]),
    "turn_overhead": (turn_overhead.main, []),
    "stream": (stream.main, []),
    "idle": (idle.main, []),
    "http": (http.main, []),
}


def main() -> int:
    """Run them. 1 where one has failed, behind all the others."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(RUNS)}; all if none is named")
    parser.add_argument("--rounds", type=int, help="of each, instead of its own number")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in RUNS]:
        parser.error(f"there is no {unknown[0]}")
    failed = 0
    for name, (run, given) in RUNS.items():
        if options.names and name not in options.names:
            continue
        print(f"\n## {name}\n", flush=True)
        rounds = ["--rounds", str(options.rounds)] if options.rounds else []
        failed |= run([*given, *rounds, "--json", str(charts.FOUND / f"{name}.json")])
    return failed


if __name__ == "__main__":
    # Leave through the context managers: they end the processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
