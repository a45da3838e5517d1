"""Taking prices over: old intervals end, new ones start. What is there already is left alone."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

import msgspec
from django.db import router, transaction

from responses_ws.models import Price

from .money import plain
from .price_sources import PricesRefused, Thing, WantedPrice
from .pricing import TOOL_CALL


class Plan(msgspec.Struct):
    """What taking prices over would change. Rows are not written yet."""

    added: list[Price] = []
    ended: list[tuple[Price, datetime]] = []
    """Prices, and when they end."""
    removed: list[Price] = []
    """Prices that nothing was ever charged by, in the place of which another one starts."""
    withdrawn: list[Price] = []
    """Used prices that were wrong from their start."""
    unchanged: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.ended or self.removed or self.withdrawn)

    def lines(self) -> list[str]:
        """What changes, a line each."""
        told = [f"- {described(price)}: it was wrong, and is withdrawn" for price in self.withdrawn]
        told += [f"- {described(price)}: never used, replaced" for price in self.removed]
        told += [f"- {described(price)}: ends {at:%Y-%m-%d %H:%M}" for price, at in self.ended]
        return [*told, *(f"+ {described(price)}" for price in self.added)]


def described(price: Price) -> str:
    """A price in a line: ``USD gpt-5 flex input from 200,001 tokens: 2.50 per million tokens, from 2026-11-30``."""
    context = f" from {price.min_context:,} tokens" if price.min_context else ""
    of_calls = price.component == TOOL_CALL
    amount, unit = price.nano_per_million, "thousand calls" if of_calls else "million tokens"
    shown = plain(amount // 1_000) if of_calls else plain(amount)
    start, end = (moment and f"{moment:%Y-%m-%d %H:%M}" for moment in (price.valid_from, price.valid_to))
    names = " ".join(filter(None, (price.currency, price.model, price.service_tier, price.component)))
    return f"{names}{context}: {shown} per {unit}, from {start}{f' to {end}' if end else ''}"


def take_over(
    wanted: Iterable[WantedPrice], now: datetime, *, apply: bool, correct: bool = False, ends_others: bool = False
) -> Plan:
    """Make the book say what is wanted, all of it or nothing. Uses the ORM.

    Args:
        apply: without, nothing is written.
        correct: prices that were used may be withdrawn, or end before they were used last: what was charged by them is
            to be rated again.
        ends_others: what else the book has of the same models (but for calls) ends.

    Raises PricesRefused, with every problem.
    """
    with transaction.atomic(using=router.db_for_write(Price)):
        plan = plan_for(list(wanted), now, correct=correct, ends_others=ends_others)
        if apply:
            _write(plan)
    return plan


def plan_for(wanted: list[WantedPrice], now: datetime, *, correct: bool, ends_others: bool) -> Plan:
    """What has to change."""
    by_thing: dict[Thing, list[WantedPrice]] = defaultdict(list)
    for one in wanted:
        by_thing[one.thing].append(one)
    standing: dict[Thing, list[Price]] = defaultdict(list)
    models = {model for _currency, model, *_rest in by_thing}
    for price in Price.objects.standing().filter(model__in=models).order_by("valid_from"):
        standing[tuple(getattr(price, name) for name in Price.THING)].append(price)
    plan, problems = Plan(), []
    for thing, rows in by_thing.items():
        try:
            _change(plan, thing, _in_order(rows, standing[thing], now), standing[thing], now, correct=correct)
        except ValueError as exc:
            problems.append(str(exc))
    if ends_others:
        pages = {thing[:2] for thing in by_thing}
        for thing, prices in standing.items():
            if thing not in by_thing and thing[:2] in pages and thing[3] != TOOL_CALL:
                plan.ended += [(price, now) for price in prices if price.is_valid_at(now)]
                plan.removed += [price for price in prices if price.valid_from > now]
    if problems:
        raise PricesRefused(problems)
    return plan


def _reaches(end: datetime | None, moment: datetime) -> bool:
    return end is None or end > moment


def _in_order(rows: list[WantedPrice], standing: list[Price], now: datetime) -> list[WantedPrice]:
    """By their starts, each with its start, and its end: its own, or the start of the next. Raises ValueError."""
    dated = max((row.valid_from for row in rows if row.valid_from is not None and row.valid_from <= now), default=None)
    started = []
    for row in rows:
        if row.valid_from is None:
            # From now on: or since it has been so, where it is so already.
            since = [
                price.valid_from
                for price in standing
                if price.is_valid_at(now) and price.nano_per_million == row.nano_per_million
            ]
            is_known = since and (dated is None or since[0] > dated)
            row = msgspec.structs.replace(row, valid_from=since[0] if is_known else now)
        started.append(row)
    started.sort(key=_start_of)
    for before, row in zip(started, started[1:], strict=False):
        if _start_of(before) == _start_of(row) or (before.valid_to is not None and before.valid_to > _start_of(row)):
            raise ValueError(f"{row.where}: it overlaps {before.where}, which is for the same thing")
    ends = [*map(_start_of, started[1:]), None]
    return [msgspec.structs.replace(row, valid_to=row.valid_to or end) for row, end in zip(started, ends, strict=True)]


def _start_of(row: WantedPrice) -> datetime:
    assert row.valid_from is not None, "rows are given their starts first"
    return row.valid_from


def _change(
    plan: Plan, thing: Thing, rows: list[WantedPrice], standing: list[Price], now: datetime, *, correct: bool
) -> None:
    """Add to the plan what one thing needs. Raises ValueError."""
    kept = list(standing)
    ends: dict[int, datetime] = {}
    for row, follows in zip(rows, [*rows[1:], None], strict=True):
        start, end = _start_of(row), row.valid_to
        if end is None:
            # What is planned for later stays planned.
            later = [price.valid_from for price in kept if price.valid_from > start]
            end = min(later, default=None)
        if any(_says(price, row.nano_per_million, start, end) for price in kept if price.pk not in ends):
            plan.unchanged += 1
            continue
        is_followed = follows is not None and follows.valid_from == end
        for price in [price for price in kept if _overlaps(price, ends, start, end)]:
            if end is not None and _reaches(ends.get(price.pk, price.valid_to), end) and not is_followed:
                raise ValueError(f"{row.where}: from {end:%Y-%m-%d %H:%M} on nothing would have a price: add a row")
            used_at = price.last_used_at if start < now and not correct else None
            if used_at is not None and used_at >= start:
                raise ValueError(
                    f"{row.where}: turns that started until {used_at:%Y-%m-%d %H:%M:%S} were billed by another price:"
                    " start later, or correct it"
                )
            if price.valid_from < start:
                ends[price.pk] = start
                continue
            kept.remove(price)
            (plan.withdrawn if price.is_used else plan.removed).append(price)
        added = dict(zip(Price.THING, thing, strict=True))
        plan.added.append(Price(**added, nano_per_million=row.nano_per_million, valid_from=start, valid_to=end))
    plan.ended += [(price, ends[price.pk]) for price in kept if price.pk in ends]


def _says(price: Price, nano_per_million: int, start: datetime, end: datetime | None) -> bool:
    """Whether it is the price from ``start`` to ``end`` already."""
    reaches = price.valid_to is None or (end is not None and end <= price.valid_to)
    return price.nano_per_million == nano_per_million and price.valid_from <= start and reaches


def _overlaps(price: Price, ends: dict[int, datetime], start: datetime, end: datetime | None) -> bool:
    return _reaches(ends.get(price.pk, price.valid_to), start) and (end is None or price.valid_from < end)


def _write(plan: Plan) -> None:
    for price in plan.removed:
        price.delete()
    for price in plan.withdrawn:
        price.withdraw()
    for price, end in plan.ended:
        price.valid_to = end
        price.save(update_fields=["valid_to"])
    for price in plan.added:
        price.save(force_insert=True)
