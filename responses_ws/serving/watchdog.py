"""A deadline on waiting for the engine, at no cost per piece."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

R = TypeVar("R")


class Watchdog:
    """Bounds each wait of one turn with a single lazy timer.

    `asyncio.timeout` around every read would cost several times what the read costs, and one around the whole turn
    cannot be used: a stream may begin in one task and go on in another.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Task[object] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._barked = False

    async def wait(self, awaitable: Awaitable[R], seconds: float) -> R:
        """The result. Raises TimeoutError after ``seconds``."""
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            self._arm()
        self._barked = False
        self._waiting = asyncio.current_task()
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._barked and self._waiting is not None and self._waiting.uncancel() == 0:
                raise TimeoutError from None
            raise
        finally:
            self._waiting = None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.stop()
        self._timer = self._loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiting is None:
            return
        if self._loop.time() < self._deadline:
            self._arm()
        else:
            self._barked = True
            self._waiting.cancel()
