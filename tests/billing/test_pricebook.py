"""A process knows all prices, and hears when they change."""

import asyncio
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection

from responses_ws.billing import ledger, pricebook
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Account, ControlMessage, Journal, Organization, Price
from responses_ws.protocol.errors import ApiError
from responses_ws.protocol.usage import Usage
from responses_ws.runtime import dbpool
from responses_ws.runtime.bus import bus
from responses_ws.transports import control

from .rows import NOON, make_prices, make_project, make_record

USAGE = Usage(input_tokens=1_000, cached_tokens=600, output_tokens=100)


def charge(book, **fields):
    asked = {"currency": "USD", "model": "m", "service_tier": "default", "started_at": NOON, "usage": USAGE} | fields
    return book.charge(**asked)


@pytest.mark.django_db
def test_the_book_charges_as_the_ledger_does():
    make_prices()
    Price.objects.create(model="m", component="tool_call", nano_per_million=25_000 * 10**9, valid_from=NOON)
    record = make_record(input_tokens=1_000, cached_tokens=600, output_tokens=100, tool_calls=3)

    book = pricebook.read_book()
    ledger.bill_batch()

    lines = Journal.objects.get().lines.order_by("id").values_list("component", "quantity", "price_id", "amount_nano")
    told = charge(book, tool_calls=record.tool_calls)
    assert [(line.component, line.quantity, line.price_id, line.amount_nano) for line in told.lines] == list(lines)
    assert told.amount_nano == 800_000 + 300_000 + 800_000 + 75_000_000
    assert reconcile() == []


@pytest.mark.django_db
def test_an_organisation_is_charged_in_its_currency_and_owes_in_it():
    make_prices()
    make_prices(per_million={"input": 10**9}, currency="EUR")
    euro = make_project("globex")
    Organization.objects.filter(name="globex").update(currency="EUR")
    make_record(euro)
    make_record()

    ledger.bill_batch()

    balances = Account.objects.filter(kind="receivable").values_list("organization__name", "currency", "balance_nano")
    assert set(balances) == {("globex", "EUR", 1_000_000), ("acme", "USD", 2_800_000)}
    assert Journal.objects.get(organization__name="globex").memo == "no price in EUR for output of model m"
    book = pricebook.read_book()
    assert (book.currency_of(euro.organization_id), book.currency_of(0)) == ("EUR", "USD")
    assert reconcile() == []


@pytest.mark.django_db
def test_calls_of_hosted_tools_without_a_price_are_free_and_noted():
    make_prices()
    make_record(tool_calls=2)

    ledger.bill_batch()

    journal = Journal.objects.get()
    assert journal.memo == ""
    assert journal.lines.get(component="tool_call").amount_nano == 0
    assert reconcile() == []


@pytest.mark.django_db
def test_calls_of_a_response_that_is_free_are_noted():
    make_prices()
    make_record(status="failed", tool_calls=2)

    ledger.bill_batch()

    lines = Journal.objects.get().lines.values_list("component", "quantity", "amount_nano")
    assert ("tool_call", 2, 0) in list(lines)


@pytest.mark.parametrize(
    ("tool_calls", "usage", "memo"),
    [
        pytest.param(2, Usage(), "", id="only calls"),
        pytest.param(2, USAGE, "no price in USD for input and output of model m", id="calls are charged, tokens not"),
        pytest.param(0, USAGE, "no price in USD for model m", id="only tokens"),
        pytest.param(0, Usage(), "no tokens", id="nothing"),
    ],
)
def test_a_model_whose_calls_alone_have_a_price(tool_calls, usage, memo):
    price = pricebook.pricing.ListPrice(
        price_id=1, component="tool_call", nano_per_million=10**13, valid_from=NOON - timedelta(days=1)
    )
    book = pricebook.PriceBook([("USD", "m", price)])

    told = charge(book, usage=usage, tool_calls=tool_calls)

    assert (told.memo, told.amount_nano) == (memo, tool_calls * 10**7)


@pytest.mark.django_db
def test_what_changes_prices_or_currencies_tells_every_process():
    def told(change):
        ControlMessage.objects.all().delete()
        change()
        return list(ControlMessage.objects.values_list("kind", flat=True))

    price = make_prices()[0]
    owner = make_project().organization

    assert told(price.save) == ["prices_changed"]
    assert told(price.delete) == ["prices_changed"]
    assert told(owner.save) == ["prices_changed"]
    assert told(lambda: Organization.objects.create(name="initech", currency="CHF")) == ["prices_changed"]
    assert told(lambda: Organization.objects.create(name="umbrella")) == []


@pytest.mark.django_db(transaction=True)
async def test_a_process_reads_prices_once_and_again_when_it_hears_that_they_have_changed():
    await dbpool.run(make_prices)
    first = await pricebook.current_book()
    assert await pricebook.current_book() is first
    await control.listen()

    try:
        await dbpool.run(lambda: make_prices("new"))

        for _ in range(3_000):
            if charge(await pricebook.current_book(), model="new").amount_nano == 1_900_000:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("a price that was added is not known within 30 seconds")
    finally:
        await bus.stop()
    assert charge(first, model="new").memo == "no price in USD for model new"


@pytest.mark.django_db(transaction=True)
async def test_prices_that_cannot_be_read_again_stay_as_they_are_known():
    await dbpool.run(make_prices)
    first = await pricebook.current_book()
    pricebook.forget()

    await dbpool.run(_hide_prices)
    try:
        assert await pricebook.current_book() is first
        pricebook.reset()
        with pytest.raises((ApiError, DatabaseError)):
            await pricebook.current_book()
    finally:
        await dbpool.run(_show_prices)


def _hide_prices():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE responses_ws_price RENAME TO hidden_price")


def _show_prices():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE hidden_price RENAME TO responses_ws_price")
