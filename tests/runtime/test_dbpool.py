import asyncio
import threading
import time

import pytest

from responses_ws.protocol.errors import Overloaded
from responses_ws.runtime import dbpool


async def test_reads_run_side_by_side() -> None:
    meeting = threading.Barrier(3)

    await asyncio.gather(*(dbpool.run(meeting.wait, 10) for _ in range(3)))

    assert not meeting.broken


async def test_a_database_that_does_not_answer_is_worth_another_try(settings) -> None:
    settings.RESPONSES_WS = {"LIMITS": {"database_seconds": 0.05}}
    release = threading.Event()

    with pytest.raises(Overloaded) as refusal:
        await dbpool.run(release.wait, 10)

    assert refusal.value.headers["retry-after"] == "1"

    release.set()


async def test_a_caller_that_is_cancelled_as_the_answer_comes_is_cancelled() -> None:
    """A response was waited for under a time limit, in a loop: the limit came with an answer, and was forgotten."""
    loop = asyncio.get_running_loop()

    def answer() -> None:
        loop.call_soon_threadsafe(cancel_behind_the_answer)

    def cancel_behind_the_answer() -> None:
        # The loop stands still until the answer has been put into it.
        deadline = time.monotonic() + 10
        while len(loop._ready) == 0 and time.monotonic() < deadline:  # type: ignore[attr-defined]
            time.sleep(0.001)
        loop.call_soon(asking.cancel)

    asking = asyncio.create_task(dbpool.run(answer))

    with pytest.raises(asyncio.CancelledError):
        await asking
