"""Deletions reach Redis, also where it does not answer while they are made."""

import asyncio
from collections import OrderedDict

from responses_ws.conf import app_settings

from .lookup import redis_store
from .rows import Deleted

SECONDS_BETWEEN_TRIES = 0.5
_MOST_WAITING = 10_000


class Forgetting:
    """What Redis has not been told yet. Every process that has heard of a deletion sees to it: one may die."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[int, frozenset[str]], Deleted] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    async def tell(self, project_id: int, deleted: Deleted) -> None:
        """Tell Redis: now, or else as soon as it answers. Waits for one answer at the most."""
        if not app_settings.REDIS_URL or await redis_store.forget(project_id, deleted):
            return
        self._waiting[project_id, frozenset(deleted.response_ids)] = deleted
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._keep_telling(), name="deletions for Redis")

    async def stop(self) -> None:
        """The process ends. The others go on; and copies expire."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._waiting.clear()

    async def _keep_telling(self) -> None:
        while self._waiting:
            await asyncio.sleep(SECONDS_BETWEEN_TRIES)
            for key, deleted in list(self._waiting.items()):
                if not await redis_store.forget(key[0], deleted):
                    break
                self._waiting.pop(key, None)

    def __len__(self) -> int:
        return len(self._waiting)


forgetting = Forgetting()
