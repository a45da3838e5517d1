"""A request that was queued: put away with its response, and found again by the process that runs it."""

import time

import msgspec

from responses_ws.protocol.items import Item
from responses_ws.protocol.request import Request
from responses_ws.runtime.sealing import seal, unseal
from responses_ws.stores.base import StoredChain
from responses_ws.stores.runs import Taken

from .admission import Principal, enter_again
from .context import Asked, Context, Queued
from .conversations import hold_again

_PURPOSE = "background request"


class _Request(msgspec.Struct, kw_only=True):
    """Everything but the items, which are stored. Sealed: tools may come with credentials."""

    version: int = 1
    principal: Principal
    request: Request
    transport: str
    received_at: float
    """Seconds since the epoch."""
    new_items: int
    """How many of the stored items it brought."""
    instructions: str | list[Item] | None
    refusal: str | None


def seal_request(context: Context) -> str:
    """What `asked_again` reads."""
    asked = context.asked
    request = _Request(
        principal=asked.principal,
        request=msgspec.structs.replace(asked.request, input=None),
        transport=asked.transport,
        received_at=time.time() - (time.perf_counter() - asked.received_at),
        new_items=len(context.new_items),
        instructions=context.instructions,
        refusal=context.screening.refusal,
    )
    content = msgspec.json.encode(request)
    return seal(content, purpose=_PURPOSE, project_id=asked.principal.project_id, is_carried=False)


async def asked_again(taken: Taken, stored: StoredChain) -> Asked:
    """The request as it was when it was queued.

    Raises:
        ApiError: the conversation that it held has been taken by somebody else, or the key is gone that has sealed it.
        msgspec.DecodeError: another version of us has queued it.
    """
    content = unseal(taken.request, purpose=_PURPOSE, project_id=taken.project_id, param="input", may_be_old=True)
    found = msgspec.json.decode(content, type=_Request)
    start = stored.input_end - found.new_items
    hold = None
    if taken.holder:
        hold = await hold_again(taken.project_id, taken.conversation_id, taken.holder)
    return Asked(
        principal=found.principal,
        request=found.request,
        transport=found.transport,
        response_id=taken.claim.response_id,
        ticket=await enter_again(found.principal),
        hold=hold,
        queued=Queued(stored.items[start : stored.input_end], found.instructions, found.refusal),
        received_at=time.perf_counter() - max(0.0, time.time() - found.received_at),
    )
