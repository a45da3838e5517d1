"""Whether this process is on its way out, and what it still has to finish."""

import contextlib
from collections.abc import Callable, Iterator

from responses_ws.protocol.errors import Overloaded

Interrupt = Callable[[], None]

_is_draining = False
_running: dict[object, Interrupt] = {}
_hearers: list[Callable[[], None]] = []


def begin_drain() -> None:
    """From now on no new turn is taken. There is no way back: the process ends."""
    global _is_draining
    _is_draining = True
    for hear in _hearers:
        hear()


def when_draining(hear: Callable[[], None]) -> None:
    """Have this called once, on the event loop, when the drain begins. Idempotent."""
    if hear not in _hearers:
        _hearers.append(hear)


def is_draining() -> bool:
    return _is_draining


def refuse_while_draining() -> None:
    """For whatever would begin something. Raises Overloaded: elsewhere, or in a moment, it may."""
    if _is_draining:
        message = "The server is about to restart. Please try again on a new connection."
        raise Overloaded(message, headers={"retry-after": "1"})


@contextlib.contextmanager
def running_turn(interrupt: Interrupt) -> Iterator[None]:
    """Held by every turn from admission to its terminal event; the drain waits for it.

    ``interrupt`` tells the turn, once, that its time is over.
    """
    key = object()
    _running[key] = interrupt
    try:
        yield
    finally:
        _running.pop(key, None)


def running_turns() -> int:
    """How many are held now."""
    return len(_running)


def is_busy() -> bool:
    """Whether a turn runs that a drain should wait for."""
    return bool(_running)


def interrupt_turns() -> None:
    """The deadline of the drain: what still runs ends now."""
    for interrupt in list(_running.values()):
        interrupt()
