"""Control messages: what one process has to tell all others, heard within half a second.

The messages are rows (`models.ControlMessage`), which every process looks for; nothing is lost while a broker is
down. Where the project has a channel layer, whoever tells also nudges the others through it, and they look at once.
"""

import asyncio
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import DatabaseError, transaction

from responses_ws.conf import app_settings
from responses_ws.models import ControlMessage
from responses_ws.protocol.errors import ApiError

from . import dbpool, logs

logger = logging.getLogger(__name__)

Handler = Callable[[Mapping[str, Any]], Awaitable[None] | None]

GROUP = "responses_ws.control"
# Rows of other transactions become visible in any order. No transaction that tells takes longer than this.
WINDOW = timedelta(seconds=30)
SECONDS_TO_SEND = 1.0
SECONDS_BETWEEN_JOINS = 60.0
"""A channel layer forgets its groups when its Redis is emptied."""


class Bus:
    """One process's ear. `handle` what it should hear, then `listen`."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._answers: dict[str, Callable[[], bytes]] = {}
        self._seen: deque[int] = deque(maxlen=10_000)
        self._tasks: list[asyncio.Task[None]] = []
        self._nudged = asyncio.Event()

    def handle(self, kind: str, handler: Handler) -> None:
        """What to do when a message of this kind is heard; it gets the message's body. Those of this process too."""
        self._handlers[kind] = handler

    def answer(self, what: str, tell: Callable[[], bytes]) -> None:
        """What to tell a process that asks for it over the channel layer (`ask`)."""
        self._answers[what] = tell

    async def listen(self) -> None:
        """Hear everything that is told from now on. Idempotent; `stop` ends it."""
        loop = asyncio.get_running_loop()
        if self._tasks and not self._tasks[0].done() and self._tasks[0].get_loop() is loop:
            return
        self._nudged = asyncio.Event()
        self._seen.clear()
        try:
            # What was told before this process had anything in memory does not concern it.
            self._seen.extend(identity for identity, _kind, _body in await dbpool.run(_recent))
        except (ApiError, DatabaseError) as exc:
            logger.warning("Control messages cannot be read yet: %s", type(exc).__name__)
        self._tasks = [loop.create_task(self._look(), name="control messages", context=logs.of_nobody())]
        if get_channel_layer() is not None:
            self._tasks.append(loop.create_task(self._feel(), name="control nudges", context=logs.of_nobody()))

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        """Reads the table, at every nudge and without."""
        was_down = False
        while True:
            try:
                async with asyncio.timeout(app_settings.limits.control_poll_seconds):
                    await self._nudged.wait()
            except TimeoutError:
                pass
            self._nudged.clear()
            try:
                rows = await dbpool.run(_recent)
                was_down = False
            except (ApiError, DatabaseError) as exc:
                if not was_down:
                    logger.warning("Control messages cannot be read: %s", type(exc).__name__)
                was_down = True
                continue
            for identity, kind, body in rows:
                if identity not in self._seen:
                    self._seen.append(identity)
                    await self._heard(kind, body)

    async def _heard(self, kind: str, body: Mapping[str, Any]) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            # Told by a newer version of us.
            return
        try:
            done = handler(body)
            if done is not None:
                await done
        except Exception:
            logger.exception("A control message %r could not be obeyed", kind)

    async def _feel(self) -> None:
        """Waits for nudges. A layer that is down, or times out on its own, is asked again."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        # A layer may swallow a cancellation that comes together with a message.
        while not task.cancelling():
            layer = get_channel_layer()
            try:
                channel = await own_channel(layer)
                await layer.group_add(GROUP, channel)
                rejoin_at = loop.time() + SECONDS_BETWEEN_JOINS
                while loop.time() < rejoin_at and not task.cancelling():
                    async with asyncio.timeout(SECONDS_BETWEEN_JOINS):
                        message = await layer.receive(channel)
                    if message["type"] == "ask":
                        await self._reply(layer, message)
                    else:
                        self._nudged.set()
            except asyncio.CancelledError:
                raise
            except Exception:
                # The table is read all the same.
                await asyncio.sleep(1.0)

    async def _reply(self, layer: Any, message: Mapping[str, Any]) -> None:
        tell = self._answers.get(message["what"])
        if tell is not None and process_name() not in message["but"]:
            async with asyncio.timeout(SECONDS_TO_SEND):
                await layer.send(message["reply"], {"type": "reply", "body": tell()})


async def own_channel(layer: Any) -> str:
    """A channel of this process.

    With the prefix that Channels itself gives: channels_redis waits for one prefix at a time, so that with two of them
    one would hear nothing for seconds, those of the host project's consumers included.
    """
    channel: str = await layer.new_channel()
    return channel


def process_name() -> str:
    """This one's among those of all hosts."""
    return f"{socket.gethostname()}:{os.getpid()}"


async def ask(layer: Any, what: str, reply: str, *, but: Collection[str] = ()) -> None:
    """Have every process behind the channel layer send what it tells of it to the channel ``reply``, as ``body``.
    Not those in ``but``, which includes this one.

    Raises whatever a layer raises that cannot be reached.
    """
    message = {"type": "ask", "what": what, "reply": reply, "but": [*but, process_name()]}
    async with asyncio.timeout(SECONDS_TO_SEND):
        await layer.group_send(GROUP, message)


def tell(kind: str, **body: Any) -> None:
    """Tell every process, this one too, once the caller's transaction is committed. Uses the ORM: not on the loop."""
    ControlMessage.objects.tell(kind, **body)
    transaction.on_commit(nudge)


def nudge() -> None:
    """Have the others look now rather than soon. Returns at once; without a channel layer it does nothing."""
    if get_channel_layer() is not None:
        threading.Thread(target=_send_nudge, name="responses_ws-nudge", daemon=True).start()


def _send_nudge() -> None:
    try:
        async_to_sync(get_channel_layer().group_send)(GROUP, {"type": "control"})
    except Exception as exc:
        logger.warning("The channel layer cannot be reached, others hear a little later: %s", type(exc).__name__)


def _recent() -> list[tuple[int, str, dict[str, Any]]]:
    return list(ControlMessage.objects.recent(WINDOW).values_list("id", "kind", "body"))


bus = Bus()
