"""The Redis client of this process, with a deadline on every call. Any fault is a miss, never an error."""

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import TypeVar

from redis import asyncio as aioredis
from redis.exceptions import RedisError

from responses_ws.conf import app_settings

logger = logging.getLogger(__name__)

R = TypeVar("R")

_clients: dict[tuple[int, str], "aioredis.Redis"] = {}
_last_warning = float("-inf")
_SECONDS_BETWEEN_WARNINGS = 60.0


def client() -> "aioredis.Redis | None":
    """The client for the running loop, or None where no ``REDIS_URL`` is set. Values are bytes."""
    url = app_settings.REDIS_URL
    if not url:
        return None
    key = (id(asyncio.get_running_loop()), url)
    if key not in _clients:
        seconds = app_settings.limits.redis_seconds
        _clients[key] = aioredis.Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds)
    return _clients[key]


async def attempt(call: Awaitable[R]) -> R | None:
    """The call's result; None after ``LIMITS["redis_seconds"]`` or any fault, with one warning a minute."""
    global _last_warning
    try:
        async with asyncio.timeout(app_settings.limits.redis_seconds):
            return await call
    except (RedisError, OSError, TimeoutError) as exc:
        if time.monotonic() - _last_warning > _SECONDS_BETWEEN_WARNINGS:
            _last_warning = time.monotonic()
            logger.warning("Redis failed, going on without it: %s", type(exc).__name__)
        return None


async def aclose() -> None:
    """Close the running loop's clients."""
    loop = id(asyncio.get_running_loop())
    for key in [key for key in _clients if key[0] == loop]:
        await _clients.pop(key).aclose()
