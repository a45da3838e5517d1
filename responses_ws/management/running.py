"""A process that runs background responses and listens to nobody: what a server is to `lifespan`, without a socket."""

import asyncio
import signal
from collections.abc import Callable

from responses_ws.lifespan import Message, lifespan
from responses_ws.runtime import drain
from responses_ws.serving import runner

from . import monitor

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotStart(Exception):
    """The settings do not allow it."""


async def run(
    places: int, *, drain_seconds: float, ready: Callable[[], None], monitor_at: tuple[str, int] | None = None
) -> None:
    """Run what waits for a process, so many at once, until SIGTERM or SIGINT; then let them end, or hand them back.

    ``ready`` is called once it looks for work. A second signal ends the wait. Who asks at ``monitor_at`` is told of
    health and metrics.

    Raises:
        CannotStart: with the reason.
    """
    told: asyncio.Queue[Message] = asyncio.Queue()
    said: asyncio.Queue[Message] = asyncio.Queue()
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, signals.put_nowait, number)
    process = asyncio.create_task(lifespan({"type": "lifespan"}, told.get, said.put))
    await told.put({"type": "lifespan.startup"})
    answer = await said.get()
    if answer["type"] == "lifespan.startup.failed":
        await process
        raise CannotStart(answer["message"])
    runner.take_over(places)
    listener = None if monitor_at is None else await monitor.listen(*monitor_at)
    ready()
    await signals.get()
    drain.begin_drain()
    hurry = asyncio.create_task(signals.get())
    deadline = loop.time() + drain_seconds
    # Polled, as the server does.
    while drain.is_busy() and not hurry.done() and loop.time() < deadline:
        await asyncio.wait([hurry], timeout=0.05)
    hurry.cancel()
    if listener is not None:
        await listener.cleanup()
    await told.put({"type": "lifespan.shutdown"})
    await process
    for number in _SIGNALS:
        # All is done. One that comes now would find the handlers gone, and make a failure of a good end.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
