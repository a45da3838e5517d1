"""Work that outlives the request that owes it: settling a turn whose client has left, for one."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

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
    if not task.cancelled() and task.exception() is not None:
        logger.error("Background work failed", exc_info=task.exception())


async def settle() -> None:
    """Wait for all of it: at shutdown, and in tests."""
    while _tasks:
        await asyncio.wait(set(_tasks))
