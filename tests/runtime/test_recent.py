"""One asks, all are told."""

import asyncio

import pytest

from responses_ws.runtime.recent import Recent
from tests.waiting import until


class Asked:
    """Counts, and answers when it is let."""

    def __init__(self) -> None:
        self.times = 0
        self.may_answer = asyncio.Event()

    async def __call__(self) -> int:
        self.times += 1
        times = self.times
        await self.may_answer.wait()
        return times


async def test_who_comes_meanwhile_shares_the_answer() -> None:
    asked = Asked()
    recent = Recent(asked, seconds=60.0)
    waiting = [asyncio.create_task(recent.get(within=10.0)) for _ in range(20)]
    await until(lambda: asked.times, "the first to ask")
    asked.may_answer.set()

    assert await asyncio.gather(*waiting) == [1] * 20
    assert await recent.get(within=10.0) == 1


async def test_who_waits_too_long_leaves_the_asking_to_others() -> None:
    asked = Asked()
    recent = Recent(asked, seconds=60.0)
    with pytest.raises(TimeoutError):
        await recent.get(within=0.01)
    asked.may_answer.set()

    assert await recent.get(within=10.0) == 1


async def test_what_is_old_or_forgotten_is_asked_for_again() -> None:
    asked = Asked()
    asked.may_answer.set()
    old, kept = Recent(asked, seconds=0.0), Recent(asked, seconds=60.0)

    assert [await old.get(within=10.0), await old.get(within=10.0)] == [1, 2]
    assert [await kept.get(within=10.0), await kept.get(within=10.0)] == [3, 3]
    kept.forget()
    assert await kept.get(within=10.0) == 4


async def test_a_failure_is_told_to_all_who_wait() -> None:
    async def fail() -> None:
        raise ConnectionError("down")

    recent = Recent(fail, seconds=60.0)
    told = await asyncio.gather(*(recent.get(within=10.0) for _ in range(3)), return_exceptions=True)

    assert [type(error) for error in told] == [ConnectionError] * 3
