import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.engines.base import EngineError
from responses_ws.engines.slots import Slots


class Line:
    """Callers of one engine with ``limit`` slots: who got a place, in order."""

    def __init__(self, limit: int | None, most_waiting: int = 100) -> None:
        self.slots = Slots(limit, most_waiting)
        self.served: list[str] = []
        self.callers: list[asyncio.Task[None]] = []

    async def come(self, who: str) -> asyncio.Task[None]:
        async def call() -> None:
            await self.slots.take(who[0])
            self.served.append(who)

        caller = asyncio.create_task(call(), name=who)
        self.callers.append(caller)
        await _settled()
        return caller

    async def leave(self) -> None:
        self.slots.give_back()
        await _settled()


async def _settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_without_a_limit_nobody_waits() -> None:
    line = Line(None, most_waiting=0)

    for number in range(50):
        await line.come(f"a{number}")

    assert len(line.served) == line.slots.running == 50


async def test_those_who_wait_are_served_in_order() -> None:
    line = Line(2)
    for who in ("a1", "a2", "a3", "a4"):
        await line.come(who)
    assert line.served == ["a1", "a2"]

    await line.leave()
    await line.leave()

    assert line.served == ["a1", "a2", "a3", "a4"]
    assert (line.slots.running, line.slots.waiting) == (2, 0)


async def test_many_lanes_of_one_connection_do_not_keep_another_out() -> None:
    line = Line(1)
    for who in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        await line.come(who)

    for _ in range(6):
        await line.leave()

    assert line.served == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_more_than_may_wait_are_refused_and_told_when_to_come_back() -> None:
    line = Line(1, most_waiting=1)
    await line.come("a1")
    await line.come("a2")

    refused = await line.come("a3")

    error = refused.exception()
    assert isinstance(error, EngineError) and error.kind == "overloaded"
    assert int(error.headers["retry-after"]) >= 1
    assert (line.slots.running, line.slots.waiting) == (1, 1)
    line.callers[1].cancel()
    await _settled()


async def test_whoever_leaves_the_line_holds_up_nobody() -> None:
    line = Line(1)
    for who in ("a1", "b1", "c1"):
        await line.come(who)

    line.callers[1].cancel()
    await _settled()
    await line.leave()

    assert line.served == ["a1", "c1"]
    assert (line.slots.running, line.slots.waiting) == (1, 0)


async def test_a_place_given_to_one_who_leaves_in_the_same_moment_goes_on() -> None:
    line = Line(1)
    for who in ("a1", "b1", "c1"):
        await line.come(who)

    line.slots.give_back()
    line.callers[1].cancel()
    await _settled()

    assert line.served == ["a1", "c1"]
    assert (line.slots.running, line.slots.waiting) == (1, 0)


async def test_a_place_is_not_given_to_one_who_has_just_left() -> None:
    line = Line(1)
    for who in ("a1", "b1", "c1"):
        await line.come(who)

    line.callers[1].cancel()
    line.slots.give_back()
    await _settled()

    assert line.served == ["a1", "c1"]
    assert (line.slots.running, line.slots.waiting) == (1, 0)


steps = st.lists(st.tuples(st.sampled_from(["come", "leave", "cancel"]), st.integers(0, 5)), max_size=40)


@given(limit=st.integers(1, 3), most_waiting=st.integers(0, 4), steps=steps)
def test_no_place_is_lost_or_made_up(limit: int, most_waiting: int, steps: list[tuple[str, int]]) -> None:
    async def story() -> None:
        line = Line(limit, most_waiting)
        left = 0
        for what, number in steps:
            if what == "come":
                await line.come("abcdef"[number])
            elif what == "leave" and len(line.served) > left:
                left += 1
                await line.leave()
            elif what == "cancel":
                waiting = [caller for caller in line.callers if not caller.done()]
                if waiting:
                    waiting[number % len(waiting)].cancel()
                    await _settled()
            waiting = [caller for caller in line.callers if not caller.done()]
            assert line.slots.running == len(line.served) - left <= limit
            assert line.slots.waiting == len(waiting) <= most_waiting
            assert not waiting or line.slots.running == limit
        for caller in line.callers:
            caller.cancel()
            if caller.done() and not caller.cancelled():
                caller.exception()
        await _settled()

    asyncio.run(story())


@pytest.mark.parametrize(("seconds", "hint"), [(0.1, "1"), (40.0, "10"), (4000.0, "60")])
async def test_the_hint_follows_what_calls_take(seconds: float, hint: str) -> None:
    slots = Slots(4, 0)
    for _ in range(4):
        await slots.take("a")
    for _ in range(100):
        slots.give_back(seconds)
        await slots.take("a")

    with pytest.raises(EngineError) as refused:
        await slots.take("a")

    assert refused.value.headers["retry-after"] == hint
