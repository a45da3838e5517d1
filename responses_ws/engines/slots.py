"""How many calls an engine runs at once, and who waits."""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Hashable

from .base import EngineError

LONGEST_HINT_SECONDS = 60


class Slots:
    """The places of one engine. ``limit`` None: as many as are wanted; ``most_waiting`` calls wait beyond it.

    Places are given in order of coming, but to one connection after the other: many lanes of one do not keep out
    the one lane of another.
    """

    def __init__(self, limit: int | None, most_waiting: int) -> None:
        self.limit = limit
        self.most_waiting = most_waiting
        self.running = 0
        self.waiting = 0
        self._queues: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._seconds_per_call = 1.0

    async def take(self, who: Hashable) -> None:
        """Wait for a place; give it back. ``who`` names the connection.

        Raises:
            EngineError: overloaded; too many wait already.
        """
        if self.limit is None or (self.running < self.limit and not self.waiting):
            self.running += 1
            return
        if self.waiting >= self.most_waiting:
            message = f"{self.running} calls run and {self.waiting} wait"
            raise EngineError("overloaded", message, headers={"retry-after": str(self._hint())})
        place = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(who, deque())
        queue.append(place)
        self.waiting += 1
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._forget(who, place)
            else:
                # Given in the same moment.
                self.give_back()
            raise

    def give_back(self, seconds: float | None = None) -> None:
        """The call is over, after so many seconds, if it was a whole one: the next in line gets its place."""
        if seconds is not None:
            self._seconds_per_call += (seconds - self._seconds_per_call) / 8
        while self._queues:
            who, queue = self._queues.popitem(last=False)
            place = queue.popleft()
            if queue:
                self._queues[who] = queue
            self.waiting -= 1
            if not place.done():
                place.set_result(None)
                return
        self.running -= 1

    def _forget(self, who: Hashable, place: asyncio.Future[None]) -> None:
        """Whoever waited for it has left."""
        queue = self._queues.get(who, deque())
        if place in queue:
            queue.remove(place)
            self.waiting -= 1
            if not queue:
                del self._queues[who]

    def _hint(self) -> int:
        """Seconds until one more could wait, about."""
        assert self.limit, "only a limit makes anyone wait"
        return min(max(1, math.ceil(self._seconds_per_call / self.limit)), LONGEST_HINT_SECONDS)
