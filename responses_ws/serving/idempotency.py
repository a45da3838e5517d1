"""``Idempotency-Key``: the same request sent twice has one response.

A key belongs to one API key for 24 hours and to one response, whose id is fixed before it begins. What became of that
response is asked of its usage record, so that a process that dies leaves nothing to tidy up here. Content is not
kept: a response with ``store: false`` cannot be given again, and the client is told so.
"""

import asyncio
import hashlib
import hmac
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone

from responses_ws.models import IdempotencyKey, UsageRecord
from responses_ws.protocol.errors import Conflict, InvalidRequest
from responses_ws.runtime import background, dbpool
from responses_ws.runtime.ids import new_id
from responses_ws.runtime.writer import writer
from responses_ws.stores import rows

from .admission import Principal
from .checkpoints import LEASE

_MAX_LENGTH = 255


class Claim(msgspec.Struct, frozen=True):
    """What a request under a key has to do: run as ``response_id``, or give ``earlier`` again."""

    response_id: str
    earlier: dict[str, Any] | None = None
    """The Response of the same request, finished or running in the background."""

    async def release(self) -> None:
        """Nothing has begun: the key is free again when this returns, even if the request is cancelled meanwhile."""
        await asyncio.shield(background.spawn(writer.write(self._delete)))

    def _delete(self) -> None:
        IdempotencyKey.objects.filter(response_id=self.response_id).delete()


async def claim(principal: Principal, key: str, body: bytes) -> Claim:
    """Claim a key for a request with this body.

    Raises:
        InvalidRequest: no key we would take.
        Conflict: used for another body; or the same request still runs, or its result was not kept.
    """
    if not key or len(key) > _MAX_LENGTH or not key.isprintable():
        raise InvalidRequest(
            f"Expected 1 to {_MAX_LENGTH} printable characters in 'Idempotency-Key'.", param="Idempotency-Key"
        )
    mine = IdempotencyKey(
        project_id=principal.project_id,
        scope=_scope_of(principal),
        key=key,
        body_digest=hmac.new(settings.SECRET_KEY.encode(), body, hashlib.sha256).digest(),
        response_id=new_id("resp"),
    )
    standing = await writer.write(lambda: _insert(mine))
    if standing is None:
        raise _in_use(key)
    if standing.response_id == mine.response_id:
        return Claim(mine.response_id)
    if bytes(standing.body_digest) != mine.body_digest:
        raise Conflict(
            f"The idempotency key {key!r} was used before, for another request.", code="idempotency_key_reused"
        )
    earlier = await dbpool.run(_result_of, standing)
    if earlier is not None:
        return Claim(standing.response_id, earlier)
    if not await writer.write(lambda: _take_over(standing, mine)):
        raise _in_use(key)
    return Claim(mine.response_id)


def _scope_of(principal: Principal) -> str:
    if principal.api_key_id is None:
        return f"project:{principal.project_id}"
    return f"key:{principal.api_key_id}"


def _insert(mine: IdempotencyKey) -> IdempotencyKey | None:
    """The row that holds this key now: ours, or the one that was there. None if that was released at this moment."""
    same = IdempotencyKey.objects.filter(scope=mine.scope, key=mine.key)
    same.expired().delete()
    IdempotencyKey.objects.bulk_create([mine], ignore_conflicts=True)
    return same.first()


def _take_over(standing: IdempotencyKey, mine: IdempotencyKey) -> int:
    """One of those who try wins."""
    unchanged = IdempotencyKey.objects.filter(pk=standing.pk, response_id=standing.response_id)
    return unchanged.update(response_id=mine.response_id, created_at=timezone.now())


def _result_of(standing: IdempotencyKey) -> dict[str, Any] | None:
    """The Response that this key stands for; None where there will never be one, so that the request may run again.

    Raises:
        Conflict: there is no telling yet, or there was one and it is gone.
    """
    # In this order: a record ends together with its response.
    record = UsageRecord.objects.filter(response_id=standing.response_id).first()
    stored = rows.load(standing.project_id, standing.response_id)
    if stored is not None:
        return stored.response
    if record is None:
        if standing.created_at + LEASE < timezone.now():
            return None
        raise _in_use(standing.key)
    if record.status == UsageRecord.Status.IN_PROGRESS:
        raise _in_use(standing.key)
    if record.status in (UsageRecord.Status.CANCELLED, UsageRecord.Status.ABANDONED):
        # Its client has left, or its process has died: nobody has seen an end.
        return None
    raise Conflict(
        f"The request with the idempotency key {standing.key!r} was served as {standing.response_id}, "
        "and its response is not kept: it was made with 'store' false, or has been deleted.",
        code="idempotency_result_not_kept",
    )


def _in_use(key: str) -> Conflict:
    return Conflict(
        f"A request with the idempotency key {key!r} is still running.", code="idempotency_key_in_use", is_passing=True
    )
