"""The live sockets of this process."""

import random
from collections.abc import Hashable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from responses_ws.conf import app_settings

from . import metrics
from .drain import is_draining

if TYPE_CHECKING:
    from .live import SeenConnection, SeenTurn


class Room(Enum):
    """What becomes of one more connection."""

    PLENTY = "plenty"
    TO_REFUSE = "to refuse"
    """Its request is answered by 503, and it is closed."""
    NONE = "none"
    """The files that are left are not for it."""


class LiveSocket(Protocol):
    """What others may do with a socket."""

    project_id: int
    api_key_id: int | None
    id: str
    """What its client was told as ``x-request-id``."""

    @property
    def connection(self) -> Hashable:
        """What its turns say of whose they are."""

    def seen(self, turns: "list[SeenTurn]") -> "SeenConnection":
        """For people who watch, with the turns that run on it."""

    @property
    def waiting_turns(self) -> int:
        """Turns that have been asked for and may not start yet."""

    @property
    def lanes(self) -> int:
        """Lanes that it has named."""

    @property
    def active_turns(self) -> int:
        """Turns that run."""

    def restart(self, seconds: float) -> None:
        """No new turns; running ones may finish. Then, or in so many seconds, it closes with 1012."""

    async def recheck(self) -> None:
        """The rights of its key have changed: close it if there are none left."""

    def forget(self, response_ids: set[str]) -> None:
        """Drop deleted responses from the connection's memory."""

    def end(self, code: int, reason: str) -> None:
        """Begin to close it, whatever runs on it."""


_sockets: set[LiveSocket] = set()
# Without a launcher that knows better.
_most_connections = 1_000_000
_front = 0


def opened(socket: LiveSocket) -> None:
    _sockets.add(socket)
    metrics.sockets_opened.add(())
    if is_draining():
        # Its handshake was under way.
        _restart(socket)


def closed(socket: LiveSocket) -> None:
    _sockets.discard(socket)


def sockets() -> list[LiveSocket]:
    """The live sockets, in no order."""
    return list(_sockets)


def live_sockets() -> int:
    """How many sockets are open in this process."""
    return len(_sockets)


def allow(connections: int, front: int) -> None:
    """The process has files for so many connections of every kind. Of these ``front`` are those that are refused, and
    as many are not for sockets."""
    global _most_connections, _front
    _most_connections, _front = connections, front


def room_for(count: int) -> Room:
    """What to do with a connection, now that there are so many."""
    if count <= _most_connections - _front:
        return Room.PLENTY
    return Room.TO_REFUSE if count <= _most_connections else Room.NONE


def most_sockets() -> int:
    """How many may be open."""
    return min(app_settings.limits.open_sockets, max(1, _most_connections - 2 * _front))


def is_busy() -> bool:
    """Whether a turn runs on any of them, from the moment that it was asked for."""
    return any(socket.active_turns for socket in _sockets)


def restart() -> None:
    """The process is about to end: no new turns, and idle sockets close, one after the other."""
    for socket in _sockets:
        _restart(socket)


def _restart(socket: LiveSocket) -> None:
    socket.restart(random.random() * app_settings.limits.restart_seconds)  # noqa: S311


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


def close(identity: str) -> None:
    """Somebody in the office wants this socket gone. By 1012 clients know that they may connect again, and that what
    was under way has not ended; 1000 and 1001 would look to some like a whole answer."""
    for socket in list(_sockets):
        if socket.id == identity:
            socket.end(1012, "closed by the operator")


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
