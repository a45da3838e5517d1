"""Stored responses: what a store keeps and must promise."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from responses_ws.protocol.items import Item

from .ids import SavedIds


class Place(msgspec.Struct, frozen=True):
    """Where a stored context ends: ``end`` items along ``chain_id``, whose past is ``path``."""

    chain_id: UUID
    root: UUID
    path: tuple[tuple[UUID, int], ...]
    """(chain, cut), oldest first: the items of that chain below the cut. Positions go on counting."""
    end: int

    @property
    def ranges(self) -> list[tuple[UUID, int, int]]:
        """(chain, from, to) in order: together all items below ``end``."""
        ranges: list[tuple[UUID, int, int]] = []
        start = 0
        for chain_id, cut in (*self.path, (self.chain_id, self.end)):
            ranges.append((chain_id, start, cut))
            start = cut
        return ranges


class StoredChain(msgspec.Struct, frozen=True):
    """A stored response with its whole context."""

    response: dict[str, Any]
    """The Response object with its output."""
    items: list[Item]
    """Context and output."""
    input_end: int
    place: Place
    expires_at: float
    """Seconds since 1970."""
    bodies: Sequence[str] = ()
    """The items as the database has them, if they come from there."""
    ids: SavedIds | None = None
    """Of the rendered prompt, where they were kept."""


class ResponseStore(ABC):
    """Finds stored responses again. The owner is part of every question.

    An id that is foreign, unknown, expired or deleted is the same: None. A store that is a cache may forget
    anything at any time, and turns its own faults into None.
    """

    @abstractmethod
    async def load(self, project_id: int, response_id: str) -> StoredChain | None:
        """The response and its context, in a number of round trips that does not depend on its length."""
