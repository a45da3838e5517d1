"""The end of a response as the database is told it: its usage record closed, its content stored, in one commit.

What writes here runs in a thread with a connection and inside a transaction: the group writer's, or that of a replay.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any

import msgspec

from responses_ws.billing import ledger
from responses_ws.conf import app_settings
from responses_ws.connection.chain import CONTINUABLE
from responses_ws.models import UsageRecord
from responses_ws.protocol.errors import ApiError, ConversationLocked, PreviousResponseNotFound, ServerError
from responses_ws.protocol.items import Item
from responses_ws.runtime import sql
from responses_ws.runtime.faults import faultpoint
from responses_ws.stores import conversations, rows, runs
from responses_ws.stores.base import Place
from responses_ws.stores.conversations import Appending


class LeaseLost(ServerError):
    """The reaper has closed this record: its process was not heard of for too long. One of the two wins, and it has.
    Or, of a background response: another process has taken over.

    The turn then fails, whatever the engine made: the ledger will not say more than the last checkpoint; or than what
    the other process makes.
    """

    def __init__(self, response_id: str) -> None:
        super().__init__(f"The server was not heard of for too long, and has given response {response_id} up.")


class Stored(msgspec.Struct, frozen=True):
    """A response to be kept with its record, in the same commit."""

    response: dict[str, Any]
    parent: "Place | Promised | None"
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
    def end(self) -> int:
        """How many items its context and output have."""
        return len(self.items) + (self.parent.end if self.parent else 0)

    @property
    def can_be_continued(self) -> bool:
        return self.response["status"] in CONTINUABLE


class Ending(msgspec.Struct, frozen=True):
    """How a response ended."""

    row: dict[str, Any]
    """Its usage record as it was opened, by column."""
    fields: dict[str, Any]
    """What the end says of it: status, counts, times. In the journal none: it has only begun."""
    stored: Stored | None = None
    appending: Appending | None = None
    claim: runs.Claim | None = None
    """Of a background response: what gives this process the right to end it."""

    @property
    def response_id(self) -> str:
        return str(self.row["response_id"])

    @property
    def project_id(self) -> int:
        return int(self.row["project_id"])


class Promised:
    """Where a response will end that its client has been told of before the database."""

    def __init__(self, project_id: int, response_id: str, end: int) -> None:
        self._project_id = project_id
        self._response_id = response_id
        self.end = end
        self.kept: Place | None = None
        """Set when it is written."""
        self.writing: Future[Place | None] | None = None
        """The promise being kept; None where it is somebody else's, in a replay."""

    async def when_written(self) -> Place | None:
        """Wait until it is durable. None where nothing is stored: not asked for, or its past was deleted meanwhile."""
        assert self.writing is not None, "a promise of this process is being kept"
        # Shielded: who waits may be cancelled, the promise is not.
        return await asyncio.shield(asyncio.wrap_future(self.writing))

    def resolved(self) -> Place | None:
        """The place, for whoever is written after it; None where it was deleted, or its own parent was."""
        return self.kept or rows.place_of(self._project_id, self._response_id)


def commit(ending: Ending) -> Place | ApiError | None:
    """Write an end of which nobody has been told. Returns where it is stored, or why the turn fails after all."""
    faultpoint("end.begun")
    stored, appending, fields = ending.stored, ending.appending, ending.fields
    if ending.claim is not None and not runs.end(ending.claim) and rows.is_held(ending.response_id):
        is_ours = UsageRecord.objects.filter(response_id=ending.response_id, ended_at=fields["ended_at"]).exists()
        return _found(ending) if is_ours else LeaseLost(ending.response_id)
    error: ApiError | None = None
    if appending is not None and not conversations.append(appending):
        error = ConversationLocked(appending.conversation_id)
    elif stored is not None and stored.begun is None:
        stored, error = with_its_past(stored)
    if error is not None:
        fields = {**fields, "status": UsageRecord.Status.FAILED, "reason": error.code}
    if not _close_open(ending, fields):
        standing = UsageRecord.objects.filter(response_id=ending.response_id).first()
        if standing is None:
            # Its opening failed, or was never tried: the row is written whole.
            sql.insert(UsageRecord, [{**ending.row, **fields}])
        elif standing.ended_at == fields["ended_at"]:
            return _found(ending)
        else:
            return LeaseLost(ending.response_id)
    if stored is None or error is not None:
        return error
    if stored.begun is not None:
        place = rows.finish(stored.response, stored.begun, stored.items[stored.items_begun :])
        if place is None:
            return PreviousResponseNotFound(stored.response["previous_response_id"] or ending.response_id)
    else:
        place = save(ending.project_id, stored, fields["ended_at"])
    if appending is not None:
        conversations.remember_place(appending.conversation_id, place)
    faultpoint("end.written")
    return place


def keep_word(ending: Ending, promised: Promised | None = None, *, is_new: bool = False) -> Place | None:
    """Write an end that the client has been told: whatever stands there is made to agree.

    May run any number of times, here and in a replay: a record that has this end is left alone. Content whose past was
    deleted meanwhile is deleted with it. ``is_new``: its opening was not written, as far as is known.
    """
    faultpoint("end.begun")
    is_whole = is_new and sql.insert(UsageRecord, [{**ending.row, **ending.fields}], unless="response_id")
    if not is_whole and not _close_open(ending, ending.fields):
        standing = UsageRecord.objects.select_for_update().filter(response_id=ending.response_id).first()
        if standing is None:
            sql.insert(UsageRecord, [{**ending.row, **ending.fields}])
        elif standing.ended_at == ending.fields["ended_at"]:
            return _found(ending)
        else:
            # By the reaper, which knew no more than the last checkpoint; or by ourselves, and we were never told.
            ledger.correct(standing, ending.fields)
            if ending.stored is None and rows.status_of(ending.project_id, ending.response_id) in CONTINUABLE:
                rows.delete(ending.project_id, ending.response_id)
    if ending.stored is None:
        return None
    stored, error = with_its_past(ending.stored)
    if error is not None:
        return None
    place = save(ending.project_id, stored, ending.fields["ended_at"])
    if promised is not None:
        promised.kept = place
    faultpoint("end.written")
    return place


def reopen(ending: Ending) -> None:
    """Write how a turn began whose process has died: the reaper closes it, unless its end is told, too."""
    sql.insert(UsageRecord, [ending.row], unless="response_id")


def _close_open(ending: Ending, fields: dict[str, Any]) -> bool:
    """Whether the record was still open: whoever comes second changes nothing."""
    where = {"response_id": ending.response_id, "status": UsageRecord.Status.IN_PROGRESS}
    return bool(sql.update(UsageRecord, fields, where))


def _found(ending: Ending) -> Place | None:
    """This very end is there already: the connection was lost before the database could say so, or it was replayed."""
    return None if ending.stored is None else rows.place_of(ending.project_id, ending.response_id)


def with_its_past(stored: Stored) -> tuple[Stored, ApiError | None]:
    """What is to be stored, now that its parent may be gone; and the refusal, if it cannot do without."""
    parent = stored.parent
    if parent is None:
        return stored, None
    if isinstance(parent, Promised):
        parent = parent.resolved()
        stored = msgspec.structs.replace(stored, parent=parent)
    if parent is not None and rows.exists(parent):
        return stored, None
    if stored.rewrite is None:
        return stored, PreviousResponseNotFound(stored.response["previous_response_id"])
    return msgspec.structs.replace(stored, parent=None, items=stored.rewrite()), None


def save(project_id: int, stored: Stored, now: datetime) -> Place:
    """Store a response whose past is there."""
    assert not isinstance(stored.parent, Promised), "its past was looked for"
    return rows.save(
        project_id=project_id,
        response=stored.response,
        parent=stored.parent,
        items=stored.items,
        input_end=stored.input_end,
        expires_at=now + timedelta(days=app_settings.STORE_DAYS),
    )


class _Written(msgspec.Struct, array_like=True):
    """An `Ending` as it lies in the journal. Of a response that is not stored: numbers only."""

    row: dict[str, Any]
    fields: dict[str, Any]
    response: dict[str, Any] | None = None
    items: Sequence[Item] = ()
    input_end: int = 0
    parent_end: int | None = None
    """None: ``items`` are the whole context. Else they stand behind the end of ``previous_response_id``."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Written).decode


def encoded(ending: Ending) -> bytes:
    """For the journal. Raises what msgspec raises where an item holds what JSON does not."""
    stored = ending.stored
    if stored is None:
        return _encode(_Written(ending.row, ending.fields))
    parent_end = None if stored.parent is None else stored.parent.end
    return _encode(_Written(ending.row, ending.fields, stored.response, stored.items, stored.input_end, parent_end))


def decoded(record: bytes) -> Ending:
    """The other way round."""
    written = _decode(record)
    if written.response is None:
        return Ending(written.row, written.fields)
    parent = None
    if written.parent_end is not None:
        parent = Promised(int(written.row["project_id"]), written.response["previous_response_id"], written.parent_end)
    stored = Stored(written.response, parent, written.items, written.input_end)
    return Ending(written.row, written.fields, stored)
