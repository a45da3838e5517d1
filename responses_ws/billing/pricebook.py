"""The price book: what anything costs, from prices that are held in memory."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from django.db.models import QuerySet

from responses_ws.models import Organization, Price
from responses_ws.protocol.usage import Usage
from responses_ws.runtime import dbpool
from responses_ws.runtime.recent import Recent

from . import pricing

SECONDS_BELIEVED = 60.0
"""Changes are heard of at once; this is for those that were made past the models."""
DATABASE_SECONDS = 2.0
DEFAULT_CURRENCY = Organization._meta.get_field("currency").default


class PriceBook:
    """What the tables said at some moment: all prices, past and future intervals too. Never changes."""

    def __init__(
        self, prices: Iterable[tuple[str, str, pricing.ListPrice]], currencies: Mapping[int, str] | None = None
    ) -> None:
        """From (currency, model, price), in the order of their starts; and the currencies of organisations."""
        self._currencies = currencies or {}
        self._prices: dict[tuple[str, str], list[pricing.ListPrice]] = defaultdict(list)
        for currency, model, price in prices:
            self._prices[currency, model].append(price)

    def currency_of(self, organization_id: int) -> str:
        return self._currencies.get(organization_id, DEFAULT_CURRENCY)

    def charge(
        self, currency: str, model: str, service_tier: str, started_at: datetime, usage: Usage, tool_calls: int = 0
    ) -> pricing.Charge:
        """What a response costs that has to be paid for; a turn keeps the prices of its start.

        Args:
            currency: its organisation's.
            model: the name that the client asked for.
            started_at: of the turn, aware.
            tool_calls: how many hosted tools were run.
        """
        prices = self._prices.get((currency, model), ())
        rates = pricing.rates_for(prices, moment=started_at, service_tier=service_tier, input_tokens=usage.input_tokens)
        return pricing.charge_for(usage, rates, model=model, tool_calls=tool_calls, currency=currency)


def read_book() -> PriceBook:
    """The price book as the database has it. Uses the ORM."""
    foreign = Organization.objects.exclude(currency=DEFAULT_CURRENCY).values_list("pk", "currency")
    return PriceBook(_listed(Price.objects.standing()), dict(foreign))


def read_pages(models: Iterable[str], organizations: Iterable[int]) -> PriceBook:
    """As much of the book as some responses are charged by. Uses the ORM."""
    currencies = Organization.objects.filter(pk__in=organizations).values_list("pk", "currency")
    return PriceBook(_listed(Price.objects.standing().filter(model__in=models)), dict(currencies))


def _listed(prices: QuerySet[Price]) -> Iterator[tuple[str, str, pricing.ListPrice]]:
    for price in prices.order_by("valid_from", "pk"):
        yield price.currency, price.model, _list_price(price)


def _list_price(price: Price) -> pricing.ListPrice:
    return pricing.ListPrice(
        price_id=price.pk,
        component=price.component,
        nano_per_million=price.nano_per_million,
        valid_from=price.valid_from,
        valid_to=price.valid_to,
        service_tier=price.service_tier,
        min_context=price.min_context,
    )


async def current_book() -> PriceBook:
    """The price book of this process: read once, and again when prices have changed. In between, from memory.

    Raises:
        Overloaded, TimeoutError: it was never read, and the database does not answer now.
    """
    global _known
    try:
        _known = await _recent.get(within=DATABASE_SECONDS)
    except Exception:
        # What was read last is the best there is.
        if _known is None:
            raise
    return _known


def forget() -> None:
    """Prices have changed: whoever comes next reads them."""
    _recent.forget()


def reset() -> None:
    """As in a new process, for tests."""
    global _known
    _known = None
    _recent.forget()


_known: PriceBook | None = None
_recent = Recent(lambda: dbpool.run(read_book), seconds=SECONDS_BELIEVED)
