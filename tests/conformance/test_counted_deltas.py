"""What a delta costs from the engine to the socket, counted: without a clock, so it fails on any machine.

Where a figure has become smaller, make it smaller here. One that has grown is to be explained.
"""

import asyncio
import gc
import sys
from asyncio.selector_events import _SelectorSocketTransport
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from responses_ws.models import ApiKey

from .counting import Calls, Served, Work, serving


def asker(frame: FrameType) -> str:
    """Who has scheduled something."""
    caller = frame.f_back
    assert caller is not None
    return caller.f_code.co_name


LOOP = asyncio.BaseEventLoop
SCHEDULING = (
    LOOP.create_task,
    LOOP.create_future,
    LOOP.call_soon,
    LOOP.call_at,
    LOOP.call_soon_threadsafe,
    LOOP.run_in_executor,
)
BY_THE_CLOCK = ("sleep", "_set_result_unless_cancelled", "call_later")


def scheduled(work: Work) -> int:
    """Tasks, futures, timers, callbacks and thread hops; but for those of loops that look around now and then."""
    askers = Counter(asker for function in SCHEDULING for asker in work.noted[function.__qualname__])
    return sum(count for name, count in askers.items() if name not in BY_THE_CLOCK)


async def answers(served: Served, model: str, *steps: int, watched: Any = None) -> list[Work]:
    """What an answer of 200 deltas costs and one of 1,200, where so many of each come at once; 0: all."""
    told = []
    async with served.socket() as client:
        for tokens, step in zip((200, 200, 1200), (steps[0], *steps), strict=True):
            served.engine.step = step
            with Calls(watched) as calls:
                await client.turn("Go on.", model=f"{model}-{tokens}")
            told.append(calls.take())
    # The first one fills caches.
    return told[1:]


PER_DELTA = {
    # 15 % above what it was when it was last looked at: 10.0 and 16.6, 60.0 and 43.0, 10.1 and 20.0.
    "in bursts": ("chat", 50, 11.5, 19.0),
    "one by one": ("chat", 1, 69.0, 49.5),
    "in token ids": ("ids", 0, 11.6, 23.0),
}


@pytest.mark.parametrize(("model", "step", "calls", "calls_of_c"), PER_DELTA.values(), ids=PER_DELTA)
async def test_a_delta_makes_few_calls_and_no_line_of_a_log(
    settings: Any, api_key: ApiKey, journal: Any, model: str, step: int, calls: float, calls_of_c: float
) -> None:
    async with serving(settings, api_key, 200, 1200, **journal) as served:
        short, long = await answers(served, model, step, step)

    assert (long.ours - short.ours) / 1000 <= calls
    assert (long.made_by_us - short.made_by_us) / 1000 <= calls_of_c
    logged = [sum(count for name, count in work.by_name.items() if "logging." in name) for work in (short, long)]
    assert logged[1] == logged[0]


async def test_a_burst_is_one_write_and_its_deltas_schedule_nothing(
    settings: Any, api_key: ApiKey, journal: Any
) -> None:
    watched = {_SelectorSocketTransport.write: lambda frame: frame.f_locals["self"].get_extra_info("sockname")[1]}
    async with serving(settings, api_key, 200, 1200, **journal) as served:
        few, many = await answers(served, "chat", 50, 50, watched=watched)
        small, large = await answers(served, "chat", 10, 60, watched=dict.fromkeys(SCHEDULING, asker))

    written = [work.noted["_SelectorSocketTransport.write"].count(served.port) for work in (few, many)]
    # Behind 20 bursts more.
    assert 20 <= written[1] - written[0] <= 22
    assert scheduled(small) > 20
    # One for each delta would be a thousand.
    assert abs(scheduled(large) - scheduled(small)) <= 10


async def test_of_an_answer_its_text_is_kept_and_nothing_for_each_delta(
    settings: Any, api_key: ApiKey, journal: Any
) -> None:
    blocks = []
    async with serving(settings, api_key, 200, 1200, **journal) as served, served.socket() as client:
        # The first ones fill caches.
        for tokens in (200, 1200, 200, 1200):
            await client.turn("Go on.", model=f"chat-{tokens}")
            if len(blocks) > 1:
                gc.collect()
            blocks.append(sys.getallocatedblocks())

    assert blocks[3] - blocks[2] < 500
