"""The background responses that this process runs."""

import asyncio
import logging
import os
import socket
from contextlib import aclosing, closing

from django.db import Error

from responses_ws.protocol.errors import ApiError, Interrupted
from responses_ws.protocol.request import JsonObject
from responses_ws.runtime import dbpool, live
from responses_ws.runtime.drain import running_turn
from responses_ws.stores import events, runs
from responses_ws.stores.base import StoredChain
from responses_ws.stores.runs import Claim, Taken

from .context import Context
from .ending import LeaseLost
from .mailbox import Mailbox
from .run import Run
from .sampling import Sign, Word
from .turns import conversation_let_go
from .watched import Watched

logger = logging.getLogger(__name__)

running: dict[str, "Job"] = {}
"""By response id."""


def owner() -> str:
    """What others see of who runs a response."""
    return f"{socket.gethostname()}:{os.getpid()}"[:128]


class Job:
    """One background response in this process: until it ends, or another process goes on with it."""

    def __init__(self, context: Context) -> None:
        assert context.asked.ticket is not None, "whoever runs a turn has a ticket"
        self._ticket = context.asked.ticket
        self.mailbox: Mailbox[Word] = Mailbox()
        self.ended = asyncio.Event()
        """This process does nothing more for it."""
        self.accepted: asyncio.Future[JsonObject | Exception] = asyncio.get_running_loop().create_future()
        """The queued Response, or why there is none."""
        self._run = Run(context, self.mailbox)
        self._project_id = context.asked.principal.project_id
        self._is_logged = bool(context.asked.request.stream)
        self._has_output = False
        self._is_leaving = False
        """Another process is to go on with it."""
        self._hands_back = True
        """It is to be told so."""
        self._task: asyncio.Task[None] | None = None
        self.response_id = str(self._run.response["id"])
        running[self.response_id] = self

    @property
    def claim(self) -> Claim | None:
        """By which it is ours; None before it is accepted."""
        return self._run.record.claim

    async def queue_and_work(self, *, runs_here: bool) -> None:
        """Queue a new response, and run it; or leave that to others."""
        if not runs_here:
            self._is_leaving, self._hands_back = True, False
        with running_turn(self.stop):
            await self._work(queues=True)

    async def resume_and_work(self, stored: StoredChain, taken: Taken) -> None:
        """Run a response that was queued some time ago."""
        self._run.resume(stored, taken.claim, taken.next_number)
        self._log_from(taken.claim, taken.next_number)
        with running_turn(self.stop):
            await self._work(queues=False)

    async def _work(self, *, queues: bool) -> None:
        self._task = asyncio.current_task()
        try:
            with closing(self._ticket), closing(self._run):
                async with conversation_let_go(self._run.asked):
                    if queues and not await self._queue():
                        return
                    if self._is_leaving:
                        self._run.let_go()
                        return
                    if not queues:
                        await self._run.reserve_again()
                    await self._generate()
        except asyncio.CancelledError:
            if not self._is_leaving or self._task is None:
                raise
            self._task.uncancel()
        except LeaseLost:
            logger.warning("Response %s: another process has taken over", self.response_id)
            self._is_leaving, self._hands_back = True, False
        finally:
            if running.get(self.response_id) is self:
                # Otherwise this process has taken it over from itself, after it stood still for a while.
                del running[self.response_id]
            log = self._run.record.events
            if log is not None:
                await log.end()
            if self._is_leaving and self._hands_back:
                await self._hand_back()
            self.ended.set()

    async def _queue(self) -> bool:
        try:
            await self._run.reserve()
            frames = await self._run.queue(owner="" if self._is_leaving else owner())
        except Exception as exc:
            # Not ours to handle: whoever waits for the answer is told, and may try again at once.
            if self._run.asked.hold is not None:
                await self._run.asked.hold.release()
            self.accepted.set_result(exc)
            return False
        assert self.claim is not None, "it is ours from the beginning"
        self._log_from(self.claim, len(frames))
        self.accepted.set_result({**self._run.response})
        return True

    def _log_from(self, claim: Claim, number: int) -> None:
        if self._is_logged and not self._is_leaving:
            self._run.record.events = events.EventWriter(self._project_id, claim, number, self._cannot_log)

    def _cannot_log(self, fate: Exception | events.Fate) -> None:
        if isinstance(fate, Exception):
            self.mailbox.put(fate)
        elif fate == "deleted":
            self.cancel()
        else:
            self.lose()

    async def _generate(self) -> None:
        log = self._run.record.events
        with live.shown(Watched(self._run.asked, self.mailbox, self._run)):
            async with aclosing(self._run.generate()) as frames_of_run:
                async for frames in frames_of_run:
                    self._has_output = self._has_output or events.has_output(frames)
                    if log is not None:
                        await log.tell(frames)

    def cancel(self) -> None:
        """Its client wants no more of it, or has deleted it."""
        self.mailbox.put(Sign.CANCELLED)

    def lose(self) -> None:
        """Another process has taken over."""
        self.leave(hands_back=False)

    def drain(self) -> None:
        """The process is to end: what has not begun goes to another one."""
        if not self._has_output and not self._run.record.has_effects:
            self.leave()

    def stop(self) -> None:
        """The process ends now: what another one can run again goes there, and the rest fails."""
        if self._run.record.has_effects or (self._is_logged and self._has_output):
            self.mailbox.put(Interrupted())
        else:
            self.leave()

    def leave(self, *, hands_back: bool = True) -> None:
        if self._is_leaving:
            return
        if self.claim is not None and not self._run.let_go():
            # It has ended, and is just being written.
            return
        self._is_leaving, self._hands_back = True, hands_back
        # Until it is queued there is nothing that another process could find; `_work` looks again then.
        if self.claim is not None and self._task is not None:
            self._task.cancel()

    async def _hand_back(self) -> None:
        assert self.claim is not None, "only what was queued is left to others"
        try:
            await dbpool.run(runs.hand_back, self.claim)
        except (ApiError, Error) as exc:
            logger.warning("Response %s cannot be handed back yet: %s", self.response_id, type(exc).__name__)
