"""Stripe's meters count what the ledger says, each entry once, in the words that Stripe knows."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from responses_ws.billing import credits, deliveries, ledger
from responses_ws.models import Delivery, Journal, Organization

from .receivers import Meter
from .rows import make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

STRIPE = "responses_ws.billing.sinks.stripe.StripeMeter"
COST = 2_800_000


@pytest.fixture
def organization() -> Organization:
    make_prices()
    owner = make_project().organization
    Organization.objects.filter(pk=owner.pk).update(stripe_customer="cus_acme")
    return owner


@pytest.fixture
def configure(settings: Any) -> Any:
    def configure(meter: Meter, **options: Any) -> None:
        given = {"SINK": STRIPE, "API_KEY": Meter.KEY, "EVENT_NAME": "spend", "URL": f"{meter.origin}/v1", **options}
        more = {"BILLING_SINKS": {"stripe": given}, "WEBHOOK_ORIGINS": [meter.origin]}
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, **more}

    return configure


@pytest.fixture
def meter(organization: Organization, configure: Any) -> Iterator[Meter]:
    with Meter("cus_acme", "cus_globex") as running:
        configure(running)
        yield running


def use(count: int = 1, **fields: Any) -> None:
    for _ in range(count):
        make_record(**{"started_at": timezone.now() - timedelta(minutes=5), **fields})
    ledger.bill_all()


def test_an_event_is_what_stripe_asks_for(meter: Meter) -> None:
    at = timezone.now() - timedelta(days=2)
    use(started_at=at, response_id="resp_one")

    assert deliveries.deliver() == 1

    assert list(meter.events.values()) == [
        {
            "event_name": "spend",
            "identifier": "usage:resp_one:1:spend",
            "timestamp": str(int(at.timestamp())),
            "payload[stripe_customer_id]": "cus_acme",
            "payload[value]": str(COST),
        }
    ]
    headers = meter.heard[0].headers
    assert headers["content-type"] == "application/x-www-form-urlencoded"
    assert headers["stripe-version"] >= "2024-09-30"


def test_an_event_that_it_has_already_has_arrived(meter: Meter) -> None:
    """A worker died between the answer and the row."""
    use()
    deliveries.deliver()
    Delivery.objects.update(sent_at=None, due_at=timezone.now())

    assert deliveries.deliver() == 1

    assert (len(meter.heard), meter.sums()) == (2, {"cus_acme": COST})
    assert Delivery.objects.get().state == "sent"


def test_corrections_are_negative_and_of_now(meter: Meter) -> None:
    use(started_at=timezone.now() - timedelta(days=20))
    ledger.reverse(Journal.objects.get(), "a test")
    deliveries.deliver()

    reversal = next(event for name, event in meter.events.items() if name.startswith("reversal:"))

    assert reversal["payload[value]"] == str(-COST)
    assert int(reversal["timestamp"]) == int(Journal.objects.get(kind="reversal").posted_at.timestamp())
    assert meter.sums() == {"cus_acme": 0}


@pytest.mark.parametrize(
    ("value", "counted"),
    [("owed_nano", 3 * COST - 10**6), ("amount_nano", 3 * COST), ("input_tokens", 3_000), ("responses", 3)],
)
def test_it_counts_what_it_is_told_to_count(
    organization: Organization, configure: Any, value: str, counted: int
) -> None:
    credits.grant(organization, 10**6, kind="paid")
    with Meter("cus_acme") as meter:
        configure(meter, VALUE=value)
        use(3)
        deliveries.deliver()

    assert meter.sums() == {"cus_acme": counted}


def test_only_organisations_with_a_customer_are_told_of(meter: Meter) -> None:
    use(project=make_project("nobody"))
    use()
    deliveries.deliver()

    assert meter.sums() == {"cus_acme": COST}
    assert Delivery.objects.count() == 1


def test_a_customer_is_told_of_one_event_at_a_time_and_several_customers_at_once(meter: Meter) -> None:
    globex = make_project("globex")
    Organization.objects.filter(pk=globex.organization_id).update(stripe_customer="cus_globex")
    both = threading.Barrier(2)
    # Waits until one of either is there: so they are told side by side.
    meter.during = lambda: both.wait(30)
    for _ in range(3):
        make_record(started_at=timezone.now())
        make_record(globex, started_at=timezone.now())
    ledger.bill_all()

    assert deliveries.deliver() == 6

    assert meter.most_at_once == {"cus_acme": 1, "cus_globex": 1}


def test_what_it_refuses_is_a_dead_letter_that_says_why_and_goes_out_once_mended(
    meter: Meter, organization: Organization
) -> None:
    Organization.objects.filter(pk=organization.pk).update(stripe_customer="cus_acmee")
    use()
    deliveries.deliver()
    refused = Delivery.objects.get()
    Organization.objects.filter(pk=organization.pk).update(stripe_customer="cus_acme")

    Delivery.objects.all().send_again()
    deliveries.deliver()

    assert (refused.state, refused.error) == ("given up", "400 resource_missing No such customer")
    assert meter.sums() == {"cus_acme": COST}


@pytest.mark.parametrize("status", [401, 403, 409, 429, 500, 503])
def test_what_is_not_the_events_fault_is_tried_again(meter: Meter, status: int) -> None:
    use()
    meter.answer = lambda _heard: status

    deliveries.deliver()

    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.tries, delivery.error) == ("waiting", 1, f"the status is {status}")


def test_its_key_is_nowhere_but_in_the_request(meter: Meter, configure: Any, caplog: pytest.LogCaptureFixture) -> None:
    configure(meter, API_KEY="sk_live_wrong")
    use()
    deliveries.deliver()

    assert "sk_live_wrong" not in caplog.text + Delivery.objects.get().error
    assert meter.heard[0].headers["authorization"] == "Bearer sk_live_wrong"


def test_what_may_have_arrived_longer_ago_than_it_remembers_is_left_to_a_person(meter: Meter) -> None:
    """It would be counted twice: an identifier is known for a day."""
    use(2)
    tried, _ = Delivery.objects.order_by("pk")
    long_ago = timezone.now() - timedelta(hours=25)
    Delivery.objects.filter(pk=tried.pk).update(tries=1, first_tried_at=long_ago)

    assert deliveries.deliver() == 1

    tried.refresh_from_db()
    assert tried.state == "given up" and "would not know it again" in tried.error
    assert len(meter.heard) == 1


def test_what_is_older_than_it_takes_is_a_dead_letter(meter: Meter) -> None:
    use(started_at=datetime.now(UTC) - timedelta(days=36))
    deliveries.deliver()

    delivery = Delivery.objects.get()
    assert (delivery.state, meter.heard) == ("given up", [])
    assert "35 days" in delivery.error


def test_identifiers_are_short_and_two_meters_have_their_own(
    organization: Organization, configure: Any, settings: Any
) -> None:
    with Meter("cus_acme") as meter:
        configure(meter)
        sink = settings.RESPONSES_WS["BILLING_SINKS"]["stripe"]
        two = {"money": sink, "tokens": {**sink, "EVENT_NAME": "tokens", "VALUE": "input_tokens"}}
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "BILLING_SINKS": two}
        use(response_id="resp_" + "x" * 120)
        deliveries.deliver()

    assert len(meter.events) == 2
    assert all(len(identifier) <= 100 for identifier in meter.events)
    assert {event["payload[value]"] for event in meter.events.values()} == {str(COST), "1000"}
