"""Looking at processes elsewhere: siblings by their Unix sockets, other hosts by the channel layer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from channels.layers import channel_layers
from django.test import override_settings

from responses_ws.runtime import bus, live, siblings, watching
from responses_ws.runtime.bus import Bus
from responses_ws.runtime.live import ProcessTotals, Snapshot, Totals
from responses_ws.runtime.siblings import Siblings
from responses_ws.runtime.watching import Picture, Watching, live_totals

pytestmark = pytest.mark.django_db(transaction=True)

OTHER = Snapshot(process="other:1", at=0.0, totals=Totals(sockets=3, lanes=5, generating=2), connections=[])


@pytest.fixture
async def sibling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Another worker of this host."""
    ours, servers = Siblings(), []
    ours.meet_in(tmp_path)
    told = {"live": OTHER, "totals": ProcessTotals(OTHER.process, OTHER.totals)}

    def answering(what: str) -> Any:
        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(msgspec.json.encode(told[what]))
            writer.close()

        return answer

    for what in told:
        servers.append(await asyncio.start_unix_server(answering(what), tmp_path / f"1.{what}"))
    monkeypatch.setattr(watching, "siblings", ours)
    yield
    for server in servers:
        server.close()


@asynccontextmanager
async def another_host(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A process that is reached by the channel layer alone."""
    layer = {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [url]}}
    with override_settings(CHANNEL_LAYERS={"default": layer}):
        channel_layers.backends = {}
        there = Bus()
        there.answer("live", lambda: msgspec.json.encode(OTHER))
        there.answer("totals", lambda: msgspec.json.encode(ProcessTotals(OTHER.process, OTHER.totals)))
        # Both are this very process.
        monkeypatch.setattr(bus, "process_name", lambda: "other:1")
        await there.listen()
        try:
            yield
        finally:
            await there.stop()
            channel_layers.backends = {}


async def picture_of(processes: int) -> Picture:
    """The first that shows so many."""
    looking = Watching()
    number = 0
    async with asyncio.timeout(30), looking.watch():
        while True:
            number, frame = await looking.next(number)
            picture = msgspec.json.decode(frame, type=Picture)
            if len(picture.processes) == processes:
                return picture


async def test_a_sibling_is_shown_and_added_up(sibling: None) -> None:
    picture = await picture_of(2)

    assert {one.process for one in picture.processes} == {live.process_name(), "other:1"}
    assert (picture.totals, picture.layer) == (Totals(processes=2, sockets=3, lanes=5, generating=2), "none")
    assert await live_totals(within=10) == picture.totals


async def test_a_layer_that_is_down_is_said_and_this_host_is_shown(sibling: None) -> None:
    layer = {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": ["redis://127.0.0.1:1/0"]}}
    with override_settings(CHANNEL_LAYERS={"default": layer}):
        channel_layers.backends = {}
        looking, number, said = Watching(), 0, ""
        async with asyncio.timeout(30), looking.watch():
            while said != "down":
                number, frame = await looking.next(number)
                picture = msgspec.json.decode(frame, type=Picture)
                said = picture.layer
        channel_layers.backends = {}

    assert picture.totals.sockets == 3


def test_siblings_of_this_process_are_the_modules() -> None:
    assert watching.siblings is siblings.siblings


async def test_another_host_is_shown_by_the_channel_layer(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with another_host(redis_url, monkeypatch):
        # Who asks leaves itself out, by a name that it takes from here.
        monkeypatch.setattr(bus, "ask", _asking_everybody)
        picture = await picture_of(2)

    assert picture.layer == "ok"
    assert {one.process for one in picture.processes} == {live.process_name(), "other:1"}


async def _asking_everybody(layer: Any, what: str, reply: str, *, but: Any = ()) -> None:
    await layer.group_send(bus.GROUP, {"type": "ask", "what": what, "reply": reply, "but": list(but)})
