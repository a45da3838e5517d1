"""The event log: what a stream has said, for those who come later or come back.

The events of a response are numbered from 0 without a gap. They are written by whoever runs it, a few at a time, and
told to anybody only then: no process that dies, and none that takes over, makes a number mean something else. The
terminal event is not written. It is made from the stored response, which is durable before that event is due.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal

from django.db import IntegrityError
from django.db.models import F

from responses_ws.conf import app_settings
from responses_ws.models import ResponseEvents, StoredResponse
from responses_ws.protocol import server_events
from responses_ws.runtime import dbpool, sql
from responses_ws.runtime.writer import writer

from . import rows, runs

Runs = AsyncGenerator[list[str], None]

Fate = Literal["ours", "another's", "deleted"]
"""What has become of a response that a process runs."""

_ROWS_AT_ONCE = 50
_UNWRITTEN = 1000
"""Frames that may wait for the group writer before their turn has to."""
_FOREWORD = frozenset({"response.created", "response.queued", "response.in_progress"})


def has_output(frames: Sequence[str]) -> bool:
    """Whether these say more than that the response is there."""
    return any(server_events.event_type(frame) not in _FOREWORD for frame in frames)


class MemoryLog:
    """The newest events of responses that run in this process: followers of these wait for no poll.

    Where they become too large, the oldest response is forgotten first, and its followers go on in the database.
    """

    def __init__(self) -> None:
        self._logs: dict[tuple[int, str], _Log] = {}
        self._bytes = 0

    def begin(self, project_id: int, response_id: str, first_number: int) -> None:
        """The next events of this response have numbers from this one on."""
        self.forget(project_id, response_id)
        self._logs[project_id, response_id] = _Log(first_number)

    def append(self, project_id: int, response_id: str, frames: Sequence[str]) -> None:
        log = self._logs.get((project_id, response_id))
        if log is None:
            return
        log.frames += frames
        size = sum(map(len, frames))
        log.size += size
        self._bytes += size
        log.wake()
        while self._bytes > app_settings.limits.event_log_bytes:
            self.forget(*next(iter(self._logs)))

    def forget(self, project_id: int, response_id: str) -> None:
        """Nothing more is appended. Idempotent."""
        log = self._logs.pop((project_id, response_id), None)
        if log is not None:
            self._bytes -= log.size
            log.wake()

    def find(self, project_id: int, response_id: str, number: int) -> "_Log | None":
        """The log that has the event of this number, or will have it."""
        log = self._logs.get((project_id, response_id))
        return log if log is not None and number >= log.first_number else None

    def __len__(self) -> int:
        return len(self._logs)


class _Log:
    def __init__(self, first_number: int) -> None:
        self.first_number = first_number
        self.frames: list[str] = []
        self.size = 0
        self.news = asyncio.Event()
        """Set, and replaced, when there is more to read, or when there will be no more."""

    def wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


memory_log = MemoryLog()


class EventWriter:
    """The events of one response that runs here, on their way into the log.

    ``stopped``: called where they are not written, with what went wrong; or with what has become of the response.
    """

    def __init__(
        self, project_id: int, claim: runs.Claim, number: int, stopped: Callable[[Exception | Fate], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._project_id = project_id
        self._claim = claim
        self._number = number
        """Of the first event that waits."""
        self._waiting: list[str] = []
        self._stopped = stopped
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        """Loop time before which nothing more is written."""
        self._writing: Future[Fate] | None = None
        self._is_settled = False
        memory_log.begin(project_id, claim.response_id, number)

    async def tell(self, frames: Sequence[str]) -> None:
        """Write these soon. Waits only where too much is waiting already."""
        if self._is_settled:
            # The terminal event: others make it from what has been stored.
            memory_log.append(self._project_id, self._claim.response_id, frames)
            return
        self._waiting += frames
        if self._timer is None:
            seconds = self._due_at - self._loop.time()
            if seconds <= 0:
                self.flush()
            else:
                self._timer = self._loop.call_later(seconds, self.flush)
        if len(self._waiting) > _UNWRITTEN and self._writing is not None:
            self.flush()
            await self._written()

    def flush(self) -> None:
        """Hand over everything that waits. The writer keeps the order: what is submitted later is committed later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        frames, self._waiting = self._waiting, []
        if not frames:
            return
        insert = partial(_insert, self._project_id, self._claim, self._number, frames)
        self._number += len(frames)
        self._due_at = self._loop.time() + app_settings.limits.background_log_seconds
        self._writing = writer.submit(insert)
        self._writing.add_done_callback(lambda written: self._loop.call_soon_threadsafe(self._hear, written, frames))

    def settle(self) -> None:
        """The response ends with the write that is submitted next."""
        self.flush()
        self._is_settled = True

    async def end(self) -> None:
        """Nothing more is told. All of it has been written when this returns."""
        self.flush()
        await self._written()
        memory_log.forget(self._project_id, self._claim.response_id)

    async def _written(self) -> None:
        """Everything that was handed over is durable, or has failed."""
        if self._writing is not None:
            await asyncio.gather(asyncio.wrap_future(self._writing), return_exceptions=True)

    def _hear(self, writing: "Future[Fate]", frames: list[str]) -> None:
        """``frames`` have been written, or not."""
        fate: Exception | Fate
        try:
            fate = writing.result()
        except Exception as failure:
            fate = failure
        if fate == "ours":
            memory_log.append(self._project_id, self._claim.response_id, frames)
            return
        # Whoever follows goes on in the database.
        memory_log.forget(self._project_id, self._claim.response_id)
        self._stopped(fate)


def _insert(project_id: int, claim: runs.Claim, number: int, frames: Sequence[str]) -> Fate:
    """In the writer's thread."""
    changes = {"is_repeatable": False} if has_output(frames) else {}
    if runs.advance(claim, number, len(frames), **changes):
        insert_events(project_id, claim.response_id, number, frames)
        return "ours"
    next_number = runs.next_number(claim)
    if next_number is None:
        return "another's" if rows.is_held(claim.response_id) else "deleted"
    if next_number < number + len(frames):
        raise IntegrityError("events before these were not written")
    # An earlier try has come through, and only its answer was lost with the connection.
    return "ours"


def insert_events(project_id: int, response_id: str, number: int, frames: Sequence[str]) -> None:
    """Write events inside the transaction of a caller who holds the response's run."""
    row = {"project_id": project_id, "response_id": response_id, "first_number": number, "count": len(frames)}
    sql.insert(ResponseEvents, [{**row, "frames": "\n".join(frames)}])


def is_logged(project_id: int, response_id: str) -> bool:
    """Whether this response has a log, still."""
    return ResponseEvents.objects.of(project_id, response_id).exists()


async def follow(project_id: int, response_id: str, starting_after: int) -> Runs:
    """Frames numbered above ``starting_after``, in order: what is there, then live, up to the terminal event.

    Use it in ``aclosing``. Wherever the response runs: what this process has in its memory is read there, all else in
    the database. Ends early where there is no more of it, since it has been deleted or was too long ago. An empty run
    says that nothing has been told for long: a response that waits for a process is silent.
    """
    loop, limits = asyncio.get_running_loop(), app_settings.limits
    number, spoke_at = starting_after + 1, loop.time()
    while True:
        log = memory_log.find(project_id, response_id, number)
        if log is not None:
            news = log.news
            frames = log.frames[number - log.first_number :]
            if not frames:
                await news.wait()
                continue
        else:
            frames, has_ended = await dbpool.run(_read, project_id, response_id, number)
            if not frames and has_ended:
                return
            if not frames:
                if loop.time() > spoke_at + limits.keep_alive_seconds:
                    spoke_at = loop.time()
                    yield []
                await asyncio.sleep(limits.background_poll_seconds)
                continue
        spoke_at = loop.time()
        number += len(frames)
        yield frames
        if server_events.event_type(frames[-1]) in server_events.TERMINAL:
            return


def _read(project_id: int, response_id: str, number: int) -> tuple[list[str], bool]:
    """Events from this number on, as many as there are or as are read at once; and whether no more will be written."""
    # Asked before the events: what came before an end is then seen with it.
    status = rows.status_of(project_id, response_id)
    if status is None:
        return [], True
    log = ResponseEvents.objects.of(project_id, response_id)
    found = log.filter(first_number__gt=number - F("count")).values_list("first_number", "frames")[:_ROWS_AT_ONCE]
    frames: list[str] = []
    for first_number, text in found:
        frames += text.split("\n")[max(0, number - first_number) :]
    has_ended = status not in StoredResponse.UNFINISHED
    if has_ended and not frames:
        frames = _terminal(project_id, response_id, number)
    return frames, has_ended


def _terminal(project_id: int, response_id: str, number: int) -> list[str]:
    """The event that ends a response which has ended, if it has this number."""
    last = ResponseEvents.objects.of(project_id, response_id).last()
    if last is None or last.first_number + last.count != number:
        return []
    stored = rows.load(project_id, response_id)
    if stored is None:
        return []
    event = server_events.terminal_event(stored.response)
    response = server_events.encode_response(stored.response)
    return [server_events.encode(event(sequence_number=number, response=response))]
