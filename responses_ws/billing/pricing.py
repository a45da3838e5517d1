"""What a usage costs. Pure: tokens and prices in, integers of nano units of a currency (10⁻⁹ USD, say) out."""

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from responses_ws.protocol.usage import Usage

TOKENS_PER_PRICE = 1_000_000
MAX_AMOUNT_NANO = 10**15
"""A million USD for one response. Nobody owes that: an engine that counts wrong is held back, with a memo."""

FALLBACKS = {"cached_input": "input", "cache_write": "input", "reasoning": "output"}
"""The whole that a part stays in when it has no price of its own."""

TOOL_CALL = "tool_call"


class ListPrice(msgspec.Struct, frozen=True, kw_only=True):
    """One price of a model as the price book has it."""

    price_id: int
    component: str
    nano_per_million: int
    valid_from: datetime
    valid_to: datetime | None = None
    service_tier: str = ""
    """Empty: of all tiers."""
    min_context: int = 0
    """Of responses with at least so many input tokens."""

    def is_valid_at(self, moment: datetime) -> bool:
        return self.valid_from <= moment and (self.valid_to is None or moment < self.valid_to)


class Rate(msgspec.Struct, frozen=True):
    """One price as the rater takes it."""

    price_id: int
    nano_per_million: int


class Line(msgspec.Struct, frozen=True):
    """Tokens of one component (or calls), and what they cost. ``price_id`` is None where nothing is charged."""

    component: str
    quantity: int
    price_id: int | None
    amount_nano: int


class Charge(msgspec.Struct, frozen=True):
    """What one response costs: the working, the sum, and why the sum is what it is."""

    lines: tuple[Line, ...]
    memo: str = ""

    @property
    def amount_nano(self) -> int:
        return sum(line.amount_nano for line in self.lines)


def partition(usage: Usage) -> dict[str, int]:
    """The tokens of a usage by component, in parts that never overlap; their sum is input plus output.

    Cached and written tokens are inside ``input_tokens``, reasoning inside ``output_tokens``: they are taken out
    first, so that nothing is charged twice.

    Source: OpenAI ``ResponseUsage``.
    """
    return {
        "input": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cached_input": usage.cached_tokens,
        "cache_write": usage.cache_write_tokens,
        "output": usage.output_tokens - usage.reasoning_tokens,
        "reasoning": usage.reasoning_tokens,
    }


def amount_for(quantity: int, nano_per_million: int) -> int:
    """Nano units for some tokens, rounded half-even. Integers only: a float is wrong in the sixth place."""
    whole, rest = divmod(quantity * nano_per_million, TOKENS_PER_PRICE)
    half = TOKENS_PER_PRICE // 2
    return whole + (rest > half or (rest == half and whole % 2 == 1))


def rates_for(
    prices: Iterable[ListPrice], *, moment: datetime, service_tier: str, input_tokens: int
) -> dict[str, Rate]:
    """The prices of a model that a response is charged by, one a component.

    The tier's own prices come before those of all tiers, and there the highest context that the input reaches: it
    prices the whole request. A part has no rate where its whole has one that comes first, so that it stays in its
    whole instead of being charged by the prices of another tier.

    Args:
        prices: in the order of their starts; where two overlap, the later one wins.
        moment: when the response started.
        input_tokens: all of them, cached ones too.
    """
    places: dict[tuple[bool, int], dict[str, Rate]] = {}
    for price in prices:
        if price.min_context <= input_tokens and price.service_tier in ("", service_tier) and price.is_valid_at(moment):
            place = places.setdefault((price.service_tier != "", price.min_context), {})
            place[price.component] = Rate(price.price_id, price.nano_per_million)
    if len(places) == 1:
        return places.popitem()[1]
    rates: dict[str, Rate] = {}
    for _, place in sorted(places.items(), reverse=True):
        rates |= {
            component: rate
            for component, rate in place.items()
            if component not in rates and FALLBACKS.get(component) not in rates
        }
    return rates


def charge_for(
    usage: Usage, rates: Mapping[str, Rate], *, model: str, tool_calls: int = 0, currency: str = "USD"
) -> Charge:
    """Rate a usage: one line per component that was used, rounded once each.

    A part without a price of its own stays in its whole (`FALLBACKS`) and is charged like it. Never raises: what
    has no price costs nothing and the memo says so; but calls of hosted tools, which cost extra only where they have
    a price.

    Args:
        rates: by component, the prices valid when the response started.
        model: named in the memo.
        tool_calls: how many hosted tools were run.
    """
    quantities = partition(usage)
    for part, whole in FALLBACKS.items():
        if part not in rates:
            quantities[whole] += quantities.pop(part)
    quantities[TOOL_CALL] = tool_calls
    used = {component: quantity for component, quantity in quantities.items() if quantity}
    lines = tuple(_line(component, quantity, rates.get(component)) for component, quantity in used.items())
    charge = Charge(lines, _memo(lines, rates, model, currency))
    if charge.amount_nano > MAX_AMOUNT_NANO:
        held = f"held: {charge.amount_nano // 10**9:,} {currency} for one response cannot be right"
        return waived(usage, held, tool_calls=tool_calls)
    return charge


def waived(usage: Usage, memo: str, *, tool_calls: int = 0) -> Charge:
    """The charge of a response that costs nothing: its tokens are noted all the same."""
    used = {**partition(usage), TOOL_CALL: tool_calls}
    return Charge(tuple(_line(component, quantity, None) for component, quantity in used.items() if quantity), memo)


def _line(component: str, quantity: int, rate: Rate | None) -> Line:
    if rate is None:
        return Line(component, quantity, None, 0)
    return Line(component, quantity, rate.price_id, amount_for(quantity, rate.nano_per_million))


def _memo(lines: tuple[Line, ...], rates: Mapping[str, Rate], model: str, currency: str) -> str:
    of_tokens = [line for line in lines if line.component != TOOL_CALL]
    unpriced = [line.component for line in of_tokens if line.price_id is None]
    if unpriced and not any(line.price_id for line in lines):
        return f"no price in {currency} for model {model}"
    if unpriced:
        return f"no price in {currency} for {' and '.join(unpriced)} of model {model}"
    if any(line.amount_nano for line in lines):
        return ""
    if not of_tokens:
        return "no tokens"
    return (
        "rounds to zero" if any(rates[line.component].nano_per_million for line in of_tokens) else "the price is zero"
    )
