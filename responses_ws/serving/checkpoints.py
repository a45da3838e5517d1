"""Checkpoints: the counts of running turns, so that little of what was made is lost with the process that made it."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import msgspec
from django.utils import timezone

from responses_ws.models import UsageRecord
from responses_ws.protocol.usage import Usage
from responses_ws.runtime import logs, sql
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.writer import writer

LEASE = timedelta(seconds=60)
"""A reaper may close a record this long after its process was last heard of."""
SECONDS_BETWEEN = 1.0
"""Between two checkpoints of a turn whose counts change at all."""
TOKENS_BETWEEN = 32
"""Half of what a kill may cost: what is made while a checkpoint is looked for and written comes on top."""
_SECONDS_TO_RENEW = LEASE.total_seconds() / 4
_TICK = 0.025
_LONGEST_LOOK = 0.1
"""An engine that was silent may begin at any moment: even then nobody is looked at more rarely than this."""
_LARGEST_SHARE = 0.1
"""Of the writer's time. With more to write, checkpoints come later: each batch holds the newest counts only."""


class Counted(Protocol):
    """What is looked at: a usage record that is open."""

    count: Callable[[], Usage]
    count_calls: Callable[[], int]

    is_absent: bool
    """The database has not heard of it. Whoever writes about it writes all of it, and takes this away."""

    @property
    def response_id(self) -> str: ...

    @property
    def row(self) -> dict[str, Any]: ...


class _Watch(msgspec.Struct):
    """What is known of an open record. Times are of ``time.monotonic``."""

    written: Usage
    written_at: float
    seen_tokens: int
    seen_at: float
    look_at: float


class Checkpointer:
    """Looks at the counts of every open record as often as its pace asks for, and never at a token."""

    def __init__(self) -> None:
        self._open: dict[Counted, _Watch] = {}
        self._changed: dict[Counted, dict[str, Any]] = {}
        """The columns that are to be written next."""
        self._writing: Future[float] | None = None
        """Gives the seconds that it took."""
        self._rests_until = 0.0
        self._task: asyncio.Task[None] | None = None

    def watch(self, record: Counted) -> None:
        counted, now = record.count(), time.monotonic()
        self._open[record] = _Watch(counted, now, counted.output_tokens, now, now + _LONGEST_LOOK)
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._changed, self._writing = {}, None
            self._task = loop.create_task(self._run(), context=logs.of_nobody())

    def forget(self, record: Counted) -> None:
        """It is being closed: its end says more."""
        self._open.pop(record, None)
        self._changed.pop(record, None)

    async def _run(self) -> None:
        while self._open:
            await asyncio.sleep(_TICK)
            # No name of it stays here, and with it the turn that was looked at last.
            self._look_at_all(time.monotonic())

    def _look_at_all(self, now: float) -> None:
        for record, watch in self._open.items():
            if watch.look_at <= now:
                self._look(record, watch, now)
        if self._changed and self._rests_until <= now and self._has_written(now):
            batch, self._changed = self._changed, {}
            faultpoint("checkpoint.before")
            absent = [record for record in batch if record.is_absent]
            for record in absent:
                record.is_absent = False
            rows, columns = [record.row for record in absent], {record.response_id: batch[record] for record in batch}
            self._writing = writer.submit(partial(_write, rows, columns))
            self._writing.add_done_callback(_heard)

    def _look(self, record: Counted, watch: _Watch, now: float) -> None:
        counted = record.count()
        tokens = counted.output_tokens
        pace = (tokens - watch.seen_tokens) / (now - watch.seen_at)
        watch.seen_tokens, watch.seen_at = tokens, now
        watch.look_at = now + min(_LONGEST_LOOK, TOKENS_BETWEEN / pace if pace > 0 else _LONGEST_LOOK)
        age = now - watch.written_at
        is_much = tokens - watch.written.output_tokens >= TOKENS_BETWEEN
        if is_much or (age >= SECONDS_BETWEEN and counted != watch.written) or age >= _SECONDS_TO_RENEW:
            watch.written, watch.written_at = counted, now
            calls = record.count_calls()
            columns = {"estimated": counted.estimated, **counts_of(counted), "tool_calls": calls}
            self._changed[record] = columns

    def _has_written(self, now: float) -> bool:
        """Whether the last batch is through; and how long the writer has rest from us."""
        if self._writing is None:
            return True
        if not self._writing.done():
            return False
        seconds = 0.0 if self._writing.exception() is not None else self._writing.result()
        self._writing = None
        self._rests_until = now + seconds / _LARGEST_SHARE
        return self._rests_until <= now


def _heard(writing: "Future[float]") -> None:
    """A batch that could not be written is not written again: newer counts follow, and then the end."""
    writing.exception()


def _write(absent: list[dict[str, Any]], batch: dict[str, dict[str, Any]]) -> float:
    """In the writer's thread. A record that has ended meanwhile is left as it is."""
    started = time.perf_counter()
    if absent:
        sql.insert(UsageRecord, absent, unless="response_id")
    lease_until = timezone.now() + LEASE
    sql.update_many(
        UsageRecord,
        [
            (
                {"lease_until": lease_until, **columns},
                {"response_id": response_id, "status": UsageRecord.Status.IN_PROGRESS},
            )
            for response_id, columns in batch.items()
        ],
    )
    faultpoint("checkpoint.written")
    return time.perf_counter() - started


def counts_of(usage: Usage) -> dict[str, int]:
    """The columns of a usage record that count tokens."""
    return {
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


checkpointer = Checkpointer()
