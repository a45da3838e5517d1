"""Redis: stored chains shared between workers. A cache: every fault and every gap is a miss."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from responses_ws.conf import app_settings
from responses_ws.protocol.items import Item, told
from responses_ws.runtime import redis
from responses_ws.runtime.faults import faultpoint

from .base import Place, ResponseStore, StoredChain

_encode = msgspec.json.Encoder().encode

_PREFIX = "responses_ws:1"
"""The number is the version of this layout: another version's keys are never read."""

_APPEND = """
if redis.call('LLEN', KEYS[1]) ~= tonumber(ARGV[1]) then return 0 end
for index = 3, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[index]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""
"""Append only exactly behind what is there: a list with a gap would be a wrong context."""


class _Head(msgspec.Struct):
    """The value behind a response's key. The owner stands in the key and in here, and is checked after reading."""

    project_id: int
    place: Place
    input_end: int
    response: dict[str, Any]


class RedisStore(ResponseStore):
    """A list of items per chain and a small head per response: two round trips load any length."""

    async def load(self, project_id: int, response_id: str) -> StoredChain | None:
        client = redis.client()
        if client is None:
            return None
        raw: Any = await redis.attempt(client.get(_response_key(project_id, response_id)))
        if raw is None:
            return None
        try:
            head = msgspec.msgpack.decode(raw, type=_Head)
        except msgspec.DecodeError:
            return None
        if head.project_id != project_id or head.response.get("id") != response_id:
            return None
        pipeline = client.pipeline(transaction=False)
        for chain_id, start, stop in head.place.ranges:
            # A chain's list begins where its past ends.
            pipeline.lrange(_chain_key(project_id, chain_id), 0, stop - start - 1)
        lists = await redis.attempt(pipeline.execute())
        if lists is None or any(
            len(entries) != stop - start for entries, (_, start, stop) in zip(lists, head.place.ranges, strict=True)
        ):
            return None
        items = [msgspec.json.decode(entry) for entries in lists for entry in entries]
        response = {**head.response, "output": list(map(told, items[head.input_end :]))}
        return StoredChain(response, items, head.input_end, head.place)

    async def save(
        self, project_id: int, response: dict[str, Any], place: Place, items: Sequence[Item], input_end: int
    ) -> None:
        """Copy what the database has just committed: ``items`` are the ones behind the parent's end."""
        client = redis.client()
        if client is None:
            return
        seconds = app_settings.STORE_DAYS * 86_400
        chain_start = place.path[-1][1] if place.path else 0
        length_before = place.end - len(items) - chain_start
        bodies = [_encode(item) for item in items]
        head = msgspec.msgpack.encode(_Head(project_id, place, input_end, {**response, "output": []}))
        pipeline = client.pipeline(transaction=False)
        pipeline.eval(_APPEND, 1, _chain_key(project_id, place.chain_id), length_before, seconds, *bodies)
        pipeline.set(_response_key(project_id, response["id"]), head, ex=seconds)
        faultpoint("copy.before")
        await redis.attempt(pipeline.execute())
        faultpoint("copy.after")

    async def forget(self, project_id: int, response_ids: set[str], chains: Mapping[UUID, int]) -> None:
        """These responses were deleted; of each chain so many items are left."""
        client = redis.client()
        if client is None:
            return
        pipeline = client.pipeline(transaction=False)
        for response_id in response_ids:
            pipeline.delete(_response_key(project_id, response_id))
        for chain_id, left in chains.items():
            if left:
                pipeline.ltrim(_chain_key(project_id, chain_id), 0, left - 1)
            else:
                pipeline.delete(_chain_key(project_id, chain_id))
        await redis.attempt(pipeline.execute())


def _response_key(project_id: int, response_id: str) -> str:
    return f"{_PREFIX}:{project_id}:response:{response_id}"


def _chain_key(project_id: int, chain_id: UUID) -> str:
    return f"{_PREFIX}:{project_id}:chain:{chain_id.hex}"
