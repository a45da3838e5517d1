"""The demo project for benchmarks: as it is, with a clock at the two places where a turn waits for the database."""

import atexit
import json
import os
import time
from pathlib import Path

from project.asgi import application
from responses_ws.serving.recording import Record

__all__ = ["application"]

_waits: list[tuple[float, str, float]] = []
"""When (``time.perf_counter``, one clock for all processes of a Linux machine), for what, and for how many seconds."""

_wait_until_open, _close = Record.wait_until_open, Record.close


async def _timed_opening(record: Record) -> None:
    started = time.perf_counter()
    await _wait_until_open(record)
    _waits.append((started, "opening", time.perf_counter() - started))


async def _timed_end(record: Record, **end):
    started = time.perf_counter()
    place = await _close(record, **end)
    _waits.append((started, "end", time.perf_counter() - started))
    return place


Record.wait_until_open = _timed_opening  # type: ignore[method-assign]
Record.close = _timed_end  # type: ignore[method-assign, assignment]
atexit.register(lambda: Path(os.environ["BENCHMARK_WAITS"]).write_text(json.dumps(_waits)))
