"""The event log: what a stream has said, for those who come later or come back."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from responses_ws.conf import app_settings
from responses_ws.models import ResponseEvent, StoredResponse
from responses_ws.protocol import server_events
from responses_ws.runtime import dbpool, sql
from responses_ws.runtime.writer import writer

from . import rows

Runs = AsyncGenerator[list[str], None]

_READ_AT_ONCE = 500
_UNWRITTEN = 64
"""Runs of frames that may wait for the group writer before their turn has to."""


class EventLog(ABC):
    """Keeps the events of responses that were asked for in the background and as a stream.

    The events of a response are numbered from 0 without a gap, so a frame's place in the log is its
    ``sequence_number``. One process, the one that runs the response, appends; any may follow. The owner is part of
    every question. What a log keeps is bounded: where it no longer has what is asked for, following it just ends.
    """

    @abstractmethod
    async def append(self, project_id: int, response_id: str, number: int, frames: Sequence[str]) -> None:
        """Keep these frames, the first of which has this number. Waits only where too much is waiting already."""

    @abstractmethod
    async def end(self, project_id: int, response_id: str) -> None:
        """Nothing more will be appended."""

    @abstractmethod
    def follow(self, project_id: int, response_id: str, starting_after: int) -> Runs:
        """Frames numbered above ``starting_after``, in order: what is there, then live, up to the terminal event.

        Use it in ``aclosing``. Ends early where this log has no more of them, which is no error.
        """


class MemoryLog(EventLog):
    """The responses that run in this process. Where they become too large, the oldest is forgotten first."""

    def __init__(self) -> None:
        self._logs: dict[tuple[int, str], _Log] = {}
        self._bytes = 0

    async def append(self, project_id: int, response_id: str, number: int, frames: Sequence[str]) -> None:
        key = (project_id, response_id)
        if number == 0:
            self._logs[key] = _Log()
        log = self._logs.get(key)
        if log is None:
            return
        log.frames += frames
        size = sum(map(len, frames))
        log.size += size
        self._bytes += size
        news, log.news = log.news, asyncio.Event()
        news.set()
        while self._bytes > app_settings.limits.event_log_bytes:
            self._forget(next(iter(self._logs)))

    async def end(self, project_id: int, response_id: str) -> None:
        self._forget((project_id, response_id))

    async def follow(self, project_id: int, response_id: str, starting_after: int) -> Runs:
        log = self._logs.get((project_id, response_id))
        position = starting_after + 1
        while log is not None:
            news = log.news
            frames = log.frames[position:]
            if frames:
                position += len(frames)
                yield frames
                if _is_last(frames[-1]):
                    return
            elif log.is_forgotten:
                return
            else:
                await news.wait()

    def _forget(self, key: tuple[int, str]) -> None:
        log = self._logs.pop(key, None)
        if log is not None:
            self._bytes -= log.size
            # Whoever is still reading goes on in the database.
            log.frames = []
            log.is_forgotten = True
            log.news.set()

    def __len__(self) -> int:
        return len(self._logs)


class _Log:
    def __init__(self) -> None:
        self.frames: list[str] = []
        self.size = 0
        self.news = asyncio.Event()
        """Set, and replaced, when there is more to read."""
        self.is_forgotten = False


class DatabaseLog(EventLog):
    """A table: any process can follow, by looking again and again. Written by the group writer, in order.

    What was appended before a response's end is committed no later than that end.
    """

    def __init__(self) -> None:
        self._unwritten: dict[str, deque[Future[None]]] = {}

    async def append(self, project_id: int, response_id: str, number: int, frames: Sequence[str]) -> None:
        unwritten = self._unwritten.setdefault(response_id, deque())
        unwritten.append(writer.submit(lambda: insert_events(project_id, response_id, number, frames)))
        while unwritten and (unwritten[0].done() or len(unwritten) > _UNWRITTEN):
            await asyncio.wrap_future(unwritten.popleft())

    async def end(self, project_id: int, response_id: str) -> None:
        unwritten = self._unwritten.pop(response_id, deque())
        await asyncio.gather(*map(asyncio.wrap_future, unwritten))

    async def follow(self, project_id: int, response_id: str, starting_after: int) -> Runs:
        number = starting_after
        while True:
            # Asked before the frames: what came before an end is then seen with it.
            status = await dbpool.run(rows.status_of, project_id, response_id)
            if status is None:
                return
            has_ended = status not in StoredResponse.UNFINISHED
            frames = await dbpool.run(_read, project_id, response_id, number)
            if has_ended and not frames:
                frames = await dbpool.run(_rest, project_id, response_id, number)
                if not frames:
                    return
            if frames:
                number += len(frames)
                yield frames
                if _is_last(frames[-1]):
                    return
            else:
                await asyncio.sleep(app_settings.limits.background_poll_seconds)


def insert_events(project_id: int, response_id: str, number: int, frames: Sequence[str]) -> None:
    """Write events, inside the caller's transaction. Of a response that was deleted meanwhile nothing is kept."""
    if not rows.is_held(response_id):
        return
    shared: dict[str, Any] = {"project_id": project_id, "response_id": response_id}
    sql.insert(
        ResponseEvent,
        [{**shared, "sequence_number": number + offset, "frame": frame} for offset, frame in enumerate(frames)],
    )


def is_logged(project_id: int, response_id: str) -> bool:
    """Whether this response has a log."""
    return ResponseEvent.objects.of(project_id, response_id).exists()


def _read(project_id: int, response_id: str, starting_after: int) -> list[str]:
    events = ResponseEvent.objects.of(project_id, response_id).filter(sequence_number__gt=starting_after)
    return list(events.values_list("frame", flat=True)[:_READ_AT_ONCE])


def _rest(project_id: int, response_id: str, starting_after: int) -> list[str]:
    """Of a response that has ended: what was written just now; or its terminal event, if nobody lived to write it."""
    stored = rows.load(project_id, response_id)
    frames = _read(project_id, response_id, starting_after)
    if frames:
        return frames
    last = ResponseEvent.objects.of(project_id, response_id).last()
    if last is None or stored is None or _is_last(last.frame) or last.sequence_number != starting_after:
        return []
    event = server_events.terminal_event(stored.response)
    response = server_events.encode_response(stored.response)
    return [server_events.encode(event(sequence_number=last.sequence_number + 1, response=response))]


def _is_last(frame: str) -> bool:
    return server_events.event_type(frame) in server_events.TERMINAL


memory_log = MemoryLog()
database_log = DatabaseLog()


async def append(project_id: int, response_id: str, number: int, frames: Sequence[str]) -> None:
    """Keep frames in every log."""
    await memory_log.append(project_id, response_id, number, frames)
    await database_log.append(project_id, response_id, number, frames)


async def end(project_id: int, response_id: str) -> None:
    """Nothing more will be appended: all of it is durable when this returns, and no longer in memory."""
    try:
        await database_log.end(project_id, response_id)
    finally:
        await memory_log.end(project_id, response_id)


async def follow(project_id: int, response_id: str, starting_after: int) -> Runs:
    """Follow a response wherever it runs: from this process's memory, then from the database."""
    number = starting_after
    for log in (memory_log, database_log):
        async with aclosing(log.follow(project_id, response_id, number)) as runs:
            async for frames in runs:
                number += len(frames)
                yield frames
                if _is_last(frames[-1]):
                    return
