"""``POST /v1/responses/compact``: a turn that only compacts, told in the form of that endpoint."""

from contextlib import aclosing

import msgspec

from responses_ws.conf import app_settings
from responses_ws.protocol.compaction import COMPACTION, CompactRequest, compaction_object
from responses_ws.protocol.errors import InvalidRequest, failure_of
from responses_ws.protocol.request import JsonObject

from .admission import Principal, Ticket
from .context import Asked
from .sealed import opened_compaction
from .turns import run_turn


async def compact(principal: Principal, request: CompactRequest, ticket: Ticket | None = None) -> JsonObject:
    """The compacted context, as a client passes it on: the user's messages and one sealed item.

    Raises:
        ApiError: refused, or the model has failed to summarise.
    """
    asked = Asked(principal=principal, request=request.as_turn(), transport="compact", ticket=ticket)
    if ticket is not None:
        asked.received_at = ticket.asked_at
    terminal = ""
    async with aclosing(run_turn(asked)) as runs:
        async for frames in runs:
            terminal = frames[-1]
    response = msgspec.json.decode(terminal)["response"]
    if response["error"] is not None:
        raise failure_of(response["error"])
    item, *more = response["output"]
    if more or item["type"] != COMPACTION:
        # The one thing that such a turn says.
        raise InvalidRequest(app_settings.SAFETY_REFUSAL, code="content_policy_violation", param="input")
    return compaction_object(
        compaction_id=response["id"],
        created_at=response["created_at"],
        context=opened_compaction(item, project_id=principal.project_id),
        item=item,
        usage=response["usage"],
    )
