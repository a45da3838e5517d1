import asyncio

import pytest

from responses_ws.serving.watchdog import Watchdog


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_wait_in_time_gives_its_result() -> None:
    watchdog = Watchdog()

    assert await watchdog.wait(asyncio.sleep(0, "word"), 10) == "word"
    watchdog.stop()


async def test_a_wait_too_long_is_a_timeout_and_leaves_the_task_uncancelled() -> None:
    watchdog = Watchdog()

    with pytest.raises(TimeoutError):
        await watchdog.wait(never(), 0.01)

    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    assert await watchdog.wait(asyncio.sleep(0, "after"), 10) == "after"
    watchdog.stop()


async def test_a_shorter_deadline_after_a_longer_one_counts() -> None:
    watchdog = Watchdog()
    await watchdog.wait(asyncio.sleep(0), 60)

    with pytest.raises(TimeoutError):
        await watchdog.wait(never(), 0.01)


async def test_a_cancellation_from_outside_stays_one() -> None:
    watchdog = Watchdog()
    task = asyncio.create_task(watchdog.wait(never(), 60))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    watchdog.stop()


async def test_a_cancellation_after_a_timeout_is_not_taken_for_another() -> None:
    watchdog = Watchdog()
    with pytest.raises(TimeoutError):
        await watchdog.wait(never(), 0.01)
    task = asyncio.create_task(watchdog.wait(never(), 60))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    watchdog.stop()


async def test_the_waits_of_one_turn_may_be_in_different_tasks() -> None:
    watchdog = Watchdog()
    await asyncio.create_task(watchdog.wait(asyncio.sleep(0), 10))

    with pytest.raises(TimeoutError):
        await asyncio.create_task(watchdog.wait(never(), 0.01))
