"""How a running turn is told things: one who waits, many who tell."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

READ_AHEAD = 64
"""Words that may wait before a teller has to: an engine faster than its reader is held back by this."""


class Mailbox(Generic[T]):
    """A queue for one waiter, cheaper than `asyncio.Queue` where nobody has to wait.

    ``put`` never blocks and may be called from timers; a teller that could flood it awaits ``room`` first.
    """

    __slots__ = ("_words", "_waiter", "_room", "waiting_since", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._words: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.waiting_since: float | None = None
        """Loop time since when the waiter has nothing to read; None while it is busy."""

    def put(self, word: T) -> None:
        """Tell the waiter."""
        self._words.append(word)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def room(self) -> None:
        """Wait until fewer than READ_AHEAD words are waiting. For one teller only."""
        while len(self._words) >= READ_AHEAD:
            self._room = self._loop.create_future()
            await self._room

    async def get(self, may_hear: Callable[[T], bool] | None = None) -> T:
        """The next word, in order of telling; with ``may_hear`` the next such one, while the others wait."""
        while (position := self._position(may_hear)) is None:
            self._waiter = self._loop.create_future()
            self.waiting_since = self._loop.time()
            try:
                await self._waiter
            finally:
                self._waiter = None
                self.waiting_since = None
        word = self._words[position]
        del self._words[position]
        if self._room is not None and not self._room.done() and len(self._words) < READ_AHEAD:
            self._room.set_result(None)
        return word

    def _position(self, may_hear: Callable[[T], bool] | None) -> int | None:
        if may_hear is None:
            return 0 if self._words else None
        return next((index for index, word in enumerate(self._words) if may_hear(word)), None)

    def drain(self) -> list[T]:
        """Everything that nobody will read."""
        words = list(self._words)
        self._words.clear()
        return words
