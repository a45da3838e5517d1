"""Where prices come from: a CSV file, or the tables of the package genai-prices."""

import csv
import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from types import ModuleType
from typing import Any

import msgspec
from django.utils.dateparse import parse_date, parse_datetime

from responses_ws.models import Component, Price

from .pricing import MAX_AMOUNT_NANO, TOOL_CALL

REQUIRED = ("model", "component", "price")
OPTIONAL = ("currency", "service_tier", "min_context", "valid_from", "valid_to")
LENGTHS = {name: Price._meta.get_field(name).max_length for name in ("model", "service_tier")}
MAX_CONTEXT = 2**62

Thing = tuple[str, str, str, str, int]
"""Currency, model, service tier, component, least context: `Price.THING`."""

GENAI_COMPONENTS = {
    "input_mtok": "input",
    "cache_read_mtok": "cached_input",
    "cache_write_mtok": "cache_write",
    "output_mtok": "output",
    "output_reasoning_mtok": "reasoning",
}


class PricesRefused(ValueError):
    """Prices that cannot be taken over; nothing was written. ``problems`` says why, a sentence each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class WantedPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A price as somebody wants it. ``valid_from`` None: from now on; ``valid_to`` None: until the next one."""

    where: str
    """Where it was read, for messages."""
    thing: Thing
    nano_per_million: int
    valid_from: datetime | None = None
    valid_to: datetime | None = None


def nano_of_price(component: str, price: Decimal | str) -> int:
    """A price as people say it, for a million tokens or a thousand calls, in nano units for a million.

    Raises ValueError: it is no price, or has more decimals than there are nano units.
    """
    try:
        nano = Decimal(price).scaleb(12 if component == TOOL_CALL else 9)
    except InvalidOperation as exc:
        raise ValueError(f"{price!r} is not a price") from exc
    if not nano.is_finite() or not 0 <= nano <= MAX_AMOUNT_NANO * (1_000 if component == TOOL_CALL else 1):
        raise ValueError(f"{price!r} is not a price from 0 to 1,000,000")
    if nano != nano.to_integral_value():
        raise ValueError(f"{price!r} has more than {12 if component == TOOL_CALL else 9} decimals")
    return int(nano)


def read_csv(lines: Iterable[str]) -> list[WantedPrice]:
    """The prices of a CSV file with a header.

    Columns: ``model``, ``component``, ``price`` (for 1,000,000 tokens, or 1,000 calls); and, where wanted,
    ``currency`` (USD), ``service_tier``, ``min_context``, ``valid_from`` and ``valid_to`` (dates, or times; UTC unless
    they say otherwise).

    Raises PricesRefused, with every problem of every line.
    """
    rows = csv.DictReader(lines, skipinitialspace=True)
    try:
        return _read(rows)
    except csv.Error as exc:
        raise PricesRefused([f"line {rows.line_num + 1}: {exc}"]) from exc


def _read(rows: "csv.DictReader[str]") -> list[WantedPrice]:
    names = [(name or "").strip().lower() for name in rows.fieldnames or ()]
    rows.fieldnames = names
    problems = [f"the column {name} is missing" for name in REQUIRED if name not in names]
    problems += [f"there is no column {name!r}" for name in names if name not in REQUIRED + OPTIONAL]
    problems += [f"the column {name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
    if problems:
        raise PricesRefused([f"line 1: {problem}" for problem in problems])
    wanted = []
    for row in rows:
        where = f"line {rows.line_num}"
        try:
            wanted.append(_from_row(row, where))
        except ValueError as exc:
            problems.append(f"{where}: {exc}")
    if problems:
        raise PricesRefused(problems)
    if not wanted:
        raise PricesRefused(["there is no price in it"])
    return wanted


def _from_row(row: dict[str, Any], where: str) -> WantedPrice:
    if None in row or None in row.values():
        raise ValueError("it has more or fewer cells than the first line")
    cells = {name: value.strip() for name, value in row.items()}
    component, currency = cells["component"], cells.get("currency") or "USD"
    if component not in Component.values:
        raise ValueError(f"{component!r} is none of {', '.join(Component.values)}")
    if not (len(currency) == 3 and currency.isascii() and currency.isalpha() and currency.isupper()):
        raise ValueError(f"{currency!r} is not a currency such as USD")
    if not cells["model"]:
        raise ValueError("the model is empty")
    for name, length in LENGTHS.items():
        if len(cells.get(name, "")) > length:
            raise ValueError(f"{name} has more than {length} characters")
    context = cells.get("min_context") or "0"
    if not (context.isascii() and context.isdecimal() and int(context) <= MAX_CONTEXT):
        raise ValueError(f"{context!r} is not a number of tokens")
    valid_from, valid_to = (_moment(cells.get(name, "")) for name in ("valid_from", "valid_to"))
    if valid_to is not None and valid_from is None:
        raise ValueError("valid_to needs a valid_from")
    if valid_from is not None and valid_to is not None and valid_to <= valid_from:
        raise ValueError("it ends before it starts")
    return WantedPrice(
        where=where,
        thing=(currency, cells["model"], cells.get("service_tier", ""), component, int(context)),
        nano_per_million=nano_of_price(component, cells["price"]),
        valid_from=valid_from,
        valid_to=valid_to,
    )


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = parse_datetime(text)
        if moment is None and (day := parse_date(text)) is not None:
            moment = datetime(day.year, day.month, day.day)
    except ValueError:
        moment = None
    if moment is None:
        raise ValueError(f"{text!r} is neither a date such as 2027-01-31 nor a time")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_genai_prices(
    provider: str,
    patterns: Iterable[str],
    *,
    markup: Decimal = Decimal(1),
    currency: str = "USD",
    rename: str = "",
    with_history: bool = False,
    now: datetime,
) -> tuple[list[WantedPrice], list[str]]:
    """List prices of a provider's models, each times ``markup``, and notes on what was left out.

    Those that are valid from now on; with ``with_history`` those of the past, too. Names are the package's ids, or for
    one model ``rename``. What has no component of ours (images, hours, searches) is left out and noted.

    Raises PricesRefused: the package is missing, or nothing or too much matches, or a price cannot be taken over.
    """
    package = _genai_prices()
    found = next((one for one in package.data.providers if one.id == provider), None)
    if found is None:
        raise PricesRefused([f"genai-prices knows no provider {provider!r}"])
    patterns = list(patterns)
    models = [one for one in found.models if any(fnmatch.fnmatchcase(one.id, pattern) for pattern in patterns)]
    if not models:
        raise PricesRefused([f"genai-prices knows no model of {provider} that is called {' or '.join(patterns)}"])
    if rename and len(models) > 1:
        raise PricesRefused([f"{len(models)} models match: only one can be called {rename}"])
    wanted, notes, problems = [], [], []
    for model in models:
        try:
            series, left_out = _series_of(model, markup, with_history=with_history, now=now)
        except ValueError as exc:
            problems.append(f"{provider} {model.id}: {exc}")
            continue
        if left_out:
            notes.append(f"{model.id}: no component of ours: {', '.join(sorted(left_out))}")
        for (service_tier, component, context), steps in sorted(series.items()):
            for start, end, nano in steps:
                thing = (currency, rename or model.id, service_tier, component, context)
                wanted.append(
                    WantedPrice(
                        where=f"{provider} {model.id}",
                        thing=thing,
                        nano_per_million=nano,
                        valid_from=start,
                        valid_to=end,
                    )
                )
    if problems:
        raise PricesRefused(problems)
    return wanted, notes


def _genai_prices() -> ModuleType:
    try:
        import genai_prices
        import genai_prices.data
    except ImportError as exc:
        raise PricesRefused(["genai-prices is not installed: pip install 'responses-ws[prices]'"]) from exc
    return genai_prices


Steps = list[tuple[datetime | None, datetime | None, int]]
"""(start, end, nano per million), in order."""


def _series_of(
    model: Any, markup: Decimal, *, with_history: bool, now: datetime
) -> tuple[dict[tuple[str, str, int], Steps], set[str]]:
    """The steps of each of a model's prices by service tier, component and least context; and what was left out."""
    prices = model.prices if isinstance(model.prices, list) else [None]
    constraints = [one.constraint for one in (*prices, *(model.price_variants or ())) if one is not None]
    dates = [getattr(constraint, "start_date", None) for constraint in constraints]
    if any(hasattr(constraint, "start_time") for constraint in constraints):
        raise ValueError("its price depends on the time of day")
    starts = sorted({datetime(date.year, date.month, date.day, tzinfo=UTC) for date in dates if date is not None})
    past = [start for start in starts if start <= now]
    moments: list[datetime | None] = [None, *starts] if with_history else [None, *starts[len(past) :]]
    series: dict[tuple[str, str, int], Steps] = defaultdict(list)
    left_out: set[str] = set()
    for number, start in enumerate(moments):
        end = moments[number + 1] if number + 1 < len(moments) else None
        asked_at = start or (datetime(1970, 1, 2, tzinfo=UTC) if with_history else now)
        begins = start or (datetime(2020, 1, 1, tzinfo=UTC) if with_history else None)
        for place, price in _list_of(model, asked_at, left_out):
            nano = int((price * markup).scaleb(9).to_integral_value())
            steps = series[place]
            if steps and steps[-1][1] == start and steps[-1][2] == nano:
                begins_before, _end, _nano = steps.pop()
                steps.append((begins_before, end, nano))
            else:
                steps.append((begins, end, nano))
    return series, left_out


def _list_of(model: Any, moment: datetime, left_out: set[str]) -> Iterator[tuple[tuple[str, str, int], Decimal]]:
    """A model's prices at a moment: ((service tier, component, least context), USD for a million tokens)."""
    service_tiers = {
        one.when["service_tier"] for one in model.price_variants or () if set(one.when) == {"service_tier"}
    }
    for service_tier in ("", *sorted(service_tiers)):
        prices = model.get_prices(moment, {"service_tier": service_tier} if service_tier else None)
        for key, price in sorted(vars(prices).items()):
            if price is None:
                continue
            component = GENAI_COMPONENTS.get(key)
            if component is None:
                left_out.add(key)
                continue
            yield (service_tier, component, 0), getattr(price, "base", price)
            for tier in getattr(price, "tiers", ()):
                # Theirs begin behind so many tokens, ours with them.
                yield (service_tier, component, tier.start + 1), tier.price
