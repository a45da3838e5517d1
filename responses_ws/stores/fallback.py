"""Unstored chains that outlive their socket: in Redis, sealed with a key that only the client keeps."""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID, uuid4

import msgspec

from responses_ws.connection.chain import Link
from responses_ws.runtime import background

from .base import Place, StoredChain
from .redis import RedisStore, copied_ids

KEY_BYTES = 32


class SealedFallback:
    """One connection's: it is gone here when the socket closes. A client that comes back brings the key."""

    def __init__(self, presented: str | None) -> None:
        key = _read(presented)
        self.is_back = key is not None
        """The client has been here before."""
        self._key = key or secrets.token_bytes(KEY_BYTES)
        self._store = RedisStore(key=self._key)
        self._ends: dict[UUID, int] = {}
        """Of the chains that this connection has begun: only there it is known who comes next."""

    @property
    def key(self) -> str:
        """For the client."""
        return urlsafe_b64encode(self._key).rstrip(b"=").decode()

    async def load(self, project_id: int, response_id: str) -> StoredChain | None:
        """What this client had on a socket before, or None."""
        return await self._store.load(project_id, response_id) if self.is_back else None

    def keep(self, link: Link, parent: Link | None) -> None:
        """Keep a finished response, as far as it is new behind its parent. Awaited by nobody."""
        before: Place | None = parent.fallback if parent is not None else None
        end = len(link.items)
        if before is None:
            chain_id = uuid4()
            place = Place(chain_id, chain_id, (), end)
        elif self._ends.get(before.chain_id) == before.end:
            place = msgspec.structs.replace(before, end=end)
        else:
            place = Place(uuid4(), before.root, (*before.path, (before.chain_id, before.end)), end)
        self._ends[place.chain_id] = end
        link.fallback = place
        # As the store sees it; of the chain in the database, if there is one, nothing is said here.
        old = None if parent is None else msgspec.structs.replace(parent, place=before)
        new = msgspec.structs.replace(link, place=place)
        new.copied = link.copied = copied_ids(new, old)
        background.spawn(self._store.save(new, old))


def _read(presented: str | None) -> bytes | None:
    if presented is None:
        return None
    try:
        key = urlsafe_b64decode(presented + "=")
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None
