"""The ASGI lifespan of a process: engines start with it, and what it owes is written before it ends.

A server that does not speak lifespan (daphne) works too: engines then start at their first call.
"""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from responses_ws.conf import app_settings
from responses_ws.engines.base import Engine
from responses_ws.engines.registry import registry
from responses_ws.runtime import background, dbpool, drain, live, redis
from responses_ws.runtime.bus import bus
from responses_ws.runtime.dispatcher import dispatcher
from responses_ws.runtime.journal import journal
from responses_ws.runtime.siblings import siblings
from responses_ws.runtime.vitals import loop_watch
from responses_ws.runtime.writer import writer
from responses_ws.safety.registry import classifiers
from responses_ws.serving import background as background_responses
from responses_ws.serving import budgets, runner
from responses_ws.serving.replay import keep_replaying
from responses_ws.stores.forgetting import forgetting
from responses_ws.transports import control, monitoring

logger = logging.getLogger(__name__)

# Records of turns whose client has left. The database gets this long; the reaper closes what is left. With what
# `runtime.launcher` takes before, less than the ten seconds that a container gets beyond its drain.
SETTLE_SECONDS = 4.0
YOUNG_OBJECTS = 2000
"""Made since the last collection, before there is one. By default it is 700, several times a turn, which takes 7 % of
its CPU. This saves half of that; more would save no more."""

Message = dict[str, Any]


async def lifespan(
    _scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The ASGI application for the scope type ``lifespan``."""
    await receive()
    try:
        engines = [registry.engine(name) for name in app_settings.ENGINES]
        classifiers.seats()
    except ValueError as exc:
        await send({"type": "lifespan.startup.failed", "message": f"RESPONSES_WS: {exc}"})
        return
    # Not awaited: a model may take a while to load, and requests for others should not wait for it.
    starting = [asyncio.create_task(start(engine)) for engine in engines]
    starting.append(asyncio.create_task(keep_replaying()))
    await registry.prepare()
    await control.listen()
    drain.when_draining(background_responses.drain)
    if not app_settings.BACKGROUND_RUNNERS:
        runner.take_over(app_settings.limits.background_turns)
    await siblings.join(monitoring.told)
    await siblings.join(live.told, "live")
    await siblings.join(live.told_totals, "totals")
    loop_watch.start()
    # Everything imported so far lives as long as the process: no collection need look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    await send({"type": "lifespan.startup.complete"})
    await receive()
    for task in starting:
        task.cancel()
    await asyncio.gather(*starting, return_exceptions=True)
    await close()
    await send({"type": "lifespan.shutdown.complete"})


async def start(engine: Engine) -> None:
    try:
        await engine.start()
    except Exception as exc:
        # Fails open: its first call tries again, and its failure is an answer to the client.
        logger.warning("engine %s did not start: %s", engine.name, exc)


async def close() -> None:
    """Finish what is owed, then give everything back."""
    loop_watch.stop()
    siblings.leave()
    await bus.stop()
    await forgetting.stop()
    await runner.stop()
    await budgets.stop()
    background_responses.stop()
    try:
        await asyncio.wait_for(background.settle(), SETTLE_SECONDS)
    except TimeoutError:
        logger.error("Some turns could not be recorded in time; the reaper will close them")
    await registry.aclose_all()
    await classifiers.aclose_all()
    await redis.aclose()
    dispatcher.stop()
    # Both wait for their threads.
    await asyncio.to_thread(writer.stop)
    journal.close()
    await asyncio.to_thread(dbpool.shutdown)
