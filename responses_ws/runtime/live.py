"""What goes on in this process right now, for people who watch. Counters that are there anyway are read when somebody
asks, and only then; a turn costs its entry in a set.
"""

import time
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import msgspec

from . import connections, drain
from .bus import process_name

MOST_SHOWN = 500
"""Connections that one process shows at once, those with turns first: the others are counted."""
MOST_AGENT = 200

user_agent: ContextVar[str] = ContextVar("user_agent", default="")
"""Of the HTTP request that this task answers."""

snapshots = 0
"""How many have been made. Nobody watches: it stays."""


class SeenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that runs. Numbers and ids, nothing of what is said."""

    response_id: str
    """Empty while it is being checked: it has none yet."""
    model: str
    lane: str | None
    seconds: float
    """Since it was asked for."""
    first_token_seconds: float | None
    """From there to its first output; None until then."""
    tokens: int
    """Of output, so far."""
    is_background: bool = False


class SeenConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A socket, or an HTTP request whose turn runs."""

    id: str
    """Of a socket, what its client was told as ``x-request-id``; of a request, its response's id."""
    transport: str
    project_id: int
    api_key_id: int | None
    key: str
    """Redacted."""
    agent: str
    """The client's ``User-Agent``, which may say anything."""
    seconds: float
    """Its age."""
    lanes: int = 0
    waiting: int = 0
    """Turns that may not start yet."""
    held_bytes: int = 0
    items: int = 0
    """Of the longest context that it holds."""
    turns: list[SeenTurn] = []


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over one process, or several."""

    processes: int = 1
    sockets: int = 0
    lanes: int = 0
    generating: int = 0
    """Turns that run, at every door."""
    waiting: int = 0

    def plus(self, other: "Totals") -> "Totals":
        return Totals(**{name: getattr(self, name) + getattr(other, name) for name in Totals.__struct_fields__})


NOTHING = Totals(processes=0)


class ProcessTotals(msgspec.Struct, frozen=True):
    """Those of one process, as it tells others."""

    process: str
    totals: Totals


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment."""

    process: str
    at: float
    """Seconds since the epoch, by its own clock."""
    totals: Totals
    connections: list[SeenConnection]
    """Without those beyond `MOST_SHOWN`."""


class LiveTurn(Protocol):
    """A turn that runs in this process."""

    connection: Hashable
    """Whose turn it is, as `LiveSocket.connection` says; None: a request of its own."""

    @property
    def response_id(self) -> str: ...

    def seen(self) -> SeenTurn: ...

    def seen_alone(self) -> SeenConnection:
        """As a connection of its own."""

    def cancel(self) -> None: ...


_turns: set[LiveTurn] = set()


@contextmanager
def shown(turn: LiveTurn) -> Iterator[None]:
    """Around a turn, from admission to its end."""
    _turns.add(turn)
    try:
        yield
    finally:
        _turns.discard(turn)


def cancel(response_id: str) -> None:
    """Somebody in the office wants this turn to end, wherever it runs."""
    for turn in list(_turns):
        if turn.response_id == response_id:
            turn.cancel()


def totals() -> Totals:
    return Totals(
        sockets=connections.live_sockets(),
        lanes=connections.lanes(),
        generating=drain.running_turns(),
        waiting=connections.waiting_turns(),
    )


def snapshot() -> Snapshot:
    """This process as it is. Costs what it shows."""
    global snapshots
    snapshots += 1
    by_socket: defaultdict[Hashable, list[SeenTurn]] = defaultdict(list)
    found: list[SeenConnection] = []
    for turn in _turns:
        if turn.connection is not None:
            by_socket[turn.connection].append(turn.seen())
        elif len(found) < MOST_SHOWN:
            found.append(turn.seen_alone())
    sockets = connections.sockets()
    busy = [one for one in sockets if one.connection in by_socket]
    idle = (one for one in sockets if one.connection not in by_socket)
    for one in (*busy[: MOST_SHOWN - len(found)], *idle):
        if len(found) >= MOST_SHOWN:
            break
        found.append(one.seen(by_socket.get(one.connection, [])))
    return Snapshot(process=process_name(), at=time.time(), totals=totals(), connections=found)


def told() -> bytes:
    """The same, for another process."""
    return msgspec.json.encode(snapshot())


def told_totals() -> bytes:
    return msgspec.json.encode(ProcessTotals(process_name(), totals()))
