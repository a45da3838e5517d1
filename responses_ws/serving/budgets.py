"""What a turn holds of the budgets that apply to it: before each of its engine calls, until it has ended."""

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from functools import partial

import msgspec
from django.db import Error

from responses_ws.billing import budgets as rows
from responses_ws.billing.pricebook import PriceBook, current_book
from responses_ws.connection.budgets import Book, Budget, Share, Short
from responses_ws.protocol.errors import ApiError
from responses_ws.protocol.usage import Usage
from responses_ws.runtime import dbpool, logs
from responses_ws.runtime.holds import Hold, Holds, Reading

from .admission import Principal

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_READS = 3.0
"""Budgets are read as often as this, and at once when somebody tells that they have changed."""

_NO_LIMIT = 2**62

_book: Book | None = None
_read_at = float("-inf")
_watching: "asyncio.Task[None] | None" = None
_changed = asyncio.Event()


def may_apply(principal: Principal) -> bool:
    """Whether this turn can have a budget, as far as is known. Where it cannot, nothing else is done for it."""
    return _book is None or principal.organization_id in _book or _watching is None or _watching.done()


def watch() -> None:
    """Know the budgets from now on. Idempotent."""
    global _watching, _changed
    loop = asyncio.get_running_loop()
    if _watching is None or _watching.done() or _watching.get_loop() is not loop:
        _changed = asyncio.Event()
        _watching = loop.create_task(_watch(), name="budgets", context=logs.of_nobody())


def changed() -> None:
    """Somebody has changed one: read them now."""
    _changed.set()


async def stop() -> None:
    global _watching
    task, _watching = _watching, None
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def reset() -> None:
    """As in a new process, for tests."""
    global _book, _watching
    _book = _watching = None
    holds.reset()


async def _watch() -> None:
    was_down = False
    while True:
        try:
            await _read_all()
            was_down = False
        except (ApiError, Error) as exc:
            if not was_down:
                logger.warning("Budgets cannot be read, those known so far hold: %s", type(exc).__name__)
            was_down = True
        try:
            async with asyncio.timeout(SECONDS_BETWEEN_READS):
                await _changed.wait()
        except TimeoutError:
            pass
        _changed.clear()


async def _read_all() -> Book:
    global _book, _read_at
    began_at = time.monotonic()
    _book = Book(await dbpool.run(rows.hard_budgets))
    _read_at = began_at
    return _book


async def _known() -> Book:
    """Raises Overloaded: they were never read, and the database does not answer."""
    watch()
    if _book is None or time.monotonic() - _read_at > 2 * SECONDS_BETWEEN_READS:
        try:
            return await _read_all()
        except ApiError:
            if _book is None:
                raise
    return _book


async def _read(share: Share, names: Sequence[str], is_first: bool, mine: Collection[str]) -> Reading:
    return await dbpool.run(rows.read, share, names, is_first, mine, await current_book())


holds = Holds(_read)


class Reservation:
    """What one response may cost at most, as long as it runs. Whoever has it tells its end."""

    def __init__(
        self,
        principal: Principal,
        shares: Sequence[Share],
        book: PriceBook,
        *,
        response_id: str,
        model: str,
        service_tier: str,
        started_at: datetime,
        is_warmup: bool,
    ) -> None:
        self._hold = Hold(response_id, shares)
        self._budgets_now = partial(_budgets_of, principal, model)
        self._cost = partial(
            rows.cost_of,
            book,
            organization_id=principal.organization_id,
            model=model,
            service_tier=service_tier,
            started_at=started_at,
            is_warmup=is_warmup,
        )

    async def cover(self, used: Usage, tool_calls: int, *, input_tokens: int, output_tokens: int) -> Short | None:
        """Hold what one more engine call may cost, beside what was used; or tell which budget is short.

        Raises:
            Overloaded: nobody can say what is left, and the settings want turns refused then.
        """
        amount = max(
            self._cost(status="completed", usage=used.plus(more), tool_calls=tool_calls)
            for more in _ways_to_count(input_tokens, output_tokens)
        )
        if amount <= self._hold.amount:
            # What was held for more is given back at the end only: the next call may need it.
            return None
        # A response may wait for a quarter of an hour: limits are those of now.
        limits = {budget.name: budget for budget in await self._budgets_now()}
        self._hold.shares = tuple(
            Share(limits.get(share.budget.name) or _unlimited(share.budget), share.window)
            for share in self._hold.shares
        )
        return await holds.take(self._hold, amount)

    def ended(self, status: str, usage: Usage, tool_calls: int) -> "asyncio.Task[None] | None":
        """What it has cost takes the place of what it held. Returns at once; see `Holds.end`."""
        return holds.end(self._hold, self._cost(status=status, usage=usage, tool_calls=tool_calls))

    def release(self) -> None:
        """Nothing has come of it. Idempotent, and without effect after its end."""
        holds.end(self._hold, 0)

    def let_go(self) -> None:
        """Another process goes on with it, and holds the same."""
        holds.let_go(self._hold)


def _unlimited(budget: Budget) -> Budget:
    """It has been taken away meanwhile; what is held of it is still told."""
    return msgspec.structs.replace(budget, limit_nano=_NO_LIMIT)


def _ways_to_count(input_tokens: int, output_tokens: int) -> Iterator[Usage]:
    """Nobody knows yet which parts the tokens will fall into: which of them are cached, which are reasoning."""
    for cached, written in ((0, 0), (input_tokens, 0), (0, input_tokens)):
        for reasoning in (0, output_tokens):
            yield Usage(
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                cached_tokens=cached,
                cache_write_tokens=written,
                reasoning_tokens=reasoning,
            )


async def _budgets_of(principal: Principal, model: str) -> list[Budget]:
    known = await _known()
    return known.of(principal.organization_id, principal.project_id, principal.api_key_id, model)


async def reservation_for(
    principal: Principal, *, response_id: str, model: str, service_tier: str, started_at: datetime, is_warmup: bool
) -> Reservation | None:
    """What a turn of this key holds its budgets by; None without any. Nothing is held yet.

    Raises:
        Overloaded: budgets were never read, and the database does not answer.
    """
    found = await _budgets_of(principal, model)
    if not found:
        return None
    return Reservation(
        principal,
        [budget.at(started_at) for budget in found],
        await current_book(),
        response_id=response_id,
        model=model,
        service_tier=service_tier,
        started_at=started_at,
        is_warmup=is_warmup,
    )
