"""What running turns hold of budgets: counted in Redis for all processes, or by each for itself where there is none.

The rule is `connection.budgets.Account`. A turn takes in one round trip. Somebody looks at what is billed beside it,
every few seconds, or before it where the last look is too long ago.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.budgets import Account, Share, Short, take
from responses_ws.protocol.errors import Overloaded

from . import background, hold_scripts, logs, metrics, redis
from .ids import new_id

logger = logging.getLogger(__name__)

HOLD_SECONDS = 120.0
"""How long the hold of a process that has died stays: until the reaper has closed its record and that is billed."""
SECONDS_BETWEEN_WORDS = 1.0
"""How often a process says again what it holds."""
SETTLE_SECONDS = 3.0
"""How long a Redis that was empty is given for that, before anything more is taken."""
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_BELIEVED = 60.0
"""How old a sum may be that nobody has looked at meanwhile: its holds are kept beside it, so it is hardly wrong."""
_KEPT_SECONDS = 8 * 86_400
_NAMES_AT_A_LOOK = 5000
_MAX_ACCOUNTS = 10_000
"""Days and budgets pass. What is forgotten is read again: what runs here, and from the database what has ended."""
_TRIES = 4
_PREFIX = "responses_ws:budgets:1"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the database says of one share, all of it at one moment."""

    spent_nano: int
    billed: list[str]
    """Of the responses that were asked about, those whose cost is in the sum."""
    unbilled: dict[str, int] = {}
    """At the first look: responses that have ended and are not in the sum, and what they cost."""
    is_quiet: bool = True
    """At the first look: nobody else's response runs."""
    true_until: float = math.inf
    """Seconds since the epoch at which the sum changes by itself."""


Read = Callable[[Share, Sequence[str], bool, Collection[str]], Awaitable[Reading]]
"""(share, responses that hold something of it, whether it is the first look, responses that run here) → reading."""


class Hold:
    """What one response holds of the shares that apply to it. Whoever has made it sees to its end."""

    def __init__(self, name: str, shares: Sequence[Share]) -> None:
        assert shares, "who has no budget holds nothing"
        self.name = name
        self.shares = tuple(shares)
        self.amount = 0
        self.has_ended = False
        self.taking: asyncio.Task[Short | None] | None = None

    @property
    def organization_id(self) -> int:
        return self.shares[0].budget.organization_id


class Holds:
    """All holds of this process. ``read`` looks into the database."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.live: dict[str, Hold] = {}
        """By response, of turns that run."""
        self._untold: dict[str, Hold] = {}
        """Of turns that have ended, as long as Redis does not know."""
        self._accounts: dict[tuple[int, str], Account] = {}
        """What this process counts itself, where Redis does not."""
        self._looked_at: dict[tuple[int, str], float] = {}
        self._unheard: set[int] = set()
        """Organisations of which Redis may not know all that is held here."""
        self._looks: dict[tuple[int, str], asyncio.Task[bool]] = {}
        self._words: asyncio.Task[None] | None = None

    def reset(self) -> None:
        """Forget everything, as in a new process."""
        if self._words is not None:
            self._words.cancel()
        self.__init__(self._read)  # type: ignore[misc]

    async def take(self, hold: Hold, amount: int) -> Short | None:
        """Hold so much, from now on, in all of its shares; or tell which is short, and hold what was held.

        Raises:
            Overloaded: neither Redis nor the database can say what is left, and the settings want it so.
        """
        # Shielded: it may have been taken, whatever becomes of the answer. `end` waits for that.
        hold.taking = background.spawn(self._take(hold, amount))
        return await asyncio.shield(hold.taking)

    def end(self, hold: Hold, amount: int) -> "asyncio.Task[None] | None":
        """It has cost so much, which stays until it is billed; 0: nothing. Returns at once; the task says when others
        know. Idempotent."""
        if hold.has_ended:
            return None
        hold.has_ended = True
        self.live.pop(hold.name, None)
        is_taking = hold.taking is not None and not hold.taking.done()
        if not (hold.amount or amount or is_taking):
            return None
        hold.amount = amount
        self._count_end(hold)
        if not app_settings.REDIS_URL:
            return None
        self._untold[hold.name] = hold
        return background.spawn(self._tell_end(hold))

    def _count_end(self, hold: Hold) -> None:
        for share in hold.shares:
            account = self._accounts.get(_key(share))
            if account is not None:
                account.hold(hold.name, hold.amount, math.inf)

    def let_go(self, hold: Hold) -> None:
        """Another process goes on with the response, under the same name."""
        if not hold.has_ended:
            hold.has_ended = True
            self.live.pop(hold.name, None)

    async def standing(self, share: Share) -> tuple[int, int] | None:
        """What is spent and held of a share now, as turns would find it. None: nobody can say."""
        if app_settings.REDIS_URL:
            await self._look(share, in_redis=True)
            script: redis.Ask[Any] = lambda client: client.hmget(_keys(share)[0], "spent", "held")  # noqa: E731
            known = await redis.attempt(script)
            return None if known is None or known[0] is None else (int(known[0]), int(known[1] or 0))
        await self._look(share, in_redis=False)
        account = self._accounts.get(_key(share))
        return None if account is None or account.spent is None else (account.spent, account.held)

    async def _take(self, hold: Hold, amount: int) -> Short | None:
        short = await (self._take_in_redis if app_settings.REDIS_URL else self._take_here)(hold, amount)
        if hold.has_ended:
            # While this was on its way.
            self._count_end(hold)
        elif short is None:
            hold.amount = amount
            self.live[hold.name] = hold
            self._keep_saying()
        return short

    async def _take_in_redis(self, hold: Hold, amount: int) -> Short | None:
        keys = [_mark(hold.organization_id), *(key for share in hold.shares for key in _keys(share))]
        limits = [share.budget.limit_nano for share in hold.shares]
        arguments = [hold.name, amount, HOLD_SECONDS, SECONDS_BETWEEN_LOOKS, _KEPT_SECONDS, *limits]
        has_looked = False
        if hold.organization_id in self._unheard:
            await self._say(hold.organization_id)
        for _ in range(_TRIES):
            answer = await redis.attempt(_runs(hold_scripts.TAKE, keys, arguments))
            if answer is None:
                break
            self._accounts.clear()
            word = answer[0]
            if word == b"taken":
                if answer[1] == b"1":
                    for share in hold.shares:
                        background.spawn(self._look(share, in_redis=True))
                return None
            if word == b"settling":
                await asyncio.sleep(float(answer[1]))
            elif word == b"unknown":
                for share in hold.shares:
                    await self._look(share, in_redis=True)
            else:
                share = hold.shares[int(answer[1])]
                # A sum that is a moment old may be too high, as after credit was added.
                if has_looked or not await self._look(share, in_redis=True):
                    return Short(share, int(answer[2]), int(answer[3]))
                has_looked = True
        return await self._take_without(hold, amount)

    async def _take_without(self, hold: Hold, amount: int) -> Short | None:
        """Redis should count, and does not answer."""
        self._unheard.add(hold.organization_id)
        policy = app_settings.BUDGETS_WITHOUT_REDIS
        metrics.budgets_without_redis.add((policy,))
        if policy == "refuse":
            raise Overloaded(
                "The server cannot say what is left of a budget. Please try again in a moment.",
                headers={"retry-after": "1"},
            )
        return None if policy == "allow" else await self._take_here(hold, amount)

    async def _take_here(self, hold: Hold, amount: int) -> Short | None:
        for has_looked in (False, True):
            while stale := [share for share in hold.shares if self._is_stale(share)]:
                await self._look(stale[0], in_redis=False)
            accounts = [(share, self._accounts[_key(share)]) for share in hold.shares]
            short = take(accounts, hold.name, amount, now=time.time(), until=math.inf)
            if short is None:
                for share in hold.shares:
                    background.spawn(self._look(share, in_redis=False))
                return None
            if has_looked or not await self._look(short.share, in_redis=False):
                break
        return short

    def _is_stale(self, share: Share) -> bool:
        account = self._accounts.get(_key(share))
        return account is None or account.spent is None or time.time() >= account.true_until

    async def _look(self, share: Share, *, in_redis: bool) -> bool:
        """See what is billed; whether anything new is known now. One look at a time is enough for all who want it."""
        key = _key(share)
        looking = self._looks.get(key)
        if looking is None or looking.done() or looking.get_loop() is not asyncio.get_running_loop():
            looking = background.spawn(self._look_for_redis(share) if in_redis else self._look_here(share))
            self._looks[key] = looking
            looking.add_done_callback(lambda _: self._looks.pop(key, None))
        return await asyncio.shield(looking)

    async def _look_for_redis(self, share: Share) -> bool:
        keys = [_mark(share.budget.organization_id), *_keys(share)]
        arguments = [new_id("look"), SECONDS_BETWEEN_LOOKS, _NAMES_AT_A_LOOK, SETTLE_SECONDS, _KEPT_SECONDS]
        begun = await redis.attempt(_runs(hold_scripts.BEGIN, keys, arguments))
        if not begun:
            return False
        generation, ticket, is_first, *names = begun
        if is_first:
            await self._say(share.budget.organization_id)
        reading = await self._read(share, [name.decode() for name in names], bool(is_first), set(self.live))
        pairs = [part for pair in reading.unbilled.items() for part in pair]
        is_settled = int(bool(is_first) and reading.is_quiet)
        told = [generation, ticket, reading.spent_nano, f"{_believed(reading):.3f}", is_settled]
        finish = _runs(hold_scripts.FINISH, keys, [*told, len(reading.billed), *reading.billed, *pairs])
        return bool(await redis.attempt(finish))

    async def _look_here(self, share: Share) -> bool:
        account = self._accounts.get(_key(share))
        if account is None:
            account = self._accounts[_key(share)] = Account()
            if len(self._accounts) > _MAX_ACCOUNTS:
                oldest = next(iter(self._accounts))
                del self._accounts[oldest]
                self._looked_at.pop(oldest, None)
            # Before anything is read, so that no look misses what runs.
            for hold in [*self.live.values(), *self._untold.values()]:
                if share in hold.shares:
                    account.hold(hold.name, hold.amount, math.inf)
        is_first = account.spent is None
        now = time.time()
        if not self._is_stale(share) and now < self._looked_at.get(_key(share), 0.0) + SECONDS_BETWEEN_LOOKS:
            return False
        self._looked_at[_key(share)] = now
        ticket = account.draw()
        reading = await self._read(share, list(account.holds), is_first, set(self.live))
        for name, amount in reading.unbilled.items():
            if name not in account.holds:
                account.hold(name, amount, math.inf)
        for name in reading.billed:
            self._untold.pop(name, None)
        until = time.time() + _believed(reading)
        return account.refresh(ticket, reading.spent_nano, reading.billed, true_until=until)

    async def _tell_end(self, hold: Hold) -> None:
        if hold.taking is not None and not hold.taking.done():
            await asyncio.wait({hold.taking})
        if await self._tell([hold]):
            self._untold.pop(hold.name, None)
        else:
            self._keep_saying()

    async def _say(self, organization_id: int) -> None:
        """Say again what this process holds of an organisation's budgets."""
        mine = [hold for hold in self.live.values() if hold.organization_id == organization_id]
        ended = [hold for hold in self._untold.values() if hold.organization_id == organization_id]
        if await self._tell([*mine, *ended]):
            self._unheard.discard(organization_id)
            for hold in ended:
                self._untold.pop(hold.name, None)

    async def _tell(self, holds: Sequence[Hold]) -> bool:
        """Of one organisation. Whether Redis has heard."""
        if not holds:
            return True
        places: dict[str, int] = {}
        keys: list[str] = []
        said: list[Any] = [HOLD_SECONDS, _KEPT_SECONDS]
        for hold in holds:
            for share in hold.shares:
                if share.key not in places:
                    places[share.key] = len(places)
                    keys += _keys(share)
                said += [places[share.key], hold.name, hold.amount, int(hold.has_ended)]
        return await redis.attempt(_heard(_runs(hold_scripts.TELL, keys, said))) is True

    def _keep_saying(self) -> None:
        loop = asyncio.get_running_loop()
        if app_settings.REDIS_URL and (self._words is None or self._words.done() or self._words.get_loop() is not loop):
            self._words = loop.create_task(self._say_all(), name="holds of budgets", context=logs.of_nobody())

    async def _say_all(self) -> None:
        while self.live or self._untold:
            await asyncio.sleep(SECONDS_BETWEEN_WORDS)
            for organization_id in {hold.organization_id for hold in [*self.live.values(), *self._untold.values()]}:
                await self._say(organization_id)


def _heard(ask: redis.Ask[Any]) -> redis.Ask[bool]:
    async def asked(client: Any) -> bool:
        await ask(client)
        return True

    return asked


def _runs(script: str, keys: list[str], arguments: list[Any]) -> redis.Ask[Any]:
    return lambda client: client.register_script(script)(keys=keys, args=arguments)


def _believed(reading: Reading) -> float:
    """For how many seconds."""
    return max(0.0, min(reading.true_until - time.time(), SECONDS_BELIEVED))


def _key(share: Share) -> tuple[int, str]:
    return share.budget.organization_id, share.key


def _mark(organization_id: int) -> str:
    # In braces is what a cluster goes by: all of an organisation's are on one node.
    return f"{_PREFIX}:{{{organization_id}}}"


def _keys(share: Share) -> list[str]:
    key = f"{_mark(share.budget.organization_id)}:{share.key}"
    return [key, f"{key}:holds"]
