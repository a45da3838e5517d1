"""An answer that many want and one asks for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from . import logs

T = TypeVar("T")

SECONDS_FAILED = 1.0


class Recent(Generic[T]):
    """An answer that is asked for at most once in ``seconds``, and once at a time: whoever comes meanwhile shares it.

    A failure is shared, too, but for a second only. However many want it, and however long the database takes, one of
    them waits in its queue.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]], *, seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._asking: asyncio.Future[T] | None = None
        self._old_at = 0.0

    async def get(self, *, within: float) -> T:
        """Raises TimeoutError after ``within`` seconds, while the asking goes on; and whatever asking raises."""
        loop = asyncio.get_running_loop()
        asking = self._asking
        if asking is None or asking.get_loop() is not loop or (asking.done() and loop.time() >= self._old_at):
            asking = self._asking = logs.of_nobody().run(asyncio.ensure_future, self._ask())
            asking.add_done_callback(self._answered)
        async with asyncio.timeout(within):
            return await asyncio.shield(asking)

    def forget(self) -> None:
        """It is not true any more: the next to want it asks anew."""
        self._asking = None

    def _answered(self, asking: "asyncio.Future[T]") -> None:
        # Looking at the failure also says that somebody has: all who wait may have gone.
        has_failed = asking.cancelled() or asking.exception() is not None
        self._old_at = asking.get_loop().time() + (min(self._seconds, SECONDS_FAILED) if has_failed else self._seconds)
