"""Work that outlives the request that owes it: settling a turn whose client has left, for one."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from responses_ws.protocol.errors import ApiError

logger = logging.getLogger(__name__)

_tasks: set["asyncio.Task[Any]"] = set()


def spawn(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Start a task that this registry keeps, so that nothing cancels or forgets it."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_done)
    return task


def _done(task: "asyncio.Task[Any]") -> None:
    _tasks.discard(task)
    if task.cancelled():
        return
    failure = task.exception()
    # An ApiError is an answer to whoever waits; clients can cause them as they like.
    if failure is not None and not isinstance(failure, ApiError):
        logger.error("Background work failed", exc_info=failure)


async def settle() -> None:
    """Wait for all of it: at shutdown, and in tests."""
    while _tasks:
        await asyncio.wait(set(_tasks))
