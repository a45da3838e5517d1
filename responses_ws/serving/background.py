"""Background responses: accepted at once, run wherever there is a process, whoever listens or leaves."""

import asyncio
import logging

import msgspec
from django.db import transaction

from responses_ws.conf import app_settings
from responses_ws.models import BackgroundRun, StoredResponse
from responses_ws.protocol.errors import InvalidRequest, Overloaded
from responses_ws.protocol.request import JsonObject
from responses_ws.runtime import background, bus, dbpool
from responses_ws.runtime.drain import refuse_while_draining
from responses_ws.runtime.ids import new_id
from responses_ws.stores import rows

from . import runner
from .admission import enter
from .context import Asked
from .gathering import open_context
from .jobs import Job, running

logger = logging.getLogger(__name__)


async def start(asked: Asked) -> JsonObject:
    """Take a background request. Gives the queued Response; with ``stream``, its events are in the log.

    Raises:
        ApiError: refused; nothing has happened.
    """
    refuse_while_draining()
    response_id = asked.response_id or new_id("resp")
    ticket = asked.ticket or await enter(asked.principal, transport=asked.transport)
    asked = msgspec.structs.replace(asked, response_id=response_id, ticket=ticket)
    runs_here = not app_settings.BACKGROUND_RUNNERS
    try:
        context = await open_context(asked)
        ticket.reserve(context.estimated_input_tokens())
        await _find_place(runs_here=runs_here)
    except BaseException:
        if asked.hold is not None:
            await asked.hold.release()
        ticket.close()
        raise
    job = Job(context)
    background.spawn(job.queue_and_work(runs_here=runs_here))
    # Shielded: a client that leaves now may have been promised this response all the same.
    refusal = await asyncio.shield(job.accepted)
    if isinstance(refusal, Exception):
        raise refusal
    if runs_here:
        runner.watch()
    return refusal


async def _find_place(*, runs_here: bool) -> None:
    limits = app_settings.limits
    if runs_here:
        is_full = len(running) >= limits.background_turns
    else:
        is_full = await dbpool.run(BackgroundRun.objects.waiting().count) >= limits.background_waiting
    if is_full:
        raise Overloaded("Too many background responses are running. Please try again later.")


async def cancel(project_id: int, response_id: str) -> JsonObject | None:
    """Stop a background response and give it as it then is; None where there is no such.

    Wherever it runs: its own process is told through the database, and has ``LIMITS["cancel_seconds"]`` to obey.

    Raises:
        InvalidRequest: it is not a background response, or has ended by itself.
    """
    stored = await dbpool.run(rows.load, project_id, response_id)
    if stored is None:
        return None
    if not stored.response["background"]:
        raise InvalidRequest("Only responses made with 'background' can be cancelled.", code="invalid_request_error")
    status = stored.response["status"]
    if status == "cancelled":
        return stored.response
    if status not in StoredResponse.UNFINISHED:
        raise InvalidRequest(f"Cannot cancel a {status} response.", code="invalid_request_error")
    try:
        async with asyncio.timeout(app_settings.limits.cancel_seconds):
            await _end(project_id, response_id)
    except TimeoutError:
        logger.warning("Response %s does not end, though it was cancelled", response_id)
    stored = await dbpool.run(rows.load, project_id, response_id)
    return None if stored is None else stored.response


@transaction.atomic
def _request_cancel(project_id: int, response_id: str) -> None:
    rows.request_cancel(project_id, response_id)
    bus.tell("response_cancelled", response_id=response_id)


async def _end(project_id: int, response_id: str) -> None:
    job = running.get(response_id)
    if job is not None:
        job.cancel()
        await job.ended.wait()
    if await dbpool.run(rows.status_of, project_id, response_id) not in StoredResponse.UNFINISHED:
        return
    await dbpool.run(_request_cancel, project_id, response_id)
    # Perhaps nobody runs it: then its end is ours to write.
    await runner.take(response_id)
    while await dbpool.run(rows.status_of, project_id, response_id) in StoredResponse.UNFINISHED:
        await asyncio.sleep(app_settings.limits.background_poll_seconds)
        await runner.take(response_id)


def forget(response_ids: set[str]) -> None:
    """These were deleted or cancelled: what of them runs here has no reader any more."""
    for response_id in response_ids & running.keys():
        running[response_id].cancel()


def drain() -> None:
    """The process is to end: what has told nothing of its output yet goes to another one at once."""
    for job in list(running.values()):
        job.drain()


def stop() -> None:
    """The process ends: what another one can run from the start goes there, the rest fails and is recorded as such."""
    for job in list(running.values()):
        job.stop()
