"""How this process fares: what it takes of the machine, and how late its event loop is."""

import asyncio
import contextlib
import os
import time

from . import metrics
from .metrics import Gauge

SECONDS_BETWEEN_LOOKS = 0.25
_STARTED_AT = time.time()


class LoopWatch:
    """Sets a timer again and again, and counts how late it comes. What blocks the loop for longer is seen whole."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(SECONDS_BETWEEN_LOOKS, self._look, loop, loop.time() + SECONDS_BETWEEN_LOOKS)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        metrics.loop_lag.observe((), max(0.0, now - due))
        self._timer = loop.call_at(now + SECONDS_BETWEEN_LOOKS, self._look, loop, now + SECONDS_BETWEEN_LOOKS)


def gauges() -> list[Gauge]:
    """What Prometheus' own clients tell of a process, by the same names; the last two where there is a /proc."""
    times = os.times()
    told = [
        Gauge("process_start_time_seconds", "Since when it runs, in seconds since 1970.", samples=[((), _STARTED_AT)]),
        Gauge(
            "process_cpu_seconds_total",
            "CPU time it has taken.",
            samples=[((), times.user + times.system)],
            kind="counter",
        ),
    ]
    with contextlib.suppress(OSError):
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        told.append(Gauge("process_resident_memory_bytes", "Memory it holds.", samples=[((), resident)]))
        fds = len(os.listdir("/proc/self/fd"))
        told.append(Gauge("process_open_fds", "Files and sockets that it has open.", samples=[((), fds)]))
    return told


loop_watch = LoopWatch()
