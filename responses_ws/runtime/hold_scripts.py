"""The rule of `connection.budgets.Account` as Redis runs it, by its own clock.

A share is a hash (what is ``spent`` and ``held``, the tickets, and under ``+name`` what each response holds) and a
sorted set (until when each hold is believed; of those that have ended, `ENDED` and when that was). Sums are made by
HINCRBY, on integers of 64 bits: Lua's numbers are exact to 53 only.

Beside the shares of an organisation is its mark: since when all processes have said what they hold. It goes with the
rest when a Redis is emptied.
"""

ENDED = 10**11
"""Added to the moment of an end: a hold that waits to be billed does not lapse."""

_COMMON = f"""
local ENDED = {ENDED}
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

local function minus(text)
    if text == '0' then return '0' end
    if string.sub(text, 1, 1) == '-' then return string.sub(text, 2) end
    return '-' .. text
end

local function hold(sums, holds, name, amount, score)
    local own = redis.call('HGET', sums, '+' .. name)
    if own then redis.call('HINCRBY', sums, 'held', minus(own)) end
    if amount == '0' then
        redis.call('HDEL', sums, '+' .. name)
        redis.call('ZREM', holds, name)
    else
        redis.call('HINCRBY', sums, 'held', amount)
        redis.call('HSET', sums, '+' .. name, amount)
        redis.call('ZADD', holds, string.format('%.3f', score), name)
    end
end

local function keep(sums, holds, seconds)
    redis.call('EXPIRE', sums, seconds)
    redis.call('EXPIRE', holds, seconds)
end
"""

TAKE = (
    _COMMON
    + """
local name, amount, seconds, due, kept = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local settled_at = redis.call('GET', KEYS[1])
if not settled_at then return {'unknown'} end
if now < tonumber(settled_at) then return {'settling', string.format('%.3f', tonumber(settled_at) - now)} end
local is_due = '0'
for index = 2, #KEYS, 2 do
    local known = redis.call('HMGET', KEYS[index], 'spent', 'until', 'began')
    if not known[1] or now >= tonumber(known[2]) then return {'unknown'} end
    if now - tonumber(known[3]) >= due then is_due = '1' end
end
for index = 2, #KEYS, 2 do
    local sums, holds = KEYS[index], KEYS[index + 1]
    for _, dead in ipairs(redis.call('ZRANGEBYSCORE', holds, '-inf', string.format('%.3f', now))) do
        hold(sums, holds, dead, '0', 0)
    end
    local own = redis.call('HGET', sums, '+' .. name) or '0'
    if tonumber(amount) > tonumber(own) then
        local spent, held = redis.call('HGET', sums, 'spent'), redis.call('HGET', sums, 'held') or '0'
        redis.call('HSET', sums, 'room', ARGV[5 + index / 2])
        redis.call('HINCRBY', sums, 'room', minus(spent))
        redis.call('HINCRBY', sums, 'room', minus(held))
        redis.call('HINCRBY', sums, 'room', own)
        if redis.call('HINCRBY', sums, 'room', minus(amount)) < 0 then
            redis.call('HSET', sums, 'room', held)
            redis.call('HINCRBY', sums, 'room', minus(own))
            return {'refused', index / 2 - 1, spent, redis.call('HGET', sums, 'room')}
        end
    end
end
for index = 2, #KEYS, 2 do
    hold(KEYS[index], KEYS[index + 1], name, amount, now + seconds)
    keep(KEYS[index], KEYS[index + 1], kept)
end
redis.call('EXPIRE', KEYS[1], kept)
return {'taken', is_due}
"""
)
"""KEYS: the mark; of each share its hash and its set. ARGV: response, amount, seconds of a hold, seconds between two
looks, seconds that keys are kept, the limits. Answers ``unknown`` (look first), ``settling`` and for how long,
``taken`` and whether a look is due, or ``refused`` with the share, what is spent and what others hold of it."""

TELL = (
    _COMMON
    + """
for index = 3, #ARGV, 4 do
    local sums, holds = KEYS[2 * ARGV[index] + 1], KEYS[2 * ARGV[index] + 2]
    local score = now + ARGV[1]
    if ARGV[index + 3] == '1' then score = now + ENDED end
    hold(sums, holds, ARGV[index + 1], ARGV[index + 2], score)
    keep(sums, holds, ARGV[2])
end
"""
)
"""KEYS: hashes and sets. ARGV: seconds of a hold, seconds that keys are kept; then by hold: its share, response,
amount, and whether it has ended."""

BEGIN = (
    _COMMON
    + """
local due, page, settle, kept = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local sums, holds = KEYS[2], KEYS[3]
local known = redis.call('HMGET', sums, 'spent', 'until', 'began')
local is_first = not known[1] or redis.call('EXISTS', KEYS[1]) == 0
if not is_first and now < tonumber(known[2]) and now - tonumber(known[3]) < due then return {} end
redis.call('SET', KEYS[1], string.format('%.3f', now + settle), 'NX', 'EX', kept)
redis.call('HSETNX', sums, 'generation', ARGV[1])
redis.call('HSET', sums, 'began', string.format('%.3f', now))
local answer = {redis.call('HGET', sums, 'generation'), redis.call('HINCRBY', sums, 'ticket', 1), is_first and 1 or 0}
for _, range in ipairs({{ENDED, '+inf'}, {'-inf', ENDED}}) do
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', holds, range[1], range[2], 'LIMIT', 0, page)) do
        answer[#answer + 1] = name
    end
end
keep(sums, holds, kept)
return answer
"""
)
"""KEYS: the mark, a hash and its set. ARGV: the name of a new generation, seconds between two looks, how many names,
how long the mark takes to settle, seconds that keys are kept. Answers nothing where somebody has just looked; else the
generation, a ticket, whether nobody had looked before, and who holds: those that have ended, the oldest first, and
those that run."""

FINISH = (
    _COMMON
    + """
local sums, holds = KEYS[2], KEYS[3]
local known = redis.call('HMGET', sums, 'generation', 'shown', 'ticket')
if known[1] ~= ARGV[1] or (tonumber(known[2]) or 0) >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', sums, 'shown', known[3], 'spent', ARGV[3], 'until', string.format('%.3f', now + ARGV[4]))
if ARGV[5] == '1' then redis.call('SET', KEYS[1], '0', 'XX', 'KEEPTTL') end
local first = 7 + ARGV[6]
for index = 7, first - 1 do hold(sums, holds, ARGV[index], '0', 0) end
for index = first, #ARGV, 2 do
    if redis.call('HEXISTS', sums, '+' .. ARGV[index]) == 0 then
        hold(sums, holds, ARGV[index], ARGV[index + 1], now + ENDED)
    end
end
return 1
"""
)
"""KEYS as for BEGIN. ARGV: its generation and ticket, the sum, for how long that is believed, whether nobody else can
hold anything, how many names are in the sum, these; then names and amounts of what has ended and is in nobody's sum."""
