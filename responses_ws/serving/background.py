"""Background responses: accepted at once, run as tasks of this process, whoever listens or leaves."""

import asyncio
import logging
from contextlib import aclosing, closing
from typing import Any

import msgspec
from django.db import Error, transaction

from responses_ws.conf import app_settings
from responses_ws.models import StoredResponse
from responses_ws.protocol.errors import ApiError, InvalidRequest, Overloaded, ServerError
from responses_ws.protocol.request import JsonObject
from responses_ws.runtime import background, bus, dbpool, logs
from responses_ws.runtime.drain import is_draining, running_turn
from responses_ws.runtime.ids import new_id
from responses_ws.stores import events, rows

from .admission import Ticket, enter
from .context import Asked, Context
from .gathering import open_context
from .mailbox import Mailbox
from .run import Run
from .sampling import Sign, Word
from .turns import conversation_let_go

logger = logging.getLogger(__name__)


async def start(asked: Asked) -> JsonObject:
    """Take a background request. Gives the queued Response; with ``stream``, its events are in the log.

    Raises:
        ApiError: refused; nothing has happened.
    """
    if is_draining():
        raise Overloaded("The server is about to restart. Please try again.")
    response_id = asked.response_id or new_id("resp")
    ticket = asked.ticket or await enter(asked.principal, transport=asked.transport)
    asked = msgspec.structs.replace(asked, response_id=response_id, ticket=ticket)
    try:
        context = await open_context(asked)
        ticket.reserve(context.estimated_input_tokens())
        if len(_running) >= app_settings.limits.background_turns:
            raise Overloaded("Too many background responses are running. Please try again later.")
    except BaseException:
        if asked.hold is not None:
            await asked.hold.release()
        ticket.close()
        raise
    job = _running[response_id] = _Job(context, ticket)
    background.spawn(job.work())
    # Shielded: a client that leaves now may have been promised this response all the same.
    refusal = await asyncio.shield(job.accepted)
    if isinstance(refusal, Exception):
        raise refusal
    return refusal


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
    job = _running.get(response_id)
    if job is not None:
        job.mailbox.put(Sign.CANCELLED)
    else:
        await dbpool.run(_request_cancel, project_id, response_id)
    try:
        async with asyncio.timeout(app_settings.limits.cancel_seconds):
            await _ended(job, project_id, response_id)
    except TimeoutError:
        logger.warning("Response %s does not end, though it was cancelled", response_id)
    stored = await dbpool.run(rows.load, project_id, response_id)
    return None if stored is None else stored.response


@transaction.atomic
def _request_cancel(project_id: int, response_id: str) -> None:
    rows.request_cancel(project_id, response_id)
    bus.tell("response_cancelled", response_id=response_id)


async def _ended(job: "_Job | None", project_id: int, response_id: str) -> None:
    if job is not None:
        await job.ended.wait()
        return
    while await dbpool.run(rows.status_of, project_id, response_id) in StoredResponse.UNFINISHED:  # noqa: ASYNC110
        await asyncio.sleep(app_settings.limits.background_poll_seconds)


def forget(response_ids: set[str]) -> None:
    """These were deleted: what of them runs here has no reader any more."""
    for response_id in response_ids & _running.keys():
        _running[response_id].mailbox.put(Sign.CANCELLED)


def stop() -> None:
    """The process ends: what still runs fails, and is recorded as such."""
    for job in _running.values():
        job.mailbox.put(ServerError("The server was restarted before this response was finished."))


class _Job:
    """One background response of this process."""

    def __init__(self, context: Context, ticket: Ticket) -> None:
        self._ticket = ticket
        self.mailbox: Mailbox[Word] = Mailbox()
        self.ended = asyncio.Event()
        """Nothing more will happen to the response."""
        self.accepted: asyncio.Future[JsonObject | Exception] = asyncio.get_running_loop().create_future()
        """The queued Response, or why there is none."""
        self._run = Run(context, self.mailbox)
        self._response_id = str(self._run.response["id"])
        self._project_id = context.asked.principal.project_id
        self._is_logged = bool(context.asked.request.stream)
        self._number = 0

    async def work(self) -> None:
        """The response, from queued to its end."""
        with running_turn(), closing(self._ticket):
            try:
                async with conversation_let_go(self._run.asked):
                    if await self._accept():
                        _watch()
                        await self._generate()
            finally:
                del _running[self._response_id]
                self.ended.set()
                await events.end(self._project_id, self._response_id)

    async def _accept(self) -> bool:
        try:
            frames = await self._run.queue()
        except Exception as exc:
            # Not ours to handle: whoever waits for the answer is told, and may try again at once.
            if self._run.asked.hold is not None:
                await self._run.asked.hold.release()
            self.accepted.set_result(exc)
            return False
        if self._is_logged:
            # The table has these: they came with the response.
            await events.memory_log.append(self._project_id, self._response_id, 0, frames)
            self._number = len(frames)
        self.accepted.set_result({**self._run.response})
        return True

    async def _generate(self) -> None:
        async with aclosing(self._run.generate()) as runs:
            async for frames in runs:
                if self._is_logged:
                    await events.append(self._project_id, self._response_id, self._number, frames)
                    self._number += len(frames)


_running: dict[str, _Job] = {}
"""By response id."""
_watcher: "asyncio.Task[Any] | None" = None


def _watch() -> None:
    """Look for cancellations from elsewhere as long as anything runs."""
    global _watcher
    loop = asyncio.get_running_loop()
    if _watcher is None or _watcher.done() or _watcher.get_loop() is not loop:
        _watcher = loop.create_task(_look_for_cancellations(), context=logs.of_nobody())


async def _look_for_cancellations() -> None:
    while _running:
        await asyncio.sleep(app_settings.limits.background_poll_seconds)
        try:
            forget(await dbpool.run(rows.unwanted, list(_running)))
        except (ApiError, Error) as exc:
            logger.warning("Cannot look for cancellations: %s", type(exc).__name__)
