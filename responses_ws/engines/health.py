"""How an engine does, as its calls and probes tell. No IO; times are seconds of one monotonic clock, as arguments."""

import math
from enum import Enum

from .base import EngineError

FIRST_REST_SECONDS = 0.5
LONGEST_REST_SECONDS = 10.0
"""An engine that is back is noticed this late at the most."""
BUSY_SECONDS = 1.0
"""An engine that refuses calls as overloaded and does not say for how long."""
LONGEST_BUSY_SECONDS = 30.0


class State(Enum):
    """What is known of an engine."""

    WELL = "well"
    BUSY = "busy"
    """It has refused a call as overloaded: others are asked first, for a while."""
    SUSPECT = "suspect"
    """It broke off an answer, or fell silent: it is probed, and others are asked first meanwhile."""
    DOWN = "down"
    """It could not be reached: it is probed now and then, and not called."""
    TRIAL = "on trial"
    """A probe has found it well: it is asked for one call at a time, if there are others, until one is answered."""


class Condition:
    """The state of one engine, and since when it may be asked again."""

    __slots__ = ("state", "until", "failures", "error")

    def __init__(self) -> None:
        self.state = State.WELL
        self.until = 0.0
        """BUSY: when that is over. SUSPECT and DOWN: when it is to be probed."""
        self.failures = 0
        """Times in a row that it was found down."""
        self.error: EngineError | None = None
        """What it was last found to suffer from."""

    @property
    def wants_probe(self) -> bool:
        return self.state in (State.SUSPECT, State.DOWN)

    def rank(self, now: float, *, is_running: bool) -> int | None:
        """0: as good as any; 1: only where no other is left; None: not at all. ``is_running``: it has a call."""
        if self.state is State.DOWN:
            return None
        if self.state is State.TRIAL:
            return int(is_running)
        if self.state is State.BUSY and now >= self.until:
            return 0
        return int(self.state is not State.WELL)

    def answered(self) -> None:
        """A call has got an answer."""
        self.state, self.failures, self.error = State.WELL, 0, None

    def failed(self, error: EngineError, now: float, *, has_spoken: bool) -> None:
        """A call has failed; after some output, if it ``has_spoken``."""
        if self.state is State.DOWN:
            # A call from before.
            return
        if error.kind == "overloaded":
            self.state, self.error = State.BUSY, error
            self.until = now + _busy_seconds(error.headers.get("retry-after"))
        elif error.kind == "timeout" or (error.kind == "unavailable" and has_spoken):
            self.state, self.error, self.until = State.SUSPECT, error, now
        elif error.kind == "unavailable":
            self._rest(error, now)
        elif error.kind in ("bad_request", "context_length"):
            # It thinks clearly.
            self.answered()

    def probed(self, error: EngineError | None, now: float) -> None:
        """It was asked how it does; None: well."""
        if error is not None:
            self._rest(error, now)
        else:
            self.state = State.TRIAL

    def refusal(self, now: float) -> EngineError:
        """What a call is told that is not made because the engine is down."""
        assert self.error is not None, "it is down for a reason"
        wait = max(1, math.ceil(self.until - now))
        known, headers = self.error, {"retry-after": str(wait)}
        return EngineError(known.kind, known.message, status=known.status, headers=headers, is_quote=known.is_quote)

    def _rest(self, error: EngineError, now: float) -> None:
        # No power of two that is too large for a float, however long it is down.
        rest = FIRST_REST_SECONDS * 2 ** min(self.failures, 16)
        self.failures += 1
        self.state, self.error = State.DOWN, error
        self.until = now + min(rest, LONGEST_REST_SECONDS)


def _busy_seconds(hint: str | None) -> float:
    """What a ``retry-after`` in seconds means for us; there may be none, or a date."""
    try:
        seconds = float(hint or 0)
    except ValueError:
        return BUSY_SECONDS
    return min(seconds, LONGEST_BUSY_SECONDS) if seconds > 0 else BUSY_SECONDS
