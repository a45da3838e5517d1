"""What stands in for asyncio's queue and event in every socket behaves as they do."""

import asyncio

import pytest

from responses_ws.runtime.inbox import Inbox, Latch


async def waiting(count: int, latch: Latch) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(latch.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_messages_come_in_order_whether_they_were_waited_for_or_not() -> None:
    inbox = Inbox()
    inbox.put_nowait(1)
    inbox.put_nowait(2)

    read = [await inbox.get(), await inbox.get()]
    is_empty = inbox.empty()
    reading = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put_nowait(3)
    inbox.put_nowait(4)

    assert (read, is_empty) == ([1, 2], True)
    assert [await reading, await inbox.get()] == [3, 4]


async def test_a_reader_that_stops_waiting_loses_no_message() -> None:
    inbox = Inbox()
    reading = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)

    inbox.put_nowait("told at the same moment")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    assert await inbox.get() == "told at the same moment"


async def test_nobody_waits_at_an_open_latch_and_all_do_at_a_shut_one() -> None:
    latch = Latch()
    await asyncio.wait_for(latch.wait(), 10)

    latch.clear()
    latch.clear()
    tasks = await waiting(3, latch)
    were_waiting = [not task.done() for task in tasks]
    latch.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert were_waiting == [True] * 3


async def test_whoever_comes_late_to_a_latch_that_was_shut_again_waits_again() -> None:
    latch = Latch()
    latch.clear()
    (task,) = await waiting(1, latch)

    latch.set()
    latch.clear()
    await asyncio.sleep(0.01)
    was_waiting = not task.done()
    latch.set()
    await asyncio.wait_for(task, 10)

    assert was_waiting


async def test_one_who_stops_waiting_at_a_latch_does_not_stop_the_others() -> None:
    latch = Latch()
    latch.clear()
    first, second = await waiting(2, latch)

    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    latch.set()

    await asyncio.wait_for(second, 10)
