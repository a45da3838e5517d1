"""Waiting for something on the test's own event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 30.0


async def until(probe: Callable[[], T], what: str, *, seconds: float = SECONDS) -> T:
    """Look until the answer is neither None nor false, and return it. Raises AssertionError after ``seconds``."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (answer := probe()):
        assert asyncio.get_running_loop().time() < deadline, f"waited {seconds} s for {what}; last: {answer!r}"
        await asyncio.sleep(0.005)
    return answer
