"""The panels that compare WebSocket mode with HTTP, and tell where chains were found."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from responses_ws.admin.ways import Tier, Way, host, ways
from responses_ws.models import UsageRecord, usage
from responses_ws.runtime import metrics
from responses_ws.runtime.metrics import Family
from responses_ws.runtime.siblings import siblings
from tests.billing.rows import NOON, make_project, make_record

pytestmark = pytest.mark.django_db


def records() -> usage.UsageRecordQuerySet:
    return UsageRecord.objects.between(NOON - timedelta(hours=24))


def test_each_way_has_its_share_and_its_times() -> None:
    project = make_project()
    for number in range(1, 21):
        make_record(project, transport="websocket", first_token_ms=10.0 * number, duration_ms=100.0 * number)
    for number in (1, 2):
        make_record(project, transport="sse", first_token_ms=300.0 * number, duration_ms=3_000.0 * number)
    make_record(project, transport="http", first_token_ms=None, duration_ms=50.0, status="failed")
    make_record(project, transport="http", status="in_progress")
    make_record(project, transport="http", started_at=NOON - timedelta(hours=25), duration_ms=9.0)

    assert ways(records()) == [
        Way("WebSocket", "20", "87.0%", "100 ms, 190 ms", "1.00 s, 1.90 s"),
        Way("SSE", "2", "8.7%", "300 ms, 600 ms", "3.00 s, 6.00 s"),
        Way("HTTP", "1", "4.3%", "–", "50 ms, 50 ms"),
    ]


def test_of_a_busy_day_only_the_newest_times_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "TIMES_LOOKED_AT", 10)
    project = make_project()
    for number in range(30):
        slow = 1.0 if number < 10 else 1_000.0
        make_record(project, started_at=NOON - timedelta(minutes=number), first_token_ms=slow, duration_ms=slow)

    with CaptureQueriesContext(connection) as queries:
        (websocket, *_) = ways(records())

    assert (websocket.turns, websocket.first_token) == ("30", "1 ms, 1 ms")
    assert len(queries) == 2


def test_without_any_turn_there_are_dashes() -> None:
    assert ways(records())[0] == Way("WebSocket", "0", "–", "–", "–")


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
    metrics.handshakes_refused.add(("websocket_off", "7"))
    told = [
        Family(metrics.lookups.name, "counter", "", ['x{tier="redis",process="1"} 1', 'x{tier="none",process="1"} 1']),
        Family("responses_ws_sockets", "gauge", "", ['x{process="1"} 3']),
    ]

    with another_worker(told, tmp_path):
        found = host()

    assert (found.processes, found.sockets, found.sent_to_http) == (2, 3, 1)
    assert Tier("Redis", "3", "75.0%") in found.tiers and Tier("Nowhere", "1", "25.0%") in found.tiers
