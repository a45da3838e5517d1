"""One engine call inside a turn: entered beside other work, watched while it runs, left for certain."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager

from responses_ws.conf import app_settings
from responses_ws.engines.base import EngineError
from responses_ws.protocol.sampling import Delta

from .watchdog import Watchdog

Deltas = AsyncIterator[list[Delta]]


class SamplingStep:
    """Starts the call when made. Always `leave` it."""

    def __init__(self, call: AbstractAsyncContextManager[Deltas]) -> None:
        self._call = call
        self._accepting: asyncio.Task[Deltas] = asyncio.get_running_loop().create_task(_enter(call))
        self._watchdog = Watchdog()

    async def wait_until_accepted(self, seconds: float) -> None:
        """Give the engine so long to refuse; if it needs longer, its refusal comes out of `deltas`.

        Raises:
            EngineError: it refused.
        """
        await asyncio.wait({self._accepting}, timeout=seconds)
        if self._accepting.done():
            self._accepting.result()

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """What the engine yields, with a deadline on each wait.

        Raises:
            EngineError: it refused, broke or fell silent.
        """
        limits = app_settings.limits
        seconds = limits.engine_first_delta_seconds
        wait = self._watchdog.wait
        try:
            deltas = await wait(asyncio.shield(self._accepting), seconds)
            while True:
                try:
                    batch = await wait(anext(deltas), seconds)
                except StopAsyncIteration:
                    return
                seconds = limits.engine_next_delta_seconds
                yield batch
        except TimeoutError:
            raise EngineError("timeout", f"No word from the engine for {seconds:.0f} s") from None

    async def leave(self) -> None:
        """Free the engine, at once, whatever it is doing. Idempotent."""
        self._watchdog.stop()
        accepting = self._accepting
        if not accepting.done():
            accepting.cancel()
            await asyncio.wait({accepting})
        if not accepting.cancelled() and accepting.exception() is None:
            call, self._call = self._call, None  # type: ignore[assignment]
            if call is not None:
                await call.__aexit__(None, None, None)


async def _enter(call: AbstractAsyncContextManager[Deltas]) -> Deltas:
    return await call.__aenter__()
