"""Three workers behind one port: one scrape tells of all of them."""

import asyncio
import json
import os
import signal
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import websockets
from prometheus_client.parser import text_string_to_metric_families

from tests.live import Server, until

pytestmark = pytest.mark.stack

WORKERS = 3
SOCKETS = 12
TOKEN = "a-token-of-prometheus"

Samples = dict[str, dict[str, float]]
"""Values by name and process, of all other labels together."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(directory=tmp_path)
    made.command += ["--workers", str(WORKERS), "--drain-seconds", "5"]
    made.environment["METRICS_TOKEN"] = TOKEN
    made.migrate()
    with made:
        yield made


def scrape(server: Server) -> Samples:
    request = urllib.request.Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
    found: Samples = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name][sample.labels["process"]] += sample.value
    return found


def whole_scrape(server: Server) -> Samples:
    """One that all workers have told in time: on a busy machine that may take a second try."""

    def look() -> Samples | None:
        seen = scrape(server)
        return seen if len(seen["responses_ws_sockets"]) == WORKERS else None

    return until(look, "all workers to tell", seconds=30)


async def test_any_worker_tells_of_all_and_a_killed_one_is_replaced(server: Server) -> None:
    key = server.create_key("watched")
    whole_scrape(server)
    async with AsyncExitStack() as sockets:
        for _ in range(SOCKETS):
            connect = websockets.connect(server.socket_url, additional_headers={"Authorization": f"Bearer {key}"})
            socket = await sockets.enter_async_context(connect)
            await socket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hello"}))
            async with asyncio.timeout(10):
                while json.loads(await socket.recv())["type"] != "response.completed":
                    pass

        # Each scrape is a connection of its own, and so reaches any of them.
        scrapes = [whole_scrape(server) for _ in range(2 * WORKERS)]
        for seen in scrapes:
            assert sum(seen["responses_ws_sockets"].values()) == SOCKETS
            assert sum(seen["responses_ws_turns_total"].values()) == SOCKETS
            # The database is the same for all: it is told once.
            assert len(seen["responses_ws_unbilled_records"]) == 1

        sockets_of = scrapes[0]["responses_ws_sockets"]
        killed = max(sockets_of, key=sockets_of.__getitem__)
        os.kill(int(killed), signal.SIGKILL)

        until(lambda: killed not in scrape(server)["responses_ws_sockets"], "the killed one to be forgotten")
        left = whole_scrape(server)["responses_ws_sockets"]
        assert sum(left.values()) == SOCKETS - sockets_of[killed]
