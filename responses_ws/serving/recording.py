"""The usage record of a turn: opened beside the engine call, closed before the terminal event."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
from django.utils import timezone

from responses_ws.conf import app_settings
from responses_ws.models import UsageRecord
from responses_ws.protocol.errors import ApiError, PreviousResponseNotFound
from responses_ws.protocol.usage import Usage
from responses_ws.runtime import background, connections, dbpool, logs, metrics, sql
from responses_ws.runtime.dbpool import unavailable
from responses_ws.runtime.dispatcher import dispatcher
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.journal import File, journal
from responses_ws.runtime.tracing import NOTHING, Span
from responses_ws.runtime.writer import durable, writer
from responses_ws.signals import turn_finished
from responses_ws.stores import events, rows, runs
from responses_ws.stores.base import Place
from responses_ws.stores.conversations import Appending
from responses_ws.stores.memory import hot_tier

from . import ending as ends
from . import promises
from .admission import Principal, Ticket
from .budgets import Reservation
from .checkpoints import LEASE, checkpointer, counts_of
from .ending import Ending, LeaseLost, Promised, Stored
from .token_step import TokenStep

logger = logging.getLogger(__name__)

_PATHS = ("", "append", "rewind", "full")
_DONE: "Future[Any]" = Future()
_DONE.set_result(None)


class Record:
    """One turn's usage record. Whoever makes it closes it, once, whatever happens."""

    def __init__(
        self,
        principal: Principal,
        *,
        response_id: str,
        model: str,
        service_tier: str,
        transport: str,
        is_warmup: bool,
        received_at: float,
        count: Callable[[], Usage],
        count_calls: Callable[[], int] = lambda: 0,
        ticket: Ticket | None = None,
        span: Span = NOTHING,
    ) -> None:
        self._principal = principal
        self._ticket = ticket
        self._span = span
        self._received_at = received_at
        """When it was asked for, by `time.perf_counter`."""
        checks_ms = (time.perf_counter() - received_at) * 1000
        if ticket is not None:
            ticket.phases = {"checks": checks_ms}
        self._prepared_ms: float | None = None
        self.first_token_ms: float | None = None
        self.render_ms: float | None = None
        """Of the prompts made until then: those of later steps are part of what follows. None without any."""
        self.is_closed = False
        self.count = count
        """Tells what has been consumed so far; the checkpoint asks."""
        self.count_calls = count_calls
        """The same of hosted tools."""
        now = timezone.now()
        self._row: dict[str, Any] = {
            "response_id": response_id,
            "organization_id": principal.organization_id,
            "project_id": principal.project_id,
            "api_key_id": principal.api_key_id,
            "model": model,
            "service_tier": service_tier,
            "transport": transport,
            "is_warmup": is_warmup,
            "started_at": now,
            "checks_ms": checks_ms,
            "lease_until": now + LEASE,
        }
        self._opened: Future[Any] | None = None
        self._opening: tuple[File, ...] = ()
        """Where it was opened in the journal, and only there."""
        self._may_speak = False
        """Its beginning is durable, whatever the database knows."""
        self.is_absent = False
        """The database has not heard of it."""
        self._is_tried = False
        self._token_steps: list[TokenStep] = []
        self.claim: runs.Claim | None = None
        """Of a background response: what gives this process the right to write about it."""
        self.events: events.EventWriter | None = None
        """Where its events go; None where it has no log."""
        self.reservation: Reservation | None = None
        """What it holds of budgets; None without any."""
        self.has_effects = False
        """Tools were called for it: another process must not begin again."""

    @property
    def response_id(self) -> str:
        return str(self._row["response_id"])

    @property
    def started_at(self) -> datetime:
        moment: datetime = self._row["started_at"]
        return moment

    @property
    def row(self) -> dict[str, Any]:
        """The row as it was opened, by column."""
        return self._row

    def open(self, *, is_private: bool) -> None:
        """Write it down, beside the engine call; `wait_until_open` says when it is durable.

        With ``DURABILITY = "journal"``, and if no budget counts on it, its beginning goes there. Then the database is
        told beside its output; or, where it ``is_private``, so that nobody but its client asks for what becomes of it,
        at its first checkpoint or its end.
        """
        faultpoint("row.before")
        file = None
        if promises.may_run_ahead() and self.reservation is None and not app_settings.JOURNAL_FSYNC:
            file = promises.kept(Ending(self._row, {}))
        self._may_speak = file is not None
        if file is not None and is_private:
            self._opened, self._opening, self.is_absent = _DONE, (file,), True
        else:
            self._opened = writer.submit(self._write_row)
            if file is not None:
                promises.settle_when_written(self._opened, file)
        checkpointer.watch(self)

    def _write_row(self) -> None:
        """In the writer's thread."""
        if not self._was_committed():
            sql.insert(UsageRecord, [self._row])
        faultpoint("row.written")

    def _was_committed(self) -> bool:
        """Whether an earlier try has come through, and only its answer was lost with the connection."""
        is_again, self._is_tried = self._is_tried, True
        return is_again and UsageRecord.objects.filter(response_id=self.response_id).exists()

    async def open_queued(self, stored: Stored, frames: Sequence[str], run: Mapping[str, Any]) -> Place:
        """Make the record durable together with all that others may ask for, or need to run it.

        ``frames`` are its first events, ``run`` the row of its `BackgroundRun`.

        Raises:
            PreviousResponseNotFound: its parent has been deleted meanwhile; nothing was written.
        """
        self._opened = writer.submit(lambda: self._write_queued(stored, frames, run))
        try:
            place = await durable(self._opened)
        except sql.UNAVAILABLE as exc:
            raise unavailable(type(exc).__name__) from exc
        if isinstance(place, ApiError):
            raise place
        self.resume(runs.Claim(self.response_id))
        return place

    def resume(self, claim: runs.Claim, *, started_at: datetime | None = None) -> None:
        """It is open, whoever has opened it, and this process goes on with it. ``started_at``: where another did."""
        if started_at is not None:
            self._row["started_at"] = started_at
        if self._opened is None:
            self._opened = _DONE
        self.claim = claim
        checkpointer.watch(self)

    async def cannot_repeat(self) -> None:
        """What is done next has effects elsewhere, so it is not to be done again by another process.

        Raises:
            LeaseLost: another process has taken over.
        """
        if self.claim is None or self.has_effects:
            return
        self.has_effects = True
        if not await writer.write(partial(runs.write, self.claim, is_repeatable=False)):
            raise LeaseLost(self.response_id)

    def let_go(self) -> None:
        """Another process goes on with it: nothing more is written by this one."""
        self.is_closed = True
        checkpointer.forget(self)
        if self.reservation is not None:
            self.reservation.let_go()

    def _write_queued(self, stored: Stored, frames: Sequence[str], run: Mapping[str, Any]) -> Place | ApiError:
        """In the writer's thread."""
        project_id, response_id = self._principal.project_id, self.response_id
        if self._was_committed():
            return rows.place_of(project_id, response_id) or PreviousResponseNotFound(response_id)
        stored, error = ends.with_its_past(stored)
        if error is not None:
            return error
        place = ends.save(project_id, stored, timezone.now())
        sql.insert(UsageRecord, [self._row])
        runs.insert({**run, "response_id": response_id, "project_id": project_id, "next_number": len(frames)})
        if frames:
            events.insert_events(project_id, response_id, 0, frames)
        return place

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    async def wait_until_open(self) -> None:
        """No output may leave us before its beginning is durable. It hardly ever waits: engines are slower."""
        assert self._opened is not None, "a record is opened before its output"
        if not self._may_speak:
            if not self._opened.done():
                await durable(self._opened)
            self._opened.result()
        faultpoint("row.durable")

    def prepared(self, seconds: float, step: TokenStep | None) -> None:
        """One more call of an engine is made up, in so many seconds. ``step``: where it is asked in token ids, how its
        prompt becomes these is part of the record."""
        if self.first_token_ms is None:
            self._prepared_ms = (self._prepared_ms or 0.0) + seconds * 1000
        if step is not None:
            self._token_steps.append(step)

    def saw_first_token(self) -> None:
        if self.first_token_ms is None:
            self.render_ms = self._render_so_far()
            self.first_token_ms = (time.perf_counter() - self._received_at) * 1000

    def _render_so_far(self) -> float | None:
        if self._prepared_ms is None:
            return None
        return self._prepared_ms + sum(step.render_ms for step in self._token_steps)

    async def close(
        self,
        *,
        status: str,
        usage: Usage,
        reason: str = "",
        stored: Stored | None = None,
        appending: Appending | None = None,
    ) -> Place | Promised | None:
        """Make the end durable, with it the response and what it adds to its conversation.

        Returns where a stored response now ends.

        Raises:
            PreviousResponseNotFound: its parent, or itself, has been deleted meanwhile; the record is closed as failed.
            ConversationLocked: this process was not heard of for too long, and another turn has taken over; likewise.

        Shielded: a second cancellation, as at shutdown, must not lose it. Billing is kicked, never waited for.
        """
        assert not self.is_closed, "a record is closed once"
        self.is_closed = True
        checkpointer.forget(self)
        if self.events is not None:
            self.events.settle()
        if self._ticket is not None:
            self._ticket.used(usage)
        telling = None
        if self.reservation is not None:
            telling = self.reservation.ended(status, usage, self.count_calls())
        ended_at = time.perf_counter()
        ending = Ending(self._row, self._end_fields(status, usage, reason, ended_at), stored, appending, self.claim)
        faultpoint("end.before")
        closing: Awaitable[Place | Promised | None]
        if self._may_run_ahead(ending) and (file := promises.kept(ending)) is not None:
            closing = self._promise(ending, usage, file, ended_at)
        else:
            closing = asyncio.shield(background.spawn(self._close(ending, usage, ended_at)))
        try:
            return await closing
        finally:
            if telling is not None:
                # Told beside the commit. The client's next turn, which may come at once, finds what this one has cost.
                await asyncio.shield(telling)

    def _end_fields(self, status: str, usage: Usage, reason: str, ended_at: float) -> dict[str, Any]:
        if self.first_token_ms is None:
            self.render_ms = self._render_so_far()
        return {
            "status": status,
            "reason": reason[:64],
            "estimated": usage.estimated,
            **counts_of(usage),
            "tool_calls": self.count_calls(),
            "ended_at": timezone.now(),
            "render_ms": self.render_ms,
            "first_token_ms": self.first_token_ms,
            "duration_ms": (ended_at - self._received_at) * 1000,
            # Of several steps, the one that cost the most.
            "render_path": max((step.path or "" for step in self._token_steps), key=_PATHS.index, default=""),
            "rendered_tokens": sum(step.rendered_tokens for step in self._token_steps),
        }

    async def _close(self, ending: Ending, usage: Usage, ended_at: float) -> Place | None:
        status = "failed"
        try:
            end = await self._commit(ending)
            if not isinstance(end, ApiError):
                status = ending.fields["status"]
        finally:
            self._count_in(ending, status, usage, ended_at)
        faultpoint("end.durable")
        if isinstance(end, ApiError):
            dispatcher.kick()
            raise end
        self._follow_up(ending, usage)
        return end

    async def _commit(self, ending: Ending) -> Place | ApiError | None:
        """The end in the database. Where that does not take it in time, in the journal: but then its counts alone, and
        what was to be stored has failed.
        """
        if not isinstance(self._opening_failure(), sql.UNAVAILABLE):
            try:
                end = await durable(writer.submit(partial(ends.commit, ending)))
                for file in self._opening:
                    file.settle()
                return end
            except sql.UNAVAILABLE:
                pass
        if ending.claim is not None:
            # Whoever claims it when the database is back makes it anew, or says that it has failed.
            return LeaseLost(self.response_id)
        is_lost = ending.stored is not None or ending.appending is not None
        fields = {**ending.fields}
        if is_lost:
            fields |= {"status": UsageRecord.Status.FAILED, "reason": "database_unavailable"}
            # Where the database only did not answer, the other end may become durable yet: this one takes its place.
            fields["ended_at"] += timedelta(microseconds=1)
        told = Ending(ending.row, fields)
        try:
            file = journal.append(ends.encoded(told))
            await file.sync()
        except OSError as exc:
            logger.error("The counts of response %s are lost, the reaper will close it: %s", self.response_id, exc)
        else:
            writing = writer.submit(partial(ends.keep_word, told), patience=math.inf)
            promises.settle_when_written(writing, file, *self._opening)
        return unavailable("an end could not be written") if is_lost else None

    def _opening_failure(self) -> BaseException | None:
        """Why the row is not there, as far as that is known."""
        opened = self._opened
        return opened.exception() if opened is not None and opened.done() and not opened.cancelled() else None

    def _may_run_ahead(self, ending: Ending) -> bool:
        """Whether the client may be told of this end before the database is: of a plain turn that has gone well.

        A conversation and a background response are asked for by their ids elsewhere at any time; and a record that is
        not open yet would be missed by those who look whether a response is still to come.
        """
        if ending.appending is not None or not promises.may_run_ahead():
            return False
        is_open = self._opened is not None and self._opened.done() and self._opening_failure() is None
        return is_open and ending.claim is None and ending.fields["status"] != UsageRecord.Status.FAILED

    async def _promise(self, ending: Ending, usage: Usage, file: File, ended_at: float) -> Promised | None:
        """Have the end written that ``file`` has. Durable when this returns: where the disk fails, in the database."""
        promised = None
        try:
            faultpoint("journal.written")
            if ending.stored is None:
                write = partial(ends.keep_word, ending, is_new=self.is_absent)
                writing = writer.submit(write, patience=math.inf, lingers=True)
                promises.settle_when_written(writing, file, *self._opening)
                writing.add_done_callback(partial(self._was_kept, ending, usage, asyncio.get_running_loop()))
            else:
                # The turn goes on with its own; what is written later is how it is now.
                stored = msgspec.structs.replace(ending.stored, response={**ending.stored.response})
                ending = msgspec.structs.replace(ending, stored=stored)
                promised = Promised(ending.project_id, self.response_id, stored.end)
                writing = promised.writing = writer.submit(partial(ends.keep_word, ending, promised), patience=math.inf)
                promises.settle_when_written(writing, file)
                background.spawn(self._keep_promise(ending, promised, usage))
            if app_settings.JOURNAL_FSYNC and not await promises.synced(file):
                await durable(writing)
        finally:
            self._count_in(ending, str(ending.fields["status"]), usage, ended_at)
        return promised

    def _was_kept(
        self, ending: Ending, usage: Usage, loop: asyncio.AbstractEventLoop, writing: "Future[Place | None]"
    ) -> None:
        """In the writer's thread."""
        if (failure := writing.exception()) is not None:
            logger.error("The end of %s cannot be written: %s", self.response_id, type(failure).__name__)
            return
        faultpoint("end.durable")
        dispatcher.kick()
        if turn_finished.has_listeners() and not loop.is_closed():
            loop.call_soon_threadsafe(self._tell_listeners, ending, usage)

    async def _keep_promise(self, ending: Ending, promised: Promised, usage: Usage) -> None:
        place = await promised.when_written()
        faultpoint("end.durable")
        if place is None:
            # Deleted, as everything that continued what was deleted.
            hot_tier.forget(ending.project_id, {self.response_id})
            connections.forget_responses(ending.project_id, {self.response_id})
        self._follow_up(ending, usage)

    def _follow_up(self, ending: Ending, usage: Usage) -> None:
        """It is in the database: tell those who wait for nothing else."""
        dispatcher.kick()
        if turn_finished.has_listeners():
            self._tell_listeners(ending, usage)

    def _tell_listeners(self, ending: Ending, usage: Usage) -> None:
        background.spawn(dbpool.run(self._tell, str(ending.fields["status"]), usage))

    def _count_in(self, ending: Ending, status: str, usage: Usage, ended_at: float) -> None:
        model, checks_ms, reason = self._row["model"], self._row["checks_ms"], str(ending.fields["reason"])
        duration_ms, settle_ms = ending.fields["duration_ms"], (time.perf_counter() - ended_at) * 1000
        phases = _phases(checks_ms, self.render_ms or 0.0, self.first_token_ms, duration_ms, settle_ms)
        if self._ticket is not None:
            self._ticket.phases = phases
        metrics.turn_ended(
            transport=self._row["transport"],
            model=model,
            status=status,
            usage=usage,
            seconds=duration_ms / 1000,
            first_token_ms=self.first_token_ms,
            phases=phases,
        )
        for step in self._token_steps:
            if step.path is not None:
                metrics.step_rendered(model, step.path, step.rendered_tokens)
        if self._span is not NOTHING:
            self._tell_span(status, usage, reason)
        if logs.access.isEnabledFor(logging.INFO):
            details = {
                "transport": self._row["transport"],
                "model": model,
                "status": status,
                "reason": reason,
                "duration_ms": round(duration_ms, 1),
                "checks_ms": round(checks_ms, 1),
                "render_ms": self.render_ms and round(self.render_ms, 1),
                "first_token_ms": self.first_token_ms and round(self.first_token_ms, 1),
                "settle_ms": round(settle_ms, 1),
                **counts_of(usage),
            }
            logs.came_to_pass("turn ended", details)

    def _tell_span(self, status: str, usage: Usage, reason: str) -> None:
        self._span.set(
            {
                "gen_ai.response.id": self.response_id,
                "gen_ai.response.model": self._row["model"],
                "gen_ai.response.finish_reasons": [reason or status],
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
                "gen_ai.response.time_to_first_chunk": self.first_token_ms and self.first_token_ms / 1000,
                "responses_ws.project_id": self._principal.project_id,
                "responses_ws.key_id": self._principal.api_key_id,
            }
        )
        if status == "failed":
            self._span.fail(reason or status)

    def _tell(self, status: str, usage: Usage) -> None:
        """In a thread of the pool."""
        turn_finished.send_robust(
            sender=UsageRecord,
            response_id=self.response_id,
            project_id=self._principal.project_id,
            status=status,
            usage=usage,
        )


def _phases(
    checks_ms: float, render_ms: float, first_token_ms: float | None, duration_ms: float, settle_ms: float
) -> dict[str, float]:
    """Where a turn's time has gone: stretches of milliseconds that follow each other. What never said anything has
    waited for its first token until it ended."""
    spoke_ms = duration_ms if first_token_ms is None else first_token_ms
    return {
        "checks": checks_ms,
        "render": render_ms,
        "first_token": spoke_ms - checks_ms - render_ms,
        "rest": duration_ms - spoke_ms,
        "settle": settle_ms,
    }
