"""What is used of every key's rates: counted in Redis for all processes, or by each for itself where there is none."""

import asyncio
import time
from collections import OrderedDict
from typing import Any, cast

from responses_ws.connection.rates import Allowance, Count, Kind, Standing

from . import background, logs, redis
from .ids import new_id

SLOT_SECONDS = 30.0
"""How long a slot of a process that has died stays taken."""
_SECONDS_BETWEEN_RENEWALS = SLOT_SECONDS / 3
_MAX_COUNTS = 10_000
_PREFIX = "responses_ws:rates:1"

_SCRIPT = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local per_minute = {tonumber(ARGV[1]), tonumber(ARGV[2])}
local slots, slot, seconds = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local enters, tokens = ARGV[6] == '1', tonumber(ARGV[7])

local known = redis.call('HMGET', KEYS[1], 'at', 'requests', 'tokens')
local minutes = math.max(0, now - (tonumber(known[1]) or now)) / 60
local used = {}
for index = 1, 2 do
    used[index] = math.max(0, (tonumber(known[index + 1]) or 0) - minutes * per_minute[index])
end

local refused = ''
if enters then
    if slots > 0 then
        redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
    end
    if slots > 0 and redis.call('ZCARD', KEYS[2]) >= slots then
        refused = 'slots'
    elseif per_minute[1] > 0 and used[1] + 1 > per_minute[1] then
        refused = 'requests'
    elseif per_minute[2] > 0 and used[2] + 1 > per_minute[2] then
        refused = 'tokens'
    else
        if per_minute[1] > 0 then
            used[1] = used[1] + 1
        end
        if slots > 0 then
            redis.call('ZADD', KEYS[2], now + seconds, slot)
            redis.call('EXPIRE', KEYS[2], math.ceil(seconds) + 1)
        end
    end
else
    if per_minute[2] > 0 then
        used[2] = math.max(0, used[2] + tokens)
    end
    if slot ~= '' then
        redis.call('ZREM', KEYS[2], slot)
    end
end

local left = 0
for index = 1, 2 do
    if per_minute[index] > 0 then
        left = math.max(left, used[index] * 60 / per_minute[index])
    end
end
for index = 1, 2 do
    used[index] = string.format('%.6f', used[index])
end
if left > 0 then
    redis.call('HSET', KEYS[1], 'at', string.format('%.6f', now), 'requests', used[1], 'tokens', used[2])
    redis.call('EXPIRE', KEYS[1], math.ceil(left) + 1)
else
    redis.call('DEL', KEYS[1])
end
return {refused, used[1], used[2]}
"""
"""The rule of `Count`, by Redis's own clock. 0 is no limit. A slot is a member of a sorted set, until its score."""

_RENEW = """
local until_when = redis.call('TIME')[1] + ARGV[1]
for index = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', until_when, ARGV[index]) end
redis.call('EXPIRE', KEYS[1], math.ceil(ARGV[1]) + 1)
"""


class Entry:
    """Somebody who was let in. What they use is counted where they came in; `leave` them, whatever happens."""

    def __init__(self, owner: str, allowance: Allowance, standing: Standing, where: "Count | str") -> None:
        self.standing = standing
        self._owner = owner
        self._allowance = allowance
        self._where = where
        """This process's count, or the slot's name in Redis."""
        self._has_left = standing.refused is not None

    def charge(self, tokens: int) -> None:
        """So many tokens were used; or, below 0, fewer than was thought. Returns at once."""
        if self._allowance.tokens is None or not tokens:
            return
        if isinstance(self._where, Count):
            self._where.charge(self._allowance, time.monotonic(), tokens)
        else:
            background.spawn(_run_script(self._owner, self._allowance, tokens=tokens))

    def leave(self) -> None:
        """Give the slot back. Returns at once. Idempotent."""
        if self._has_left:
            return
        self._has_left = True
        if self._allowance.slots is None:
            return
        if isinstance(self._where, Count):
            self._where.slots -= 1
        else:
            _held.pop(self._where, None)
            background.spawn(_run_script(self._owner, self._allowance, slot=self._where))


async def enter(owner: str, allowance: Allowance) -> Entry:
    """Take a request and a slot of this owner's; the entry's standing says whether that was refused."""
    entering = background.spawn(_enter(owner, allowance))
    try:
        return await asyncio.shield(entering)
    except asyncio.CancelledError:
        # Redis may have let it in already, whatever becomes of the answer.
        entering.add_done_callback(_leave_again)
        raise


def _leave_again(entering: "asyncio.Task[Entry]") -> None:
    if not entering.cancelled() and entering.exception() is None:
        entering.result().leave()


async def _enter(owner: str, allowance: Allowance) -> Entry:
    slot = new_id("slot")
    told = await _run_script(owner, allowance, slot=slot, enters=True)
    if told is None:
        count = _count_of(owner)
        return Entry(owner, allowance, count.enter(allowance, time.monotonic()), count)
    refused, requests, tokens = told
    standing = Standing(float(requests), float(tokens), cast(Kind, refused.decode()) or None)
    if standing.refused is None and allowance.slots is not None:
        _held[slot] = owner
        _keep_renewing()
    return Entry(owner, allowance, standing, slot)


def reset() -> None:
    """Forget what this process has counted."""
    _counts.clear()
    _held.clear()


_counts: OrderedDict[str, Count] = OrderedDict()
_held: dict[str, str] = {}
"""Owners by the slots that they hold in Redis through this process."""
_renewal: "asyncio.Task[None] | None" = None


def _count_of(owner: str) -> Count:
    count = _counts.get(owner)
    if count is None:
        count = _counts[owner] = Count(time.monotonic())
        if len(_counts) > _MAX_COUNTS:
            _counts.popitem(last=False)
    _counts.move_to_end(owner)
    return count


async def _run_script(
    owner: str, allowance: Allowance, *, slot: str = "", enters: bool = False, tokens: int = 0
) -> "list[bytes] | None":
    """``[refused, requests, tokens]``; None where there is no Redis, or none that answers."""
    limits = [allowance.requests or 0, allowance.tokens or 0, allowance.slots or 0]
    arguments = [*limits, slot, SLOT_SECONDS, int(enters), tokens]
    answer: list[bytes] | None = await redis.attempt(_runs(_SCRIPT, _keys(owner), arguments))
    return answer


def _runs(script: str, keys: list[str], arguments: list[Any]) -> redis.Ask[Any]:
    return lambda client: client.register_script(script)(keys=keys, args=arguments)


def _keys(owner: str) -> list[str]:
    # In braces is what a cluster goes by: both are to be on one node.
    return [f"{_PREFIX}:{{{owner}}}", f"{_PREFIX}:{{{owner}}}:slots"]


def _keep_renewing() -> None:
    global _renewal
    loop = asyncio.get_running_loop()
    if _renewal is None or _renewal.done() or _renewal.get_loop() is not loop:
        _renewal = loop.create_task(_renew(), name="slots of rates", context=logs.of_nobody())


async def _renew() -> None:
    """Say that this process lives, as long as anybody is in."""
    while _held:
        await asyncio.sleep(_SECONDS_BETWEEN_RENEWALS)
        await renew()


async def renew() -> None:
    """Keep all slots for another ``SLOT_SECONDS``. Those that Redis has forgotten are not taken again."""
    by_owner: dict[str, list[str]] = {}
    for slot, owner in _held.items():
        by_owner.setdefault(owner, []).append(slot)
    for owner, slots in by_owner.items():
        await redis.attempt(_runs(_RENEW, _keys(owner)[1:], [SLOT_SECONDS, *slots]))
