"""The contract of sinks."""

import asyncio
import unittest
from collections.abc import Collection, Sequence
from typing import Any

from responses_ws.billing.deliveries import UNAVAILABLE
from responses_ws.billing.sinks.base import Message, Rejected, Sink


class SinkContract:
    """What every sink promises. Subclass it in your tests, as ``class TestMySink(SinkContract)``.

    Give ``sink()``, ``counted()``, and ``down()``. Needs pytest-asyncio in auto mode, or any runner of async test
    methods.
    """

    started_at = "2026-11-30T12:00:00+00:00"
    """Of what it is told of. A receiver that takes nothing old needs a moment of now."""
    stripe_customer = ""
    seconds_to_answer = 10.0

    def sink(self) -> Sink:
        """A fresh one, of a receiver that works."""
        raise NotImplementedError

    def counted(self) -> Collection[Any]:
        """What the receiver of the newest ``sink()`` has counted: one for each message, however often it came."""
        raise NotImplementedError

    def down(self) -> Sink | None:
        """One whose receiver is away."""
        return None

    def message(self, number: int) -> Message:
        """One of many."""
        body = {
            "response_id": f"resp_{number}",
            "kind": "usage",
            "rating_version": 1,
            "organization_id": 1,
            "project_id": 1,
            "api_key_id": None,
            "model": "m",
            "service_tier": "default",
            "transport": "websocket",
            "status": "completed",
            "reason": "",
            "estimated": False,
            "memo": "",
            "started_at": self.started_at,
            "posted_at": self.started_at,
            "currency": "USD",
            "amount_nano": 2_800_000,
            "owed_nano": 2_800_000,
            "responses": 1,
            "input_tokens": 1_000,
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "output_tokens": 100,
            "reasoning_tokens": 0,
            "tool_calls": 0,
        }
        return Message(id=f"usage:resp_{number}:1", body=body, stripe_customer=self.stripe_customer)

    async def test_what_is_sent_twice_is_counted_once(self) -> None:
        sink = self.sink()

        await self._tell(sink, [self.message(1), self.message(1)])
        await self._tell(sink, [self.message(1)])

        assert len(self.counted()) == 1

    async def test_messages_side_by_side_are_all_counted(self) -> None:
        sink = self.sink()
        messages = [self.message(number) for number in range(20)]

        async with asyncio.timeout(self.seconds_to_answer), sink.open() as tell:
            lanes: dict[str, list[Message]] = {}
            for message in messages:
                lanes.setdefault(sink.lane(message), []).append(message)

            async def one_by_one(lane: list[Message]) -> None:
                for message in lane:
                    await tell(message)

            await asyncio.gather(*map(one_by_one, lanes.values()))

        assert len(self.counted()) == 20

    async def test_one_that_is_down_says_so(self) -> None:
        sink = self.down()
        if sink is None:
            raise unittest.SkipTest("this sink asks nobody")
        said: Exception | None = None

        try:
            await self._tell(sink, [self.message(1)])
        except (Rejected, *UNAVAILABLE) as exc:
            said = exc

        assert isinstance(said, UNAVAILABLE), f"it said {said!r}"

    async def _tell(self, sink: Sink, messages: Sequence[Message]) -> None:
        async with asyncio.timeout(self.seconds_to_answer), sink.open() as tell:
            for message in messages:
                await tell(message)
