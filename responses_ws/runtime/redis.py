"""The Redis of this process: a deadline on every call, and none made while it does not answer. Any fault is a miss."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from redis import asyncio as aioredis
from redis import exceptions as faults
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from responses_ws.conf import app_settings

from . import background, metrics

logger = logging.getLogger(__name__)

R = TypeVar("R")
Ask = Callable[["aioredis.Redis"], Awaitable[R]]

SECONDS_UNASKED = 0.5
"""How long nobody waits for a Redis that has not answered. Then somebody asks it, for whom nobody waits."""
_SECONDS_BETWEEN_WARNINGS = 60.0
_CLUSTER = "+cluster"
_CUT: Any = (faults.ConnectionError, RuntimeError, AttributeError)
"""The connection has been closed. Where something is written on it, uvloop says so with a RuntimeError, and asyncio (of
Python 3.12) with an AttributeError: its transport has let go of the loop."""
_SILENT = (*_CUT, faults.TimeoutError, faults.RedisClusterException, OSError)
"""It cannot be reached, does not answer, or is loading. All else is an answer: that it is full, say, or a replica."""


class _Server:
    """The client for one loop, and whether it is worth asking."""

    def __init__(self, url: str) -> None:
        self.client = _client_for(url)
        self._loop = asyncio.get_running_loop()
        self._ask_again_at: float | None = None
        self._is_asking_again = False

    def may_ask(self) -> bool:
        """Whether it has answered lately, as far as is known. Sees to it that this is found out again."""
        if self._ask_again_at is None:
            return True
        if not self._is_asking_again and self._loop.time() >= self._ask_again_at:
            self._is_asking_again = True
            background.spawn(self._ask_again())
        return False

    async def answer(self, ask: Ask[R]) -> R | None:
        """None after any fault; never raises one."""
        try:
            return await ask(self.client)
        except _SILENT as exc:
            if isinstance(exc, AttributeError) and exc.obj is not None:
                # A mistake of our own.
                raise
            self.was_silent(type(exc).__name__)
        except faults.RedisError as exc:
            _warn(type(exc).__name__)
        return None

    def was_silent(self, kind: str) -> None:
        _warn(kind)
        self._ask_again_at = self._loop.time() + SECONDS_UNASKED

    async def _ask_again(self) -> None:
        try:
            if await self.answer(_ping):
                self._ask_again_at = None
        finally:
            self._is_asking_again = False


def _client_for(url: str) -> "aioredis.Redis":
    """``redis://``, ``rediss://``, ``unix://``; with ``+cluster`` in its scheme one for all nodes, which takes the same
    calls."""
    limits = app_settings.limits
    options: dict[str, Any] = {
        "max_connections": limits.redis_connections,
        "socket_timeout": limits.redis_seconds,
        "socket_connect_timeout": limits.redis_seconds,
        # Once: of the connections that a restart has ended.
        "retry": Retry(NoBackoff(), 1, supported_errors=_CUT),
    }
    if is_cluster(url):
        return cast("aioredis.Redis", aioredis.RedisCluster.from_url(url.replace(_CLUSTER, "", 1), **options))
    pool = aioredis.BlockingConnectionPool.from_url(url, timeout=limits.redis_seconds, **options)
    return aioredis.Redis.from_pool(pool)


def is_cluster(url: str) -> bool:
    return _CLUSTER in url.partition(":")[0]


async def _ping(client: "aioredis.Redis") -> bool:
    answer: Any = client.ping()
    return bool(await answer)


_servers: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Server]]" = WeakKeyDictionary()
_last_warning = float("-inf")


def client() -> "aioredis.Redis | None":
    """The client for the running loop, or None where no ``REDIS_URL`` is set. Values are bytes."""
    server = _server()
    return None if server is None else server.client


async def attempt(ask: Ask[R]) -> R | None:
    """What ``ask`` gets from the client; None where there is none, after ``LIMITS["redis_seconds"]``, or any fault.

    What has been asked runs to its own end, whoever leaves: a connection that is left in the middle of an answer is
    the way to get that of somebody else. Source: redis-py #2624, #2665.
    """
    server = _server()
    if server is None or not server.may_ask():
        return None
    asking = background.spawn(server.answer(ask))
    try:
        async with asyncio.timeout(app_settings.limits.redis_seconds):
            return await asyncio.shield(asking)
    except TimeoutError:
        server.was_silent("TimeoutError")
        return None


async def answers() -> bool:
    """Whether it does."""
    return bool(await attempt(_ping))


async def aclose() -> None:
    """Close the running loop's clients."""
    for server in _servers.pop(asyncio.get_running_loop(), {}).values():
        await server.client.aclose()


def _server() -> _Server | None:
    url = app_settings.REDIS_URL
    if not url:
        return None
    here = _servers.setdefault(asyncio.get_running_loop(), {})
    if url not in here:
        here[url] = _Server(url)
    return here[url]


def _warn(kind: str) -> None:
    """One line a minute."""
    global _last_warning
    metrics.redis_failures.add((kind,))
    now = asyncio.get_running_loop().time()
    if now - _last_warning > _SECONDS_BETWEEN_WARNINGS:
        _last_warning = now
        logger.warning("Redis failed, going on without it: %s", kind)
