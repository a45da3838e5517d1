"""What one process tells, the others hear: by the table, and sooner by the channel layer."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from channels.layers import channel_layers
from django.db import transaction
from django.test import override_settings

from responses_ws.models import ControlMessage
from responses_ws.runtime import dbpool
from responses_ws.runtime.bus import Bus, tell

pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = 10.0
SOON = {"LIMITS": {"control_poll_seconds": 0.05}}
NEVER = {"LIMITS": {"control_poll_seconds": 3600}}


class Ear:
    """What a process has heard."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def next(self) -> Mapping[str, Any]:
        return await asyncio.wait_for(self.heard.get(), SECONDS)


@asynccontextmanager
async def process() -> AsyncIterator[Ear]:
    """Another process, as far as control messages go."""
    ear, bus = Ear(), Bus()
    bus.handle("test", ear.heard.put_nowait)
    await bus.listen()
    try:
        yield ear
    finally:
        await bus.stop()


@override_settings(RESPONSES_WS=SOON)
async def test_every_process_hears_a_message_once_in_order() -> None:
    async with process() as one, process() as other:
        for number in range(3):
            await dbpool.run(tell, "test", number=number)

        for ear in (one, other):
            assert [(await ear.next())["number"] for _ in range(3)] == [0, 1, 2]
        await dbpool.run(tell, "test", number="last")
        assert [(await ear.next())["number"] for ear in (one, other)] == ["last", "last"]


@override_settings(RESPONSES_WS=SOON)
async def test_what_was_told_before_is_not_heard() -> None:
    await dbpool.run(tell, "test", number="old")

    async with process() as ear:
        await dbpool.run(tell, "test", number="new")

        assert (await ear.next())["number"] == "new"


@override_settings(RESPONSES_WS=SOON)
async def test_what_is_rolled_back_is_never_heard() -> None:
    def take_back() -> None:
        with pytest.raises(ValueError), transaction.atomic():
            tell("test", number="taken back")
            raise ValueError

    async with process() as ear:
        await dbpool.run(take_back)
        await dbpool.run(tell, "test", number="meant")

        assert (await ear.next())["number"] == "meant"


@override_settings(RESPONSES_WS=SOON)
async def test_a_handler_that_breaks_does_not_deafen(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(body: Mapping[str, Any]) -> None:
        raise RuntimeError("a fault of ours")

    bus, ear = Bus(), Ear()
    bus.handle("broken", breaks)
    bus.handle("test", ear.heard.put_nowait)
    await bus.listen()
    for kind in ("broken", "of a newer version", "test"):
        await dbpool.run(tell, kind, number=1)

    assert (await ear.next())["number"] == 1
    await bus.stop()
    assert "could not be obeyed" in caplog.text


@asynccontextmanager
async def channel_layer(backend: str, config: dict[str, Any]) -> AsyncIterator[None]:
    with override_settings(CHANNEL_LAYERS={"default": {"BACKEND": backend, "CONFIG": config}}):
        channel_layers.backends = {}
        try:
            yield
        finally:
            channel_layers.backends = {}


@override_settings(RESPONSES_WS=NEVER)
async def test_a_nudge_over_redis_makes_it_hear_at_once(redis_url: str) -> None:
    async with channel_layer("channels_redis.core.RedisChannelLayer", {"hosts": [redis_url]}):
        async with process() as ear:
            # The ear joins its group in the background: whoever tells too early is heard by the table only.
            heard = asyncio.create_task(ear.next())
            while not heard.done():
                await dbpool.run(tell, "test", number=1)
                await asyncio.wait({heard}, timeout=0.2)

            assert (await heard)["number"] == 1


@override_settings(RESPONSES_WS=SOON)
async def test_a_layer_that_is_down_only_makes_it_slower() -> None:
    async with channel_layer("channels_redis.core.RedisChannelLayer", {"hosts": ["redis://127.0.0.1:1/0"]}):
        async with process() as ear:
            await dbpool.run(tell, "test", number=1)

            assert (await ear.next())["number"] == 1


async def test_outdated_messages_can_go() -> None:
    await dbpool.run(tell, "test")

    assert not await ControlMessage.objects.outdated().aexists()
