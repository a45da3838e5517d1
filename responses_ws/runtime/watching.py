"""Looking at all processes at once, for as long as somebody watches.

Those of this host are asked over their Unix sockets, those of others over the channel layer; where there is none, or it
does not answer, the picture says that it shows this host only.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable

import msgspec
from channels.layers import get_channel_layer
from django.db import DatabaseError

from responses_ws.models import ApiKey, Project
from responses_ws.protocol.errors import ApiError

from . import bus, dbpool, live, logs
from .live import NOTHING, ProcessTotals, Snapshot, Totals
from .siblings import siblings

logger = logging.getLogger(__name__)

SECONDS_BETWEEN = 1.0
SECONDS_TO_ANSWER = 0.5
"""What the siblings get of each second."""
SECONDS_REMEMBERED = 5.0
"""A process that has not been heard of for so long is left out."""
SECONDS_NAMED = 30.0
"""Names of projects and keys are looked up again after this."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """All that a watcher is shown, once a second."""

    type: str = "picture"
    at: float
    """Seconds since the epoch."""
    layer: str
    """``ok``; ``none``: no channel layer; ``down``: it does not answer."""
    totals: Totals
    processes: list[Snapshot]
    projects: dict[int, str]
    keys: dict[int, str]


class Watching:
    """One for the process. It looks while there are watchers: `watch`, then `next` again and again."""

    def __init__(self) -> None:
        self._watchers = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0
        self._frame = ""
        self._shown: asyncio.Future[None] | None = None
        self._heard: dict[str, tuple[float, Snapshot]] = {}
        """What other hosts have told, and when by our clock, by process."""
        self._channel = ""
        self._layer = "none"
        self._names = _Names()

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Somebody looks on meanwhile."""
        self._watchers += 1
        if self._watchers == 1:
            self._start()
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                tasks, self._tasks = self._tasks, []
                for task in tasks:
                    task.cancel()
                # The next to come is shown nothing old.
                self._heard.clear()
                self._number, self._frame = 0, ""
                await asyncio.gather(*tasks, return_exceptions=True)

    async def next(self, after: int) -> tuple[int, str]:
        """The newest picture as JSON and its number, once there is one above ``after``. Who is slow misses some."""
        while self._number <= after:
            assert self._shown is not None, "only who watches is shown anything"
            await asyncio.shield(self._shown)
        return self._number, self._frame

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._shown = loop.create_future()
        self._channel = ""
        self._layer = "none" if get_channel_layer() is None else "ok"
        self._tasks = [loop.create_task(self._look(), name="live view", context=logs.of_nobody())]
        if self._layer == "ok":
            self._tasks.append(loop.create_task(self._hear(), name="live view of others", context=logs.of_nobody()))

    async def _look(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        # A layer may swallow a cancellation.
        while not task.cancelling():
            began = loop.time()
            snapshots = {one.process: one for one in await self._of_this_host()}
            for process, (heard_at, snapshot) in list(self._heard.items()):
                if loop.time() - heard_at > SECONDS_REMEMBERED:
                    del self._heard[process]
                else:
                    snapshots.setdefault(process, snapshot)
            projects, keys = await self._names.of(snapshots.values())
            picture = Picture(
                at=time.time(),
                layer=self._layer,
                totals=_sum(one.totals for one in snapshots.values()),
                processes=list(snapshots.values()),
                projects=projects,
                keys=keys,
            )
            self._number += 1
            self._frame = msgspec.json.encode(picture).decode()
            shown, self._shown = self._shown, loop.create_future()
            assert shown is not None, "it was made at the start"
            shown.set_result(None)
            # For the next picture: nobody waits for them.
            await self._ask_others(but=[one.process for one in snapshots.values() if one.process not in self._heard])
            await asyncio.sleep(max(0.0, SECONDS_BETWEEN - (loop.time() - began)))

    async def _of_this_host(self) -> list[Snapshot]:
        others = await siblings.ask("live", within=SECONDS_TO_ANSWER)
        return [live.snapshot(), *(msgspec.json.decode(one, type=Snapshot) for one in others)]

    async def _ask_others(self, *, but: list[str]) -> None:
        if not self._channel:
            return
        try:
            await bus.ask(get_channel_layer(), "live", self._channel, but=but)
            self._layer = "ok"
        except Exception as exc:
            self._say_down(exc)

    async def _hear(self) -> None:
        """Takes what others tell. A layer that is down, or times out on its own, is asked again."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        while not task.cancelling():
            layer = get_channel_layer()
            try:
                self._channel = self._channel or await bus.own_channel(layer)
                async with asyncio.timeout(SECONDS_REMEMBERED):
                    message = await layer.receive(self._channel)
                snapshot = msgspec.json.decode(message["body"], type=Snapshot)
                self._heard[snapshot.process] = loop.time(), snapshot
            except TimeoutError:
                # Nobody else is there, or the layer has lost what it knew.
                continue
            except msgspec.MsgspecError:
                # Told by another version of us.
                continue
            except Exception as exc:
                self._say_down(exc)
                await asyncio.sleep(SECONDS_BETWEEN)

    def _say_down(self, exc: Exception) -> None:
        if self._layer != "down":
            logger.warning("The live view shows this host only, the channel layer is down: %s", type(exc).__name__)
        self._layer = "down"


class _Names:
    """Of the projects and keys in a picture, as the database has them."""

    def __init__(self) -> None:
        self._projects: dict[int, str] = {}
        self._keys: dict[int, str] = {}
        self._old_at = 0.0

    async def of(self, snapshots: Iterable[Snapshot]) -> tuple[dict[int, str], dict[int, str]]:
        """Projects and keys by id; those that the database does not tell in time are missing."""
        seen = [one for snapshot in snapshots for one in snapshot.connections]
        projects = {one.project_id for one in seen}
        keys = {one.api_key_id for one in seen if one.api_key_id is not None}
        if not seen:
            return {}, {}
        if time.monotonic() >= self._old_at or projects - self._projects.keys() or keys - self._keys.keys():
            with contextlib.suppress(ApiError, DatabaseError, TimeoutError):
                async with asyncio.timeout(SECONDS_TO_ANSWER):
                    self._projects, self._keys = await dbpool.run(_names_of, projects, keys)
                self._old_at = time.monotonic() + SECONDS_NAMED
        return (
            {one: self._projects[one] for one in projects & self._projects.keys()},
            {one: self._keys[one] for one in keys & self._keys.keys()},
        )


def _names_of(projects: set[int], keys: set[int]) -> tuple[dict[int, str], dict[int, str]]:
    found = Project.objects.select_related("organization").filter(pk__in=projects)
    return {one.pk: str(one) for one in found}, dict(ApiKey.objects.filter(pk__in=keys).values_list("pk", "name"))


def _sum(totals: Iterable[Totals]) -> Totals:
    total = NOTHING
    for one in totals:
        total = total.plus(one)
    return total


async def live_totals(*, within: float = 0.1) -> Totals:
    """How many sockets are open, how many lanes they have named, how many turns run and wait: everywhere.

    Those of this host are asked over their Unix sockets; those of other hosts over the channel layer, where there is
    one. Whoever does not answer ``within`` so many seconds is left out: ``processes`` says how many have. A process
    tells five numbers; none of its connections is looked at but its sockets' lanes. For a view:
    ``async_to_sync(live_totals)()``.
    """
    here, elsewhere = await asyncio.gather(siblings.ask("totals", within=within), _elsewhere.totals(within))
    told = {one.process: one.totals for one in (msgspec.json.decode(answer, type=ProcessTotals) for answer in here)}
    return _sum([live.totals(), *(elsewhere | told).values()])


class _Elsewhere:
    """Asks other hosts for their totals. Who has answered before is waited for; newcomers are now and then."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._learn_at = 0.0

    async def totals(self, within: float) -> dict[str, Totals]:
        layer = get_channel_layer()
        if layer is None:
            return {}
        found: dict[str, Totals] = {}
        is_learning = time.monotonic() >= self._learn_at
        try:
            async with asyncio.timeout(within):
                channel = await bus.own_channel(layer)
                await bus.ask(layer, "totals", channel)
                while is_learning or self._known - found.keys():
                    message = await layer.receive(channel)
                    told = msgspec.json.decode(message["body"], type=ProcessTotals)
                    found[told.process] = told.totals
        except TimeoutError:
            pass
        except Exception as exc:
            logger.warning("Other hosts are not counted, the channel layer is down: %s", type(exc).__name__)
        if is_learning:
            self._learn_at = time.monotonic() + SECONDS_NAMED
        if is_learning or len(found) < len(self._known):
            # Who has gone is not waited for again.
            self._known = set(found)
        return found


_elsewhere = _Elsewhere()
watching = Watching()
