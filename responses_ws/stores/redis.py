"""Redis: stored chains shared between workers. A cache: every fault and every gap is a miss.

Of a tree of chains, ``{project:root}`` in the keys, all lies on one node of a cluster:

- ``…:items:<chain>`` a list, an entry for each of the chain's own items, and ``…:bytes:<chain>``, its size. Behind the
  last item of a turn, and a line break, are the token ids that the turn has added to the rendered prompt;
- ``…:body:<response>`` the Response object without its output; empty where it has been deleted.

Beside it ``<project>:response:<id>`` says where a response is to be found. It holds no content, so it does no harm
where it is written behind a deletion, late; all else is written by one script, which looks at the body first.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from redis.asyncio import Redis

from responses_ws.conf import app_settings
from responses_ws.connection.chain import Link
from responses_ws.protocol.items import Item, told
from responses_ws.rendering.tokens import TokenLog
from responses_ws.runtime import redis
from responses_ws.runtime.faults import faultpoint

from .base import Place, ResponseStore, StoredChain
from .ids import SavedIds, segment_of, worth_saving
from .rows import Deleted

_encode = msgspec.json.Encoder().encode

VERSION = 2
"""Of this layout. It is in the keys, so that versions side by side never meet, and in the values."""
_PREFIX = f"responses_ws:{VERSION}"
_NONCE_BYTES = 12
_MARK_BYTES = 8
_BYTES_DECODED_INLINE = 65_536  # about half a millisecond

_APPEND = """
local seconds, budget, from, body = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if redis.call('EXISTS', KEYS[3]) == 1 and redis.call('STRLEN', KEYS[3]) == 0 then return 'deleted' end
local have = redis.call('LLEN', KEYS[1])
if have < from then return 'gap' end
if have == 0 then redis.call('DEL', KEYS[2]) end
local first, bytes = 5 + have - from, 0
for index = first, #ARGV do bytes = bytes + #ARGV[index] end
if redis.call('INCRBY', KEYS[2], bytes) > budget then
    redis.call('DEL', KEYS[1], KEYS[2])
    return 'long'
end
for index = first, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[index]) end
if body ~= '' then redis.call('SET', KEYS[3], body) end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, seconds) end
return 'kept'
"""
"""Put entries at a position of a list that has none there yet: a list with a gap would be a wrong context."""


class _Pointer(msgspec.Struct):
    """Where a response is. Whose it is stands in every key and in every value, and is checked after reading."""

    version: int
    project_id: int
    response_id: str
    place: Place
    input_end: int
    expires_at: float
    """Seconds since 1970."""


class _Body(msgspec.Struct):
    project_id: int
    response: dict[str, Any]


_Found = tuple[_Pointer, bytes, list[list[bytes]]]


class RedisStore(ResponseStore):
    """Two round trips load any length, forks of forks included; one says that there is nothing.

    With a ``key`` (AES-256-GCM), which nobody else has, values are sealed, each for its place, and kept apart.
    """

    def __init__(self, *, key: bytes | None = None) -> None:
        self._cipher = AESGCM(key) if key is not None else None
        self._prefix = _PREFIX if key is None else f"{_PREFIX}:sealed"

    async def load(self, project_id: int, response_id: str) -> StoredChain | None:
        try:
            # One deadline for both round trips.
            found = await redis.attempt(lambda client: self._read(client, project_id, response_id))
            if found is None:
                return None
            if sum(map(len, chain.from_iterable(found[2]))) > _BYTES_DECODED_INLINE:
                return await asyncio.to_thread(self._put_together, *found)
            return self._put_together(*found)
        except (msgspec.DecodeError, ValueError):
            return None

    async def save(self, link: Link, parent: Link | None) -> None:
        """Copy what the database has just committed, as far as it is new behind ``parent``."""
        place: Place = link.place
        before = _place_before(place, parent)
        start = before.end if before is not None else 0
        items = link.items.since(start)
        if len(items) != place.end - start:
            return
        bodies = [_encode(item) for item in items]
        most = app_settings.limits.redis_value_bytes
        if max(map(len, bodies), default=0) > most:
            return
        if link.copied is not None and bodies:
            old = parent.copied if parent is not None and before is not None else None
            segment = segment_of(link.copied, link.prompt.log, base=start, before=old)
            bodies[-1] += b"\n" + segment if len(segment) <= most else b""
        expires_at = time.time() + (app_settings.STORE_DAYS * 86_400 if self._cipher is None else self._seconds())
        project_id, response = link.project_id, link.response
        faultpoint("copy.before")
        await redis.attempt(
            lambda client: self._write(
                client, project_id, response, place, link.input_end, expires_at, [(place.chain_id, start, bodies)]
            )
        )
        faultpoint("copy.after")

    async def put_back(self, project_id: int, stored: StoredChain) -> None:
        """Copy a chain that was read from the database. Its ancestors' part, too; only what is missing is sent."""
        limits = app_settings.limits
        sizes = [len(body) for body in stored.bodies]
        if max(sizes, default=0) > limits.redis_value_bytes or sum(sizes) > limits.redis_chain_bytes:
            return
        place = stored.place

        async def write(client: Redis) -> None:
            pipeline = client.pipeline(transaction=False)
            for chain_id, _start, _stop in place.ranges:
                pipeline.llen(self._key(project_id, place.root, "items", chain_id.hex))
            runs = []
            for (chain_id, start, stop), have in zip(place.ranges, await pipeline.execute(), strict=True):
                missing = stored.bodies[min(start + have, stop) : stop]
                runs.append((chain_id, stop - len(missing), [body.encode() for body in missing]))
            response = {**stored.response, "output": []}
            await self._write(client, project_id, response, place, stored.input_end, stored.expires_at, runs)

        await redis.attempt(write)

    async def forget(self, project_id: int, deleted: Deleted) -> bool:
        """Keep nothing of this, nor what may still come of it. False where Redis has not heard it."""

        async def delete(client: Redis) -> bool:
            pipeline = client.pipeline(transaction=False)
            for response_id in deleted.response_ids:
                # What was read before the deletion may be written behind it: not over this.
                pipeline.set(self._key(project_id, deleted.root, "body", response_id), b"", ex=self._seconds())
                pipeline.delete(self._pointer_key(project_id, response_id))
            for chain_id, left in deleted.chains.items():
                items = self._key(project_id, deleted.root, "items", chain_id.hex)
                if left:
                    pipeline.ltrim(items, 0, left - 1)
                else:
                    pipeline.delete(items)
            await pipeline.execute()
            return True

        return bool(await redis.attempt(delete))

    async def _read(self, client: Redis, project_id: int, response_id: str) -> _Found | None:
        key = self._pointer_key(project_id, response_id)
        raw: Any = await client.get(key)
        if raw is None:
            return None
        try:
            pointer = msgspec.msgpack.decode(self._opened(raw, key), type=_Pointer)
        except (msgspec.DecodeError, ValueError):
            return None
        named = (pointer.version, pointer.project_id, pointer.response_id)
        if named != (VERSION, project_id, response_id) or pointer.expires_at <= time.time():
            return None
        place = pointer.place
        pipeline = client.pipeline(transaction=False)
        pipeline.get(self._key(project_id, place.root, "body", response_id))
        for chain_id, start, stop in place.ranges:
            # A chain's list begins where its past ends. Of nothing the last entry would be all.
            last = stop - start - 1 if stop > start else -(2**40)
            pipeline.lrange(self._key(project_id, place.root, "items", chain_id.hex), 0, last)
        body, *lists = await pipeline.execute()
        is_whole = all(len(got) == stop - start for got, (_, start, stop) in zip(lists, place.ranges, strict=True))
        return (pointer, body, lists) if body and is_whole else None

    def _put_together(self, pointer: _Pointer, raw: bytes, lists: list[list[bytes]]) -> StoredChain | None:
        place, project_id = pointer.place, pointer.project_id
        key = self._key(project_id, place.root, "body", pointer.response_id)
        body = msgspec.msgpack.decode(self._opened(raw, key), type=_Body)
        if body.project_id != pointer.project_id or body.response.get("id") != pointer.response_id:
            return None
        items: list[Item] = []
        segments: list[tuple[int, bytes]] = []
        for entries, (chain_id, start, _stop) in zip(lists, place.ranges, strict=True):
            mark, key = _mark(project_id, chain_id), self._key(project_id, place.root, "items", chain_id.hex)
            for position, raw_entry in enumerate(entries, start):
                entry = self._opened(raw_entry, f"{key}:{position}")
                if not entry.startswith(mark):
                    return None
                # In JSON a line break is written otherwise.
                item, _, segment = entry[_MARK_BYTES:].partition(b"\n")
                items.append(msgspec.json.decode(item))
                if segment:
                    segments.append((len(items), segment))
        response = {**body.response, "output": list(map(told, items[pointer.input_end :]))}
        ids = SavedIds(segments) if segments else None
        return StoredChain(response, items, pointer.input_end, place, pointer.expires_at, ids=ids)

    async def _write(
        self,
        client: Redis,
        project_id: int,
        response: dict[str, Any],
        place: Place,
        input_end: int,
        expires_at: float,
        runs: Sequence[tuple[UUID, int, list[bytes]]],
    ) -> None:
        """``runs``: (chain, position, items from there on), the response's own chain last."""
        seconds, budget = self._seconds(), app_settings.limits.redis_chain_bytes
        body_key = self._key(project_id, place.root, "body", response["id"])
        body = self._sealed(msgspec.msgpack.encode(_Body(project_id, {**response, "output": []})), body_key)
        pointer = _Pointer(VERSION, project_id, response["id"], place, input_end, expires_at)
        starts = {chain_id: start for chain_id, start, _stop in place.ranges}
        pipeline = client.pipeline(transaction=False)
        for chain_id, position, bodies in runs:
            mark = _mark(project_id, chain_id)
            items_key, bytes_key = (
                self._key(project_id, place.root, kind, chain_id.hex) for kind in ("items", "bytes")
            )
            entries = [self._sealed(mark + body, f"{items_key}:{at}") for at, body in enumerate(bodies, position)]
            own_body = body if chain_id == place.chain_id else b""
            arguments: list[Any] = [seconds, budget, position - starts[chain_id], own_body, *entries]
            pipeline.eval(_APPEND, 3, items_key, bytes_key, body_key, *arguments)
        pointer_key = self._pointer_key(project_id, response["id"])
        pipeline.set(pointer_key, self._sealed(msgspec.msgpack.encode(pointer), pointer_key), ex=seconds)
        await pipeline.execute()

    def _sealed(self, value: bytes, where: str) -> bytes:
        """As it is kept in this place."""
        if self._cipher is None:
            return value
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value, where.encode())

    def _opened(self, value: bytes, where: str) -> bytes:
        """Raises ValueError: sealed with another key, or for another place."""
        if self._cipher is None:
            return value
        try:
            return self._cipher.decrypt(value[:_NONCE_BYTES], value[_NONCE_BYTES:], where.encode())
        except InvalidTag as exc:
            raise ValueError("it does not open") from exc

    def _seconds(self) -> int:
        if self._cipher is not None:
            return int(app_settings.limits.redis_sealed_seconds)
        return int(min(app_settings.limits.redis_chain_seconds, app_settings.STORE_DAYS * 86_400))

    def _pointer_key(self, project_id: int, response_id: str) -> str:
        return f"{self._prefix}:{project_id}:response:{response_id}"

    def _key(self, project_id: int, root: UUID, kind: str, name: str) -> str:
        return f"{self._prefix}:{{{project_id}:{root.hex}}}:{kind}:{name}"


def copied_ids(link: Link, parent: Link | None) -> TokenLog | None:
    """What `RedisStore.save` keeps of the prompt's token ids, for `Link.copied`."""
    before = _place_before(link.place, parent)
    if parent is not None and before is not None and before.end == link.place.end:
        # There is no item to keep any with.
        return parent.copied
    return worth_saving(link.prompt)


def _place_before(place: Place, parent: Link | None) -> Place | None:
    """Where the parent ends, if it is stored with what comes behind it."""
    before: Place | None = parent.place if parent is not None else None
    if before is None or not (place.chain_id == before.chain_id or (before.chain_id, before.end) in place.path):
        return None
    return before


def _mark(project_id: int, chain_id: UUID) -> bytes:
    """Every entry begins with it: whose it is."""
    return blake2b(b"%d:%s" % (project_id, chain_id.bytes), digest_size=_MARK_BYTES).digest()
