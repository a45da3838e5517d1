"""The usage record of a turn: opened beside the engine call, closed before the terminal event."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
from django.utils import timezone

from responses_ws.conf import app_settings
from responses_ws.connection.chain import CONTINUABLE
from responses_ws.models import UsageRecord
from responses_ws.protocol.errors import ApiError, ConversationLocked, PreviousResponseNotFound
from responses_ws.protocol.items import Item
from responses_ws.protocol.usage import Usage
from responses_ws.runtime import background, dbpool, logs, metrics, sql
from responses_ws.runtime.dispatcher import dispatcher
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.tracing import NOTHING, Span
from responses_ws.runtime.writer import writer
from responses_ws.signals import turn_finished
from responses_ws.stores import conversations, events, rows, runs
from responses_ws.stores.base import Place
from responses_ws.stores.conversations import Appending

from .admission import Principal, Ticket
from .token_step import TokenStep

LEASE = timedelta(seconds=60)
"""A reaper may close a record this long after its process was last heard of."""
SECONDS_BETWEEN_CHECKPOINTS = 1.0
_PATHS = ("", "append", "rewind", "full")


class LeaseLost(Exception):
    """The reaper has closed this record: its process was not heard of for too long. One of the two wins, and it has.
    Or, of a background response: another process has taken over.

    The turn then fails, whatever the engine made: the ledger will not say more than the last checkpoint; or than what
    the other process makes.
    """


class Stored(msgspec.Struct, frozen=True):
    """A response to be kept with its record, in the same commit."""

    response: dict[str, Any]
    parent: Place | None
    items: Sequence[Item]
    """Behind the parent's end; without a stored parent, the whole context."""
    input_end: int
    begun: Place | None = None
    """Where it ends already, if it was stored when it was queued: only its output is missing."""
    rewrite: Callable[[], Sequence[Item]] | None = None
    """The whole context, where the parent only saves writing it: a conversation outlives the responses on it."""

    @property
    def items_begun(self) -> int:
        """How many of the items were stored when it was queued."""
        assert self.begun is not None, "it was queued"
        return self.begun.end - (self.parent.end if self.parent else 0)

    @property
    def can_be_continued(self) -> bool:
        return self.response["status"] in CONTINUABLE


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
        ticket: Ticket | None = None,
        span: Span = NOTHING,
    ) -> None:
        self._principal = principal
        self._ticket = ticket
        self._span = span
        self._received_at = received_at
        """When it was asked for, by `time.perf_counter`."""
        self.first_token_ms: float | None = None
        self.is_closed = False
        self.count = count
        """Tells what has been consumed so far; the checkpoint asks."""
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
            "lease_until": now + LEASE,
        }
        self._opened: Future[Any] | None = None
        self._token_steps: list[TokenStep] = []
        self.claim: runs.Claim | None = None
        """Of a background response: what gives this process the right to write about it."""
        self.events: events.EventWriter | None = None
        """Where its events go; None where it has no log."""
        self.has_effects = False
        """Tools were called for it: another process must not begin again."""

    @property
    def response_id(self) -> str:
        return str(self._row["response_id"])

    def open(self) -> None:
        """Hand the row to the group writer; `wait_until_open` says when it is durable."""
        faultpoint("row.before")
        self._opened = writer.submit(self._write_row)
        _checkpointer.watch(self)

    def _write_row(self) -> None:
        """In the writer's thread."""
        sql.insert(UsageRecord, [self._row])
        faultpoint("row.written")

    async def open_queued(self, stored: Stored, frames: Sequence[str], run: Mapping[str, Any]) -> Place:
        """Make the record durable together with all that others may ask for, or need to run it.

        ``frames`` are its first events, ``run`` the row of its `BackgroundRun`.

        Raises:
            PreviousResponseNotFound: its parent has been deleted meanwhile; nothing was written.
        """
        self._opened = writer.submit(lambda: self._write_queued(stored, frames, run))
        place = await asyncio.wrap_future(self._opened)
        if isinstance(place, ApiError):
            raise place
        self.resume(runs.Claim(self.response_id))
        return place

    def resume(self, claim: runs.Claim) -> None:
        """It is open, whoever has opened it, and this process goes on with it."""
        if self._opened is None:
            self._opened = Future()
            self._opened.set_result(None)
        self.claim = claim
        _checkpointer.watch(self)

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
        _checkpointer.forget(self)

    def _write_queued(self, stored: Stored, frames: Sequence[str], run: Mapping[str, Any]) -> Place | ApiError:
        """In the writer's thread."""
        stored, error = _with_its_past(stored)
        if error is not None:
            return error
        place = self._save(stored, timezone.now())
        sql.insert(UsageRecord, [self._row])
        project_id, response_id = self._principal.project_id, self.response_id
        runs.insert({**run, "response_id": response_id, "project_id": project_id, "next_number": len(frames)})
        if frames:
            events.insert_events(project_id, response_id, 0, frames)
        return place

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    async def wait_until_open(self) -> None:
        """No output may leave us before the row is durable. It hardly ever waits: engines are slower."""
        assert self._opened is not None, "a record is opened before its output"
        if not self._opened.done():
            await asyncio.shield(asyncio.wrap_future(self._opened))
        self._opened.result()
        faultpoint("row.durable")

    def rendered(self, step: TokenStep) -> None:
        """One more sampling step, asked in token ids: how its prompt is made is part of the record."""
        self._token_steps.append(step)

    def saw_first_token(self) -> None:
        if self.first_token_ms is None:
            self.first_token_ms = (time.perf_counter() - self._received_at) * 1000

    async def close(
        self,
        *,
        status: str,
        usage: Usage,
        reason: str = "",
        stored: Stored | None = None,
        appending: Appending | None = None,
    ) -> Place | None:
        """Make the end durable, with it the response and what it adds to its conversation.

        Returns where a stored response now ends.

        Raises:
            PreviousResponseNotFound: its parent, or itself, has been deleted meanwhile; the record is closed as failed.
            ConversationLocked: this process was not heard of for too long, and another turn has taken over; likewise.

        Shielded: a second cancellation, as at shutdown, must not lose it. Billing is kicked, never waited for.
        """
        assert not self.is_closed, "a record is closed once"
        self.is_closed = True
        _checkpointer.forget(self)
        if self.events is not None:
            self.events.settle()
        if self._ticket is not None:
            self._ticket.used(usage)
        return await asyncio.shield(background.spawn(self._close(status, usage, reason, stored, appending)))

    async def _close(
        self, status: str, usage: Usage, reason: str, stored: Stored | None, appending: Appending | None
    ) -> Place | None:
        now = timezone.now()
        duration_ms = (time.perf_counter() - self._received_at) * 1000
        fields = {
            "status": status,
            "reason": reason[:64],
            "estimated": usage.estimated,
            **_counts(usage),
            "ended_at": now,
            "first_token_ms": self.first_token_ms,
            "duration_ms": duration_ms,
            # Of several steps, the one that cost the most.
            "render_path": max((step.path or "" for step in self._token_steps), key=_PATHS.index, default=""),
            "rendered_tokens": sum(step.rendered_tokens for step in self._token_steps),
        }
        end: Place | ApiError | LeaseLost | None = None
        has_failed = True
        faultpoint("end.before")
        try:
            end = await writer.write(lambda: self._write_end(fields, stored, appending, now))
            has_failed = isinstance(end, Exception)
        finally:
            self._count_in("failed" if has_failed else status, usage, reason, duration_ms)
        faultpoint("end.durable")
        dispatcher.kick()
        if turn_finished.has_listeners():
            background.spawn(dbpool.run(self._tell, status, usage))
        if isinstance(end, Exception):
            raise end
        return end

    def _count_in(self, status: str, usage: Usage, reason: str, duration_ms: float) -> None:
        model = self._row["model"]
        metrics.turn_ended(
            transport=self._row["transport"],
            model=model,
            status=status,
            usage=usage,
            seconds=duration_ms / 1000,
            first_token_ms=self.first_token_ms,
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
                "reason": reason[:64],
                "duration_ms": round(duration_ms, 1),
                "first_token_ms": self.first_token_ms and round(self.first_token_ms, 1),
                **_counts(usage),
            }
            logs.came_to_pass("turn ended", details)

    def _tell_span(self, status: str, usage: Usage, reason: str) -> None:
        self._span.set(
            {
                "gen_ai.response.id": self.response_id,
                "gen_ai.response.model": self._row["model"],
                "gen_ai.response.finish_reasons": [reason[:64] or status],
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
            self._span.fail(reason[:64] or status)

    def _tell(self, status: str, usage: Usage) -> None:
        """In a thread of the pool."""
        turn_finished.send_robust(
            sender=UsageRecord,
            response_id=self.response_id,
            project_id=self._principal.project_id,
            status=status,
            usage=usage,
        )

    def _write_end(
        self, fields: dict[str, Any], stored: Stored | None, appending: Appending | None, now: datetime
    ) -> Place | ApiError | LeaseLost | None:
        """In the writer's thread. Returns where the response is stored, or why the turn fails after all."""
        faultpoint("end.begun")
        if self.claim is not None and not runs.end(self.claim) and rows.is_held(self.response_id):
            return LeaseLost(self.response_id)
        error: ApiError | None = None
        if appending is not None and not conversations.append(appending):
            error = ConversationLocked(appending.conversation_id)
        elif stored is not None and stored.begun is None:
            stored, error = _with_its_past(stored)
        if error is not None:
            fields = {**fields, "status": UsageRecord.Status.FAILED, "reason": error.code}
        where = {"response_id": self.response_id, "status": UsageRecord.Status.IN_PROGRESS}
        if not sql.update(UsageRecord, fields, where):
            if UsageRecord.objects.filter(response_id=self.response_id).exists():
                raise LeaseLost(self.response_id)
            # Its opening failed, or was never tried: the row is written whole.
            sql.insert(UsageRecord, [{**self._row, **fields}])
        if stored is None or error is not None:
            return error
        if stored.begun is not None:
            place = rows.finish(stored.response, stored.begun, stored.items[stored.items_begun :])
            if place is None:
                return PreviousResponseNotFound(stored.response["previous_response_id"] or self.response_id)
        else:
            place = self._save(stored, now)
        if appending is not None:
            conversations.remember_place(appending.conversation_id, place)
        faultpoint("end.written")
        return place

    def _save(self, stored: Stored, now: datetime) -> Place:
        return rows.save(
            project_id=self._principal.project_id,
            response=stored.response,
            parent=stored.parent,
            items=stored.items,
            input_end=stored.input_end,
            expires_at=now + timedelta(days=app_settings.STORE_DAYS),
        )


def _with_its_past(stored: Stored) -> tuple[Stored, ApiError | None]:
    """What is to be stored, now that its parent may be gone; and the refusal, if it cannot do without."""
    if stored.parent is None or rows.exists(stored.parent):
        return stored, None
    if stored.rewrite is None:
        return stored, PreviousResponseNotFound(stored.response["previous_response_id"])
    return msgspec.structs.replace(stored, parent=None, items=stored.rewrite()), None


def _counts(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


class _Checkpointer:
    """Writes the counts of running turns and renews their leases, awaited by nobody."""

    def __init__(self) -> None:
        self._open: dict[Record, tuple[Usage, float]] = {}
        """Per record what was last written, and when."""
        self._task: asyncio.Task[None] | None = None

    def watch(self, record: Record) -> None:
        self._open[record] = (record.count(), time.monotonic())
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._run(), context=logs.of_nobody())

    def forget(self, record: Record) -> None:
        self._open.pop(record, None)

    async def _run(self) -> None:
        while self._open:
            await asyncio.sleep(SECONDS_BETWEEN_CHECKPOINTS)
            now = time.monotonic()
            for record, (written, at) in list(self._open.items()):
                counted = record.count()
                if counted != written or now - at > LEASE.total_seconds() / 4:
                    self._open[record] = (counted, now)
                    faultpoint("checkpoint.before")
                    writer.submit(_checkpoint(record.response_id, counted))


def _checkpoint(response_id: str, counted: Usage) -> Callable[[], None]:
    def write() -> None:
        changes = {"lease_until": timezone.now() + LEASE, "estimated": counted.estimated, **_counts(counted)}
        where = {"response_id": response_id, "status": UsageRecord.Status.IN_PROGRESS}
        sql.update(UsageRecord, changes, where)
        faultpoint("checkpoint.written")

    return write


_checkpointer = _Checkpointer()
