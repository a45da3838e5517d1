"""The state that a connection keeps of its conversations: of every lane the newest response."""

from collections.abc import Mapping
from typing import Any

import msgspec

from responses_ws.protocol.configuration import Configuration
from responses_ws.protocol.items import Item

from .log import SharedLog

CONTINUABLE = frozenset({"completed", "incomplete"})
"""Statuses of responses that can be continued. What failed or was cancelled cannot, nor what still runs."""


class Link(msgspec.Struct, kw_only=True):
    """A finished response with everything that its continuation needs. Not changed once made.

    ``prompt``, ``tools``, ``route``, ``safety``, ``place``, ``fallback`` and ``copied`` are opaque here: they are typed
    by the rooms above (rendering, rendering, engines, serving, stores, stores, rendering).
    """

    response_id: str
    project_id: int
    response: dict[str, Any]
    """The final Response object, as the terminal event carried it."""
    items: SharedLog[Item]
    """The whole context: what came before, this input, this output."""
    input_end: int
    """Items below this position were the context; the rest is output."""
    open_calls: Mapping[str, str]
    """Calls of this response that wait for their outputs: ``{call_id: name}``."""
    stored_ancestor: str = ""
    """The stored response that an unstored one continues, over others like it: it holds what was said there."""
    kept_input: list[Item] = msgspec.field(default_factory=list)
    """Steers that wait for the next explicit create that continues this response."""
    configuration: Configuration = Configuration()
    """What items of the context have set for the responses after them."""
    prompt: Any = None
    """The context as the engine takes it, append-only."""
    tools: Any = None
    """The tool set of this response, reused when the next request brings the same."""
    route: Any = None
    """The resolved model route."""
    safety: Any = None
    """What classifiers carry along the chain, bounded; None where the link was made anew: it is derived then."""
    size: int = 0
    """Bytes that the whole context takes in memory, roughly."""
    place: Any = None
    """Where a stored chain is kept; None when nothing of it is stored. Of a conversation, it may end before it does."""
    fallback: Any = None
    """Where an unstored chain is kept for a client that loses its socket; None where it is not."""
    copied: Any = None
    """The token ids of the prompt, as far as they are kept beside the items; None where they are not."""
    position: int = 0
    """Of a conversation: where its next item goes."""


class Chains:
    """One slot per lane, filled with its newest response. Gone with the connection.

    Source: OpenAI's WebSocket guide: when a lane advances, its older response is evicted; a continuation may name
    the newest response of any lane.
    """

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: dict[str | None, Link] = {}

    def find(self, response_id: str) -> Link | None:
        """The cached response with this id, in whichever lane."""
        for link in self._slots.values():
            if link.response_id == response_id:
                return link
        return None

    def links(self) -> list[Link]:
        """The newest of every lane."""
        return list(self._slots.values())

    def put(self, lane: str | None, link: Link) -> None:
        """Make ``link`` the newest of its lane."""
        self._slots[lane] = link

    def evict_failed(self, lane: str | None, previous_response_id: str | None) -> None:
        """A continuation failed on ``lane``: forget the parent if it is this lane's own.

        A failed fork leaves the parent, which is in another lane's slot, alone.
        """
        link = self._slots.get(lane)
        if link is not None and link.response_id == previous_response_id:
            del self._slots[lane]

    def forget(self, response_ids: set[str]) -> None:
        """Drop deleted responses, and what continues them here without being stored."""
        for lane, link in list(self._slots.items()):
            if not response_ids.isdisjoint((link.response_id, link.stored_ancestor)):
                del self._slots[lane]

    @property
    def size(self) -> int:
        """Bytes that they hold, roughly; what forks share is counted for each."""
        return sum(link.size for link in self._slots.values())

    @property
    def longest(self) -> int:
        """Items of the longest context."""
        return max((len(link.items) for link in self._slots.values()), default=0)

    def __len__(self) -> int:
        return len(self._slots)
