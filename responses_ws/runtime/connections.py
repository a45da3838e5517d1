"""The live sockets of this process."""

from typing import Protocol

from . import metrics


class LiveSocket(Protocol):
    """What others may do with a socket."""

    project_id: int
    api_key_id: int | None

    @property
    def waiting_turns(self) -> int:
        """Turns that have been asked for and may not start yet."""

    @property
    def lanes(self) -> int:
        """Lanes that it has named."""

    async def recheck(self) -> None:
        """The rights of its key have changed: close it if there are none left."""

    def forget(self, response_ids: set[str]) -> None:
        """Drop deleted responses from the connection's memory."""

    def end(self, code: int, reason: str) -> None:
        """Begin to close it, whatever runs on it."""


_sockets: set[LiveSocket] = set()


def opened(socket: LiveSocket) -> None:
    _sockets.add(socket)
    metrics.sockets_opened.add(())


def closed(socket: LiveSocket) -> None:
    _sockets.discard(socket)


def live_sockets() -> int:
    """How many sockets are open in this process."""
    return len(_sockets)


def waiting_turns() -> int:
    """How many turns wait on them, for their lane or for room."""
    return sum(socket.waiting_turns for socket in _sockets)


def lanes() -> int:
    """How many lanes have been named on them."""
    return sum(socket.lanes for socket in _sockets)


def close_sockets() -> None:
    """The process ends: tell every socket so. 1012 is what clients take for a reason to connect again."""
    for socket in list(_sockets):
        socket.end(1012, "the server restarts")


async def recheck(api_key_id: int) -> None:
    """The rights of this key have changed."""
    for socket in list(_sockets):
        if socket.api_key_id == api_key_id:
            await socket.recheck()


def forget_responses(project_id: int, response_ids: set[str]) -> None:
    """Responses were deleted: no connection of their project may continue them."""
    for socket in _sockets:
        if socket.project_id == project_id:
            socket.forget(response_ids)
