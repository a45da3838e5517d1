"""Whether this process is on its way out, and what it still has to finish."""

import contextlib
from collections.abc import Callable, Iterator

_is_draining = False
_running_turns = 0
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


@contextlib.contextmanager
def running_turn() -> Iterator[None]:
    """Held by every turn from admission to its terminal event; the drain waits for it."""
    global _running_turns
    _running_turns += 1
    try:
        yield
    finally:
        _running_turns -= 1


def running_turns() -> int:
    """How many are held now."""
    return _running_turns


def is_busy() -> bool:
    """Whether a turn runs that a drain should wait for."""
    return _running_turns > 0
