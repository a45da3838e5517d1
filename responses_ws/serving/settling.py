"""The end of a response: durable, and where a continuation looks, before anybody is told."""

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.chain import CONTINUABLE, Link
from responses_ws.connection.turn import CANCELLED, Turn
from responses_ws.protocol.items import Item
from responses_ws.protocol.usage import Usage
from responses_ws.runtime import background
from responses_ws.stores.base import Place
from responses_ws.stores.lookup import redis_store
from responses_ws.stores.memory import hot_tier
from responses_ws.stores.redis import copied_ids

from .context import Context, Said
from .ending import Promised, Stored
from .recording import Record


async def settle(
    context: Context, turn: Turn, record: Record, usage: Usage, *, said: Said, begun: Place | None
) -> Link:
    """Make a closed turn durable and put its state where a continuation looks: before the terminal event.

    ``said``: gives the prompt its last output as it was sampled. ``begun``: where its input is stored already.

    Raises ApiError: its parent, itself or its conversation's lease has gone meanwhile.
    """
    asked, response = context.asked, turn.response
    hold, output = asked.hold, turn.kept_output
    if asked.request.moderation is not None:
        response["moderation"] = context.screening.moderation()
    if hold is not None and turn.status not in CONTINUABLE:
        await hold.release()
        hold = None
    stored = to_store(context, turn, output, begun=begun) if asked.request.is_stored else None
    place = await record.close(
        status=turn.status,
        usage=usage,
        reason=asked.why_cancelled if turn.status == CANCELLED else turn.incomplete_reason,
        stored=stored,
        appending=None if hold is None else hold.appending(context.new_items + output),
    )
    link = context.link(response, output[len(context.items) - context.input_end :], place, said)
    if hold is not None:
        hold.appended(link, len(context.new_items) + len(output))
    if hot_tier.has_forgotten(link.project_id, link.stored_ancestor):
        # Deleted while this ran: nothing goes on from what was said there.
        return link
    is_shared = stored is not None and stored.can_be_continued
    # A copy: steers that are kept for the next create live on this connection only.
    shared = msgspec.structs.replace(link, kept_input=[])
    if is_shared and app_settings.REDIS_URL:
        # Awaited by nobody: until it is there, others find the response in the database.
        if isinstance(place, Promised):
            background.spawn(_copy_when_written(place, (link, shared), context.parent))
        else:
            parent = _as_kept(context.parent)
            link.copied = shared.copied = copied_ids(link, parent)
            background.spawn(redis_store.save(link, parent))
    elif asked.fallback is not None and stored is None and hold is None and turn.status in CONTINUABLE:
        asked.fallback.keep(link, context.parent)
    # Before the terminal event: a fast client continues in the same millisecond.
    if asked.chains is not None:
        asked.chains.put(asked.stream_id, link)
    if is_shared:
        hot_tier.put(shared)
    return link


async def _copy_when_written(promised: Promised, links: tuple[Link, Link], parent: Link | None) -> None:
    """Put a response into Redis once the database has it: before that, a deletion would not find it."""
    place = await promised.when_written()
    if place is None:
        return
    parent = _as_kept(parent)
    written = msgspec.structs.replace(links[0], place=place)
    for link in (written, *links):
        link.copied = copied_ids(written, parent)
    await redis_store.save(written, parent)


def _as_kept(parent: Link | None) -> Link | None:
    """A parent where it is stored, also if that was a promise. To be asked when its child is written."""
    if parent is None or not isinstance(parent.place, Promised):
        return parent
    return msgspec.structs.replace(parent, place=parent.place.kept)


def to_store(context: Context, turn: Turn, output: list[Item], *, begun: Place | None) -> Stored:
    """The response as it is, with this output, to be kept: behind what is stored of its context already.

    Where nothing is, its context is written whole, once.
    """

    def input_from(start: int) -> list[Item]:
        return context.items.since(start)[: context.input_end - start]

    place = context.parent.place if context.parent is not None else None
    items = input_from(place.end if place is not None else 0) + output
    # A conversation outlives what was stored of it with a response.
    rewrite = None if context.asked.hold is None else lambda: input_from(0) + output
    return Stored(turn.response, place, items, context.input_end, begun, rewrite)
