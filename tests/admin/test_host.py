"""What the workers of a host tell of themselves, added up."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from responses_ws.admin.host import Tier, host
from responses_ws.runtime import metrics
from responses_ws.runtime.metrics import Family
from responses_ws.runtime.siblings import siblings


@contextmanager
def another_worker(told: list[Family], directory: Path) -> Iterator[None]:
    """Answers as one does, on a loop of its own: the page waits in its thread."""
    loop = asyncio.new_event_loop()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(msgspec.json.encode(told))
        writer.close()

    server = loop.run_until_complete(asyncio.start_unix_server(answer, directory / "1"))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    siblings.meet_in(directory)
    try:
        yield
    finally:
        siblings.__init__()  # type: ignore[misc]
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_all_workers_of_the_host_are_added_up(tmp_path: Path) -> None:
    metrics.lookups.add(("redis",), 2)
    metrics.turn_phases.observe(("settle",), 0.004)
    metrics.handshakes_refused.add(("websocket_off", "7"))
    told = [
        Family(metrics.lookups.name, "counter", "", ['x{tier="redis",process="1"} 1', 'x{tier="none",process="1"} 1']),
        Family("responses_ws_sockets", "gauge", "", ['x{process="1"} 3']),
        Family("responses_ws_lanes", "gauge", "", ['x{process="1"} 5']),
    ]

    with another_worker(told, tmp_path):
        found = host()

    assert (found.processes, found.sockets, found.lanes, found.sent_to_http) == (2, 3, 5, 1)
    assert Tier("Redis", "3", "75.0%") in found.tiers and Tier("Nowhere", "1", "25.0%") in found.tiers
    assert found.settle_ms == 4.0
