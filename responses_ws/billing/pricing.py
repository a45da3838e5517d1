"""What a usage costs. Pure: tokens and prices in, integers of nano-USD (10⁻⁹ USD) out."""

from collections.abc import Mapping

import msgspec

from responses_ws.protocol.usage import Usage

TOKENS_PER_PRICE = 1_000_000
MAX_AMOUNT_NANO = 10**15
"""$1,000,000 for one response. Nobody owes that: an engine that counts wrong is held back, with a memo, not billed."""

FALLBACKS = {"cached_input": "input", "cache_write": "input", "reasoning": "output"}
"""The whole that a part stays in when it has no price of its own."""


class Rate(msgspec.Struct, frozen=True):
    """One price as the rater takes it."""

    price_id: int
    nano_per_million: int


class Line(msgspec.Struct, frozen=True):
    """Tokens of one component, and what they cost. ``price_id`` is None where nothing is charged."""

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


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Which endings are billed; the settings of the same names, in capitals."""

    bill_cancelled: bool = True
    bill_warmup: bool = False
    bill_abandoned: bool = True


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
    """Nano-USD for some tokens, rounded half-even. Integers only: a float is wrong in the sixth place."""
    whole, rest = divmod(quantity * nano_per_million, TOKENS_PER_PRICE)
    half = TOKENS_PER_PRICE // 2
    return whole + (rest > half or (rest == half and whole % 2 == 1))


def charge_for(usage: Usage, rates: Mapping[str, Rate], *, model: str) -> Charge:
    """Rate a usage: one line per component that has tokens, rounded once each.

    A part without a price of its own stays in its whole (`FALLBACKS`) and is charged like it. Never raises: what
    has no price costs nothing and the memo says so.

    Args:
        rates: by component, the prices valid when the response started.
        model: named in the memo.
    """
    quantities = partition(usage)
    for part, whole in FALLBACKS.items():
        if part not in rates:
            quantities[whole] += quantities.pop(part)
    used = {component: quantity for component, quantity in quantities.items() if quantity}
    lines = tuple(_line(component, quantity, rates.get(component)) for component, quantity in used.items())
    charge = Charge(lines, _memo(lines, rates, model))
    if charge.amount_nano > MAX_AMOUNT_NANO:
        return waived(usage, f"held: {charge.amount_nano // 10**9:,} USD for one response cannot be right")
    return charge


def waived(usage: Usage, memo: str) -> Charge:
    """The charge of a response that costs nothing: its tokens are noted all the same."""
    lines = tuple(_line(component, quantity, None) for component, quantity in partition(usage).items() if quantity)
    return Charge(lines, memo)


def waiver_for(status: str, *, is_warmup: bool, policy: Policy) -> str:
    """Why a response that ended like this is free, or an empty string when it is to be paid."""
    if status == "failed":
        return "failed: provider failures are free"
    if is_warmup and not policy.bill_warmup:
        return "warm-up: the engine did no work"
    if status == "cancelled" and not policy.bill_cancelled:
        return "cancelled: not billed by policy"
    if status == "abandoned" and not policy.bill_abandoned:
        return "abandoned: not billed by policy"
    return ""


def _line(component: str, quantity: int, rate: Rate | None) -> Line:
    if rate is None:
        return Line(component, quantity, None, 0)
    return Line(component, quantity, rate.price_id, amount_for(quantity, rate.nano_per_million))


def _memo(lines: tuple[Line, ...], rates: Mapping[str, Rate], model: str) -> str:
    if not lines:
        return "no tokens"
    unpriced = [line.component for line in lines if line.price_id is None]
    if len(unpriced) == len(lines):
        return f"no price for model {model}"
    if unpriced:
        return f"no price for {' and '.join(unpriced)} of model {model}"
    if any(line.amount_nano for line in lines):
        return ""
    return "rounds to zero" if any(rates[line.component].nano_per_million for line in lines) else "the price is zero"
