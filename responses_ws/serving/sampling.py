"""One engine call inside a turn: a task that reads the engine, and timers that notice its silence."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.commands import Append
from responses_ws.engines.base import EngineError
from responses_ws.protocol.sampling import Delta, Progress, Started
from responses_ws.protocol.steering import Steer

from .mailbox import Mailbox


class Sign(Enum):
    """What a turn is told of its engine call, beside the deltas."""

    ACCEPTED = "accepted"
    """The engine has taken the call."""
    CREATED_IS_DUE = "created is due"
    """It has neither taken nor refused it for as long as a client should wait."""
    SILENT = "silent"
    """Nothing has been said for so long that clients would give up."""
    SCREENED = "screened"
    """The classifiers have looked at what is new."""
    ENDED = "ended"
    """All deltas have been told."""
    CANCELLED = "cancelled"
    """The client wants no more of it."""
    OVERDUE = "overdue"
    """The outputs that a response waits for have not come."""


class Errand(msgspec.Struct, frozen=True):
    """What has become of something that runs for the model."""

    item_id: str
    kind: str
    """Type of that item."""
    word: str | None = None
    """How far it is; None: it has ended."""
    result: Any = None
    """An `Outcome`, a `ToolError`, or listed tools."""


Word = list[Delta] | Sign | Exception | Steer | Append | Errand
"""A batch of deltas, a sign, what broke the call; what runs for the model; or what the client has to say meanwhile."""


class SamplingStep:
    """Starts the call when made and tells its mailbox everything. Always `leave` it.

    The engine is entered, read and left in one task. It is read ahead of a slow reader only so far. ``gave_up`` is told
    of a silence that was too long, before the mailbox is.
    """

    def __init__(
        self,
        call: AbstractAsyncContextManager[AsyncIterator[list[Delta]]],
        mailbox: Mailbox[Word],
        *,
        gave_up: Callable[[EngineError], None] | None = None,
    ) -> None:
        self._gave_up = gave_up
        self._mailbox = mailbox
        self._loop = asyncio.get_running_loop()
        self._limits = app_settings.limits
        self._patience = self._limits.engine_first_delta_seconds
        self._spoke_at = self._loop.time()
        self._silent_since: float | None = None
        """Since when the engine has been waited for; None: it has spoken since the last look."""
        self._task = self._loop.create_task(self._read(call))
        self._created_timer = self._loop.call_later(self._limits.created_seconds, mailbox.put, Sign.CREATED_IS_DUE)
        self._timer = self._loop.call_at(self._next_look(self._spoke_at), self._look)

    def spoke(self) -> None:
        """An event has gone out: clients' patience begins anew."""
        self._spoke_at = self._loop.time()

    async def leave(self) -> None:
        """Free the engine, at once, whatever it is doing. Idempotent."""
        self._timer.cancel()
        self._created_timer.cancel()
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _read(self, call: AbstractAsyncContextManager[AsyncIterator[list[Delta]]]) -> None:
        mailbox = self._mailbox
        try:
            async with call as batches:
                self._created_timer.cancel()
                mailbox.put(Sign.ACCEPTED)
                is_reading = True
                async for batch in batches:
                    mailbox.put(batch)
                    self._silent_since = None
                    if is_reading and not all(isinstance(delta, Started | Progress) for delta in batch):
                        is_reading = False
                        self._patience = self._limits.engine_next_delta_seconds
                        self._timer.cancel()
                        self._timer = self._loop.call_at(self._next_look(self._loop.time()), self._look)
                    await mailbox.room()
            mailbox.put(Sign.ENDED)
        except Exception as exc:
            mailbox.put(exc)

    def _next_look(self, now: float) -> float:
        silent_since = now if self._silent_since is None else self._silent_since
        return min(silent_since + self._patience, self._speak_at())

    def _speak_at(self) -> float:
        return self._spoke_at + self._limits.keep_alive_seconds

    def _look(self) -> None:
        """One lazy timer for both clocks: nothing is paid per piece."""
        now = self._loop.time()
        waiting_since = self._mailbox.waiting_since
        if waiting_since is None:
            # The turn has enough to do, or its client does not read.
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = waiting_since
        # Not the mailbox's time: that begins anew with every sign of ours.
        if self._silent_since is not None and now >= self._silent_since + self._patience:
            failure = EngineError("timeout", f"No word from the engine for {self._patience:.0f} s")
            if self._gave_up is not None:
                self._gave_up(failure)
            self._mailbox.put(failure)
            return
        if now >= self._speak_at():
            self._spoke_at = now
            if waiting_since is not None:
                self._mailbox.put(Sign.SILENT)
        self._timer = self._loop.call_at(self._next_look(now), self._look)
