"""Database reads off the event loop, in threads of our own.

`database_sync_to_async` would put every socket of the process on one thread, where one slow query stalls all.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import close_old_connections

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import Overloaded

from .sql import UNAVAILABLE

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_pool: ThreadPoolExecutor | None = None
_last_warning = float("-inf")
_SECONDS_BETWEEN_WARNINGS = 60.0


async def run(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function that uses the ORM; at most ``DATABASE_THREADS`` at once.

    Raises:
        Overloaded: the database cannot be reached, has no connection left for us, or gave no answer within
            ``LIMITS["database_seconds"]``. Then the function itself goes on.
    """
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(app_settings.DATABASE_THREADS, thread_name_prefix="responses_ws-db")
    future = asyncio.get_running_loop().run_in_executor(_pool, lambda: _with_fresh_connection(function, args, kwargs))
    try:
        # Not wait_for: where the caller is cancelled in the moment of the answer, Python 3.11 would return the answer
        # and forget the cancellation, and a loop under a timeout of its own would never end.
        async with asyncio.timeout(app_settings.limits.database_seconds):
            return await future
    except TimeoutError:
        raise unavailable("no answer in time") from None
    except UNAVAILABLE as exc:
        raise unavailable(type(exc).__name__) from exc


def unavailable(why: str) -> Overloaded:
    """What a client is told where the database is the trouble; ``why`` is for the log, which hears it once a minute."""
    global _last_warning
    if time.monotonic() - _last_warning > _SECONDS_BETWEEN_WARNINGS:
        _last_warning = time.monotonic()
        logger.warning("The database cannot be used: %s", why)
    return Overloaded(
        "The server cannot reach its database. Please try again in a moment.", headers={"retry-after": "1"}
    )


def _with_fresh_connection(function, args, kwargs):
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()


def shutdown() -> None:
    """End the threads, each with its connection; the next `run` starts new ones. For tests and shutdown."""
    global _pool
    if _pool is not None:
        pool, _pool = _pool, None
        pool.shutdown(wait=True)
