"""What a process tells of itself."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from responses_ws.runtime import metrics, vitals
from responses_ws.runtime.vitals import LoopWatch
from tests.waiting import until


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopWatch]:
    monkeypatch.setattr(vitals, "SECONDS_BETWEEN_LOOKS", 0.01)
    watch = LoopWatch()
    yield watch
    watch.stop()


def lags() -> list[float]:
    """Counts per bound, the count above the last, and the sum."""
    return metrics.loop_lag._series.get((), [])


async def test_a_loop_that_was_blocked_is_seen_as_long_as_it_was(watch: LoopWatch) -> None:
    watch.start()
    await until(lambda: sum(lags()[:-1]) >= 2, "two looks")
    before = lags()[-1]

    time.sleep(0.3)  # noqa: ASYNC251
    await until(lambda: lags()[-1] - before > 0.25, "the blockade to be counted")


async def test_a_watch_that_is_stopped_looks_no_more(watch: LoopWatch) -> None:
    watch.start()
    await until(lambda: sum(lags()[:-1]) >= 1, "a look")
    watch.stop()
    before = sum(lags()[:-1])

    await asyncio.sleep(0.05)

    assert sum(lags()[:-1]) == before


@pytest.mark.parametrize(
    "name", ["process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes"]
)
def test_a_process_tells_what_it_takes(name: str) -> None:
    values = {gauge.name: [value for _, value in gauge.samples] for gauge in vitals.gauges()}

    assert values[name][0] > 0
