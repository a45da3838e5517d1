"""What a process does for background responses beside running its own: it looks what others have left."""

import asyncio
import logging
import time
from collections.abc import Collection

import msgspec
from django.db import Error
from django.utils import timezone

from responses_ws.conf import app_settings
from responses_ws.models import StoredResponse, UsageRecord
from responses_ws.protocol.errors import ApiError, Overloaded, ServerError, response_error
from responses_ws.protocol.request import JsonObject
from responses_ws.runtime import background, dbpool, logs
from responses_ws.runtime.dispatcher import dispatcher
from responses_ws.runtime.drain import is_draining
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.writer import writer
from responses_ws.stores import conversations, rows, runs
from responses_ws.stores.base import StoredChain
from responses_ws.stores.runs import Claim, Taken

from .failures import told
from .gathering import open_context
from .jobs import Job, owner, running
from .queued import asked_again

logger = logging.getLogger(__name__)

_AT_ONCE = 16
"""Runs that a process takes over at one look, so that others get some, too."""
_PASSING = (Error, ServerError, Overloaded)
"""What may be otherwise in a moment: the database does not answer, or a classifier without which nothing may pass."""
_GONE = {"code": "server_error", "message": "The server that worked on this response has gone."}

_task: "asyncio.Task[None] | None" = None
_places = 0
"""How many responses this process may run that others have left."""
_taking = 0
_nudged = asyncio.Event()


def take_over(places: int) -> None:
    """From now on run what others have left, as long as no more than so many run here. 0: no more."""
    global _places
    _places = places
    if places:
        watch()


def watch() -> None:
    """Look around as long as there is a reason to. Idempotent."""
    global _task, _nudged
    loop = asyncio.get_running_loop()
    if _task is None or _task.done() or _task.get_loop() is not loop:
        _nudged = asyncio.Event()
        _task = loop.create_task(_look_around(), name="background responses", context=logs.of_nobody())


def nudge() -> None:
    """Something waits: look now."""
    _nudged.set()


async def stop() -> None:
    """Take nothing over any more, and stop looking."""
    global _task
    take_over(0)
    task, _task = _task, None
    # That of a loop which has ended went with it.
    if task is not None and task.get_loop() is asyncio.get_running_loop():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _look_around() -> None:
    global _taking
    renewed_at, was_down = 0.0, False
    while running or _places:
        limits = app_settings.limits
        try:
            async with asyncio.timeout(limits.background_poll_seconds):
                await _nudged.wait()
        except TimeoutError:
            pass
        _nudged.clear()
        claims = [job.claim for job in running.values() if job.claim is not None]
        is_due = time.monotonic() >= renewed_at + limits.background_lease_seconds / 4
        room = 0 if is_draining() else min(_places - len(running) - _taking, _AT_ONCE)
        try:
            seen = await dbpool.run(_look, claims, room, renews=is_due)
        except (ApiError, Error) as exc:
            if not was_down:
                logger.warning("Cannot look after background responses: %s", type(exc).__name__)
            was_down = True
            continue
        was_down = False
        if is_due:
            renewed_at = time.monotonic()
        for response_id in seen.unwanted & running.keys():
            running[response_id].cancel()
        for response_id in seen.lost & running.keys():
            running[response_id].lose()
        for taken in seen.taken:
            _taking += 1
            background.spawn(_take(taken))


class _Seen(msgspec.Struct):
    unwanted: set[str]
    """Cancelled or deleted."""
    lost: set[str]
    """Others run these now."""
    taken: list[Taken]


def _look(claims: Collection[Claim], room: int, *, renews: bool) -> _Seen:
    """In a thread of the pool."""
    unwanted = rows.unwanted([claim.response_id for claim in claims]) if claims else set()
    lost = runs.renew(claims) - unwanted if renews else set()
    return _Seen(unwanted, lost, runs.claim_some(room, owner()) if room > 0 else [])


async def take(response_id: str) -> None:
    """Go on with this one, if nobody runs it."""
    global _taking
    taken = await dbpool.run(runs.claim_one, response_id, owner())
    if taken is not None:
        _taking += 1
        await _take(taken)


async def _take(taken: Taken) -> None:
    """Begin to run it, or end it."""
    global _taking
    faultpoint("claim.after")
    try:
        await _run_or_end(taken)
    except _PASSING as exc:
        # It is ours until our claim lapses; then somebody tries again.
        logger.warning("Response %s cannot be taken over yet: %s", taken.claim.response_id, type(exc).__name__)
    finally:
        _taking -= 1


async def _run_or_end(taken: Taken) -> None:
    response_id = taken.claim.response_id
    stored = await dbpool.run(rows.load, taken.project_id, response_id)
    if stored is None:
        # Deleted.
        return
    if taken.is_unwanted:
        end = _End("cancelled", str(UsageRecord.Status.CANCELLED), "cancel_requested", None)
    elif stored.response["status"] not in StoredResponse.UNFINISHED:
        # It has waited for so long that the reaper has closed its usage record.
        end = _End("failed", str(UsageRecord.Status.ABANDONED), "lease_expired", _GONE)
    elif not taken.is_repeatable or taken.deaths >= app_settings.limits.background_deaths:
        logger.warning("Response %s: its process has died within it", response_id)
        end = _End("failed", str(UsageRecord.Status.ABANDONED), "lease_expired", _GONE)
    else:
        try:
            await _run(taken, stored)
            return
        except _PASSING:
            raise
        except Exception as exc:
            error = told(exc, response_id)
            end = _End("failed", str(UsageRecord.Status.FAILED), error.code or "", response_error(error))
    await writer.write(lambda: _end(taken, end))
    dispatcher.kick()


async def _run(taken: Taken, stored: StoredChain) -> None:
    """Begin to run it. Raises ApiError: it cannot be served any more."""
    asked = await asked_again(taken, stored)
    has_begun = False
    try:
        context = await open_context(asked)
        if is_draining():
            await dbpool.run(runs.hand_back, taken.claim)
            return
        background.spawn(Job(context).resume_and_work(stored, taken))
        has_begun = True
        watch()
    finally:
        if not has_begun:
            if asked.ticket is not None:
                asked.ticket.close()
            if asked.hold is not None:
                # Whoever goes on with it, or ends it, has it from the run.
                asked.hold.let_go()


class _End(msgspec.Struct, frozen=True):
    """How a response ends that nobody runs."""

    status: str
    record: str
    reason: str
    error: JsonObject | None


def _end(taken: Taken, end: _End) -> None:
    """In the writer's thread. The usage stays what its process has noted last."""
    response_id = taken.claim.response_id
    if not runs.end(taken.claim):
        return
    open_records = UsageRecord.objects.in_progress().filter(response_id=response_id)
    open_records.update(status=end.record, reason=end.reason[:64], ended_at=timezone.now())
    if taken.holder:
        conversations.release(taken.conversation_id, taken.holder)
    stored = rows.load(taken.project_id, response_id)
    if stored is None:
        return
    usage = UsageRecord.objects.get(response_id=response_id).usage
    response = {**stored.response, "status": end.status, "error": end.error, "usage": usage.wire()}
    rows.finish(response, stored.place, [])
