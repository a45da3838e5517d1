"""Health and metrics of a process that serves nothing else."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from responses_ws.management.monitor import listen
from responses_ws.runtime import drain

pytestmark = pytest.mark.django_db(transaction=True)

TOKEN = "a-token-of-prometheus"


@pytest.fixture
async def client(settings: Any) -> AsyncIterator[aiohttp.ClientSession]:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "METRICS_TOKEN": TOKEN}
    runner = await listen("127.0.0.1", 0)
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
        yield session
    await runner.cleanup()


async def test_it_is_well_and_ready_as_a_web_server_is(client: aiohttp.ClientSession) -> None:
    async with client.get("/healthz") as alive, client.get("/readyz") as ready:
        assert (alive.status, await alive.json()) == (200, {"status": "ok"})
        assert (ready.status, await ready.json()) == (200, {"status": "ok", "database": "ok"})


async def test_while_it_drains_it_is_not_ready(client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_is_draining", True)

    async with client.get("/readyz") as ready:
        assert (ready.status, (await ready.json())["status"]) == (503, "draining")


@pytest.mark.parametrize(("sent", "status"), [(f"Bearer {TOKEN}", 200), ("Bearer other", 401), ("", 401)])
async def test_its_metrics_are_for_who_has_the_token(client: aiohttp.ClientSession, sent: str, status: int) -> None:
    async with client.get("/metrics", headers={"Authorization": sent}) as answer:
        assert answer.status == status
        assert ("responses_ws_turns_running{" in await answer.text()) is (status == 200)


async def test_without_a_token_there_are_none(client: aiohttp.ClientSession, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "METRICS_TOKEN": ""}

    async with client.get("/metrics") as answer:
        assert answer.status == 404


async def test_it_serves_nothing_else(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/models") as answer:
        assert answer.status == 404
