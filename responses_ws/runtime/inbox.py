"""What a server keeps for each socket, in little memory: asyncio's own take two kilobytes before anything has come."""

import asyncio
from typing import Any


class Inbox:
    """Messages for one reader, in order: as much of `asyncio.Queue` as a server uses."""

    __slots__ = ("_messages", "_reader")

    def __init__(self) -> None:
        self._messages: list[Any] = []
        """Hardly ever more than one: who has a message unread is not read from."""
        self._reader: asyncio.Future[None] | None = None

    def put_nowait(self, message: Any) -> None:
        self._messages.append(message)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Any:
        while not self._messages:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._messages.pop(0)

    def empty(self) -> bool:
        return not self._messages


class Latch:
    """Open, or shut for any number who wait until it is open: as much of `asyncio.Event` as a server uses."""

    __slots__ = ("_opening",)

    def __init__(self) -> None:
        self._opening: asyncio.Future[None] | None = None
        """Done when it opens; None while it is open."""

    def set(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and not opening.done():
            opening.set_result(None)

    def clear(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        # As often as it takes: it may have been shut again by those who were quicker.
        while self._opening is not None:
            # One who stops waiting does not stop the others.
            await asyncio.shield(self._opening)
