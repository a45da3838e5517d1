"""A turn on a conversation: the conversation held while it runs, its items as context, and what is added to it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import msgspec
from django.utils import timezone

from responses_ws.connection.chain import Link
from responses_ws.connection.log import SharedLog
from responses_ws.models import Conversation
from responses_ws.protocol.compaction import COMPACTION, in_place
from responses_ws.protocol.errors import ConversationLocked, ConversationNotFound, Overloaded
from responses_ws.protocol.ids import is_well_formed
from responses_ws.protocol.items import Item, calls_left_open
from responses_ws.rendering.chat import ChatPrompt, Medium
from responses_ws.runtime import background, dbpool
from responses_ws.runtime.ids import new_id
from responses_ws.runtime.writer import writer
from responses_ws.stores import conversations
from responses_ws.stores.conversations import Appending
from responses_ws.stores.memory import hot_tier

from .sealed import opened_context

LEASE = timedelta(seconds=60)
"""A conversation is free again this long after the process of its turn was last heard of."""


class Hold:
    """The right to write one conversation, for as long as one turn runs. Whoever takes it releases it."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LEASE.total_seconds() / 4, self._renew)

    @property
    def id(self) -> str:
        return str(self.conversation.pk)

    @property
    def holder(self) -> str:
        return self.conversation.holder

    def appending(self, items: Sequence[Item]) -> Appending:
        """What the turn adds at its end. Writing it releases the conversation."""
        return Appending(self.id, self.conversation.holder, self.conversation.length, items)

    def appended(self, link: Link, added: int) -> None:
        """It has been written: the next turn continues from here, in this process at once."""
        self._end()
        position = self.conversation.length + added
        hot_tier.put(msgspec.structs.replace(link, response_id=_hot_key(self.conversation), position=position))

    async def release(self) -> None:
        """Let go; idempotent. Durable when this returns, so that a client may try again at once."""
        if self._is_over:
            return
        self._end()
        releasing = writer.write(partial(conversations.release, self.id, self.conversation.holder))
        # Where the database is down, its time runs out.
        with suppress(Overloaded):
            # Shielded: a second cancellation, as at shutdown, must not lose it.
            await asyncio.shield(background.spawn(releasing))

    def let_go(self) -> None:
        """Somebody else goes on with the turn, and holds it for that."""
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._timer.cancel()

    def _renew(self) -> None:
        writer.submit(partial(conversations.renew, self.id, self.conversation.holder, timezone.now() + LEASE))
        self._timer = self._loop.call_later(LEASE.total_seconds() / 4, self._renew)


async def hold(project_id: int, conversation_id: str) -> Hold:
    """Take a conversation for one turn.

    Raises:
        ConversationNotFound: unknown, foreign and deleted look the same.
        ConversationLocked: another turn has it, in whichever process.
    """
    if not is_well_formed(conversation_id):
        raise ConversationNotFound(conversation_id[:128])
    holder, now = new_id("hold"), timezone.now()
    lock = partial(conversations.lock, project_id, conversation_id, holder=holder, now=now, until=now + LEASE)
    try:
        found = await writer.write(lock)
    except asyncio.CancelledError:
        # It may be taken all the same; the writer keeps the order.
        writer.submit(partial(conversations.release, conversation_id, holder))
        raise
    if found is None:
        raise ConversationNotFound(conversation_id)
    if found.holder != holder:
        raise ConversationLocked(conversation_id)
    return Hold(found)


async def hold_again(project_id: int, conversation_id: str, holder: str) -> Hold:
    """Go on with a turn that holds the conversation by this name. Raises ConversationLocked: it holds it no more."""
    found = await dbpool.run(conversations.find, project_id, conversation_id)
    if found is None or found.holder != holder:
        raise ConversationLocked(conversation_id)
    return Hold(found)


async def find_conversation(project_id: int, conversation_id: str) -> Conversation:
    """The conversation of this project, to be read. Raises ConversationNotFound."""
    found = None
    if is_well_formed(conversation_id):
        found = await dbpool.run(conversations.find, project_id, conversation_id)
    if found is None:
        raise ConversationNotFound(conversation_id[:128])
    return found


async def link_of(conversation: Conversation, takes: frozenset[Medium]) -> Link:
    """Everything that a turn on it continues, for an engine that ``takes`` these media.

    Costs what has come since this process has seen it last.

    Raises:
        InvalidRequest: a tool output without its call, where a client has put items together so.
    """
    key = _hot_key(conversation)
    link = hot_tier.get(conversation.project_id, key)
    if link is None:
        link = Link(
            response_id=key,
            project_id=conversation.project_id,
            response={},
            items=SharedLog(),
            input_end=0,
            open_calls={},
            prompt=ChatPrompt(takes=takes),
        )
    if link.position < conversation.length:
        items = await dbpool.run(conversations.items_from, conversation.pk, link.position, conversation.length)
        link = _extended(link, items, conversation.length)
        hot_tier.put(link)
    return msgspec.structs.replace(link, place=conversations.place_of(conversation))


def _extended(link: Link, items: list[Item], position: int) -> Link:
    shown = opened_context(items, project_id=link.project_id)
    prompt = link.prompt
    if any(item.get("type") == COMPACTION for item in shown):
        # Most of what was rendered counts no more.
        past = opened_context(list(link.items), project_id=link.project_id)
        prompt, shown = ChatPrompt(takes=prompt.takes), in_place([*past, *shown])
    prompt = prompt.extended(shown)
    return msgspec.structs.replace(
        link,
        items=link.items.extended(items),
        open_calls=calls_left_open(link.open_calls, items),
        configuration=link.configuration.after(items),
        prompt=prompt,
        # Of a compacted conversation the items are still there.
        size=max(prompt.memory_bytes, link.size),
        position=position,
        # Derived from the items where it is asked for.
        safety=None,
    )


def _hot_key(conversation: Conversation) -> str:
    """Its place in the hot tier: no response has such an id, and what was read before a deletion is not found."""
    return f"{conversation.pk}:{conversation.edits}"
