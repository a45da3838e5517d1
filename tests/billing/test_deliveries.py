"""Other billing systems hear of every entry at least once, know it again, and hold up nobody."""

import json
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from responses_ws.billing import credits, deliveries, ledger, webhooks
from responses_ws.billing.reconcile import reconcile
from responses_ws.billing.rerating import rerate
from responses_ws.billing.sinks.base import Rejected, Sink
from responses_ws.models import Account, Delivery, Journal, Organization, UsageRecord, UsageRollup
from responses_ws.runtime import faults

from .receivers import Receiver
from .rows import make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

HOOK = "responses_ws.billing.sinks.webhook.Webhook"
COST = 2_800_000
"""Of one record of `make_record`, in nano units."""


@pytest.fixture
def configure(settings: Any) -> Any:
    """Put these sinks into the settings, with the origins that may be told."""

    def configure(origin: str = "", **sinks: dict[str, Any]) -> None:
        more = {"BILLING_SINKS": sinks, "WEBHOOK_ORIGINS": [origin] if origin else []}
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, **more}

    return configure


@pytest.fixture
def books(configure: Any) -> Iterator[Receiver]:
    """A receiver, configured as the sink ``books``; there are prices."""
    make_prices()
    with Receiver() as receiver:
        configure(receiver.origin, books={"SINK": HOOK, "URL": f"{receiver.origin}/hook", "SECRET": "ours"})
        yield receiver


def bill(count: int = 1, **fields: Any) -> list[UsageRecord]:
    records = [make_record(**fields) for _ in range(count)]
    ledger.bill_all()
    return records


def elapse(**duration: float) -> None:
    """Everything that waits has waited so much longer."""
    for delivery in Delivery.objects.waiting():
        first = delivery.first_tried_at and delivery.first_tried_at - timedelta(**duration)
        Delivery.objects.filter(pk=delivery.pk).update(
            due_at=delivery.due_at - timedelta(**duration), first_tried_at=first
        )


def test_where_no_sink_is_configured_billing_does_nothing_for_them() -> None:
    make_prices()
    make_record()

    with CaptureQueriesContext(
        connection,
    ) as asked:
        ledger.bill_all()

    assert not any("delivery" in query["sql"] for query in asked)
    assert deliveries.deliver() == 0


def test_every_entry_is_told_once_by_its_id_and_signed(books: Receiver) -> None:
    records = bill(3)

    arrived = [deliveries.deliver(), deliveries.deliver()]

    assert arrived == [3, 0]
    assert sorted(books.ids) == sorted(f"usage:{record.response_id}:1" for record in records)
    for heard in books.heard:
        moment = float(heard.headers["webhook-timestamp"])
        signed = webhooks.signed("ours", heard.headers["webhook-id"], heard.body, now=moment)
        assert heard.headers["webhook-signature"] == signed["webhook-signature"]
    assert {delivery.state for delivery in Delivery.objects.all()} == {"sent"}


def test_a_message_says_who_used_what_and_what_it_costs(books: Receiver) -> None:
    (record,) = bill(service_tier="flex", cached_tokens=400)
    deliveries.deliver()

    message = json.loads(books.heard[0].body)

    posted_at = Journal.objects.get().posted_at.isoformat()
    assert (message["type"], message["timestamp"]) == ("usage.billed", posted_at)
    assert message["data"] == {
        "response_id": record.response_id,
        "kind": "usage",
        "rating_version": 1,
        "organization_id": record.organization_id,
        "project_id": record.project_id,
        "api_key_id": None,
        "model": "m",
        "service_tier": "flex",
        "transport": "websocket",
        "status": "completed",
        "reason": "",
        "estimated": False,
        "memo": "",
        "started_at": record.started_at.isoformat(),
        "posted_at": posted_at,
        "currency": "USD",
        "amount_nano": 2_200_000,
        "owed_nano": 2_200_000,
        "responses": 1,
        "input_tokens": 1_000,
        "cached_tokens": 400,
        "cache_write_tokens": 0,
        "output_tokens": 100,
        "reasoning_tokens": 0,
        "tool_calls": 0,
    }


def test_what_was_told_adds_up_to_the_ledger_whatever_is_corrected(books: Receiver) -> None:
    owner = make_project().organization
    credits.grant(owner, 2 * COST, kind="paid")
    reversed_, corrected, _, rated = bill(4)
    ledger.reverse(Journal.objects.get(usage=reversed_), "a test")
    ledger.correct(UsageRecord.objects.get(pk=corrected.pk), {"output_tokens": 1_000})
    make_prices("n")
    UsageRecord.objects.filter(pk=rated.pk).update(model="n")
    list(rerate(UsageRecord.objects.filter(pk=rated.pk), "another model", apply=True))
    ledger.bill_all()
    deliveries.deliver()

    told = list(books.counted().values())
    sums = {name: sum(one[name] for one in told) for name, value in told[0].items() if type(value) is int}

    accounts = dict(Account.objects.values_list("kind", "balance_nano"))
    totals = UsageRollup.objects.days().totals()
    assert len(told) == Journal.objects.exclude(kind="grant").count() > 6
    assert sums["amount_nano"] == -accounts["revenue"] == totals["amount_nano"]
    assert sums["owed_nano"] == accounts["receivable"]
    assert sums["responses"] == totals["responses"] == 3
    assert sums["input_tokens"] + sums["output_tokens"] == totals["tokens"]


def test_a_bill_that_is_rolled_back_tells_nobody(books: Receiver) -> None:
    make_record()
    faults.arm("bill.balanced:1:raise")
    try:
        with pytest.raises(faults.Fault):
            ledger._bill(10)
    finally:
        faults.arm("")

    assert not Delivery.objects.exists()


def test_what_fails_is_tried_again_ever_later_and_then_left_to_a_person(books: Receiver) -> None:
    bill()
    books.answer = lambda _heard: 500
    pauses = []

    for _ in range(deliveries.TRIES + 2):
        began = timezone.now()
        deliveries.deliver()
        delivery = Delivery.objects.get()
        if delivery.due_at is not None:
            pauses.append((delivery.due_at - began).total_seconds())
        elapse(hours=2)
        Delivery.objects.update(first_tried_at=began)

    assert (len(books.heard), len(pauses)) == (deliveries.TRIES, deliveries.TRIES - 1)
    assert 15 <= pauses[0] <= 32 and 30 <= pauses[1] <= 62 and 3600 <= pauses[-1] <= 7202
    assert sum(pauses) < 24 * 3600
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.error) == ("given up", "the status is 500")
    assert [str(difference) for difference in reconcile()] == ["undelivered: books: 1 entries were given up"]


def test_of_one_that_is_down_little_is_asked_and_nothing_else_is_counted_as_a_try(books: Receiver) -> None:
    bill(40)
    books.answer = lambda _heard: 503

    assert deliveries.deliver() == 0

    assert 1 <= len(books.heard) <= deliveries.LANES_AT_ONCE
    assert Delivery.objects.filter(tries=1).count() == len(books.heard)
    fresh = Delivery.objects.filter(tries=0, first_tried_at=None, due_at__lte=timezone.now())
    assert fresh.count() == 40 - len(books.heard)
    books.answer = lambda _heard: 204
    elapse(hours=1)
    assert deliveries.deliver() == 40


def test_one_that_hangs_up_has_not_heard_it_and_one_that_is_not_there_neither(books: Receiver, configure: Any) -> None:
    bill()
    books.answer = lambda _heard: 0
    deliveries.deliver()
    hung_up = Delivery.objects.get().error
    elapse(hours=1)
    configure("http://127.0.0.1:9", books={"SINK": HOOK, "URL": "http://127.0.0.1:9/"})
    deliveries.deliver()

    delivery = Delivery.objects.get()
    assert (hung_up, delivery.error) == ("ServerDisconnectedError", "ClientConnectorError")
    assert (delivery.tries, delivery.state) == (2, "waiting")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "https://169.254.169.254/latest", "http://hooks.example.com/"])
def test_nobody_is_told_in_our_own_network(configure: Any, url: str) -> None:
    make_prices()
    configure(books={"SINK": HOOK, "URL": url})
    bill()

    assert deliveries.deliver() == 0

    delivery = Delivery.objects.get()
    assert "not allowed" in delivery.error or "not a public one" in delivery.error


class Picky(Sink):
    """Will not have what is in German, and breaks at what is in French."""

    told: list[str] = []
    asked: list[str] = []

    @asynccontextmanager
    async def open(self) -> Any:
        async def tell(message: Any) -> None:
            self.asked.append(message.body["model"])
            if message.body["model"] == "de":
                raise Rejected("no German")
            if message.body["model"] == "fr":
                raise KeyError("accent")
            self.told.append(message.id)

        yield tell


def test_what_a_sink_will_not_have_or_breaks_at_holds_back_no_other(configure: Any) -> None:
    configure(picky={"SINK": f"{__name__}.Picky"})
    for model in ("m", "de", "m", "fr", "m"):
        make_record(model=model)
    ledger.bill_all()
    Picky.told, Picky.asked = [], []

    arrived = deliveries.deliver()

    assert (arrived, len(Picky.told), len(Picky.asked)) == (3, 3, 5)
    states = {row.body["model"]: (row.state, row.error) for row in Delivery.objects.all()}
    assert states["m"] == ("sent", "")
    assert states["de"] == ("given up", "no German")
    assert states["fr"] == ("waiting", "KeyError: 'accent'")


def test_sinks_have_their_own_queues(books: Receiver, configure: Any) -> None:
    dead = {"SINK": HOOK, "URL": "http://127.0.0.1:9/"}
    alive = {"SINK": HOOK, "URL": f"{books.origin}/hook"}
    configure(books.origin, dead=dead, books=alive)
    bill(2)

    assert deliveries.deliver() == 2

    assert set(Delivery.objects.waiting().values_list("sink", flat=True)) == {"dead"}


def test_corrections_go_where_the_response_went_and_nowhere_else(books: Receiver, configure: Any) -> None:
    """Who never heard of a response would take a correction for money that was given back."""
    configure()
    (before,) = bill()
    configure(books.origin, books={"SINK": HOOK, "URL": books.origin})
    (after,) = bill()
    for record in (before, after):
        ledger.correct(UsageRecord.objects.get(pk=record.pk), {"output_tokens": 1_000})
    ledger.bill_all()
    deliveries.deliver()

    name = f"usage:{after.response_id}"
    assert sorted(books.ids) == [f"reversal:{name}:1", f"{name}:1", f"{name}:2"]


def test_claimed_is_claimed_until_the_claim_is_over(books: Receiver) -> None:
    bill(3)
    (sink,) = deliveries.sinks.all()
    now = timezone.now()

    claims = [deliveries._claim(sink, now) for _ in range(2)]
    later = deliveries._claim(sink, now + deliveries.CLAIM)

    assert [len(claim) for claim in claims] == [3, 0]
    assert len(later) == 3
    assert deliveries.CLAIM.total_seconds() / 2 > deliveries.BATCH_SECONDS + webhooks.SECONDS


def test_a_sink_that_is_set_up_wrongly_stops_billing_and_spoils_no_record(configure: Any) -> None:
    make_prices()
    make_record()
    configure(books={"SINK": HOOK, "ULR": "https://books.example.com"})

    for _ in range(6):
        with pytest.raises(ValueError, match="ULR"):
            ledger.bill_all()

    assert UsageRecord.objects.get().billing_tries == 0


def test_what_waits_for_a_sink_that_was_taken_out_waits_until_it_is_back(books: Receiver, configure: Any) -> None:
    bill()
    configure(other={"SINK": HOOK, "URL": books.origin})
    without = deliveries.deliver()
    configure(books.origin, books={"SINK": HOOK, "URL": books.origin})

    assert [without, deliveries.deliver()] == [0, 1]


def test_the_office_shows_dead_letters_and_sends_them_again(books: Receiver, admin_client: Client) -> None:
    bill(2)
    books.answer = lambda _heard: 500
    deliveries.deliver()
    Delivery.objects.update(due_at=None)
    page = reverse("admin:responses_ws_delivery_changelist")
    shown = admin_client.get(page, {"state": "given_up"}).content.decode()
    sent = admin_client.get(page, {"state": "sent"}).content.decode()
    books.answer = lambda _heard: 204

    ids = list(Delivery.objects.values_list("pk", flat=True))
    told = admin_client.post(page, {"action": "send_again", "_selected_action": ids}, follow=True).content.decode()

    assert "the status is 500" in shown and "given up" in shown and "0 deliveries" in sent
    assert "2 deliveries will be tried again" in told
    assert deliveries.deliver() == 2
    assert reconcile() == []


def test_what_was_sent_is_not_sent_again_by_hand(books: Receiver) -> None:
    bill()
    deliveries.deliver()

    assert Delivery.objects.all().send_again() == 0
    assert deliveries.deliver() == 0


@pytest.mark.django_db(transaction=True)
def test_workers_at_once_tell_each_entry_once(books: Receiver) -> None:
    for name in ("acme", "globex"):
        bill(60, project=make_project(name))
    together = threading.Barrier(3)

    def work() -> None:
        together.wait(30)
        deliveries.deliver()
        connection.close()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)

    # Who found the rest held by the others has ended early; the next task takes it.
    deliveries.deliver()
    assert sorted(books.ids) == sorted(Journal.objects.values_list("idempotency_key", flat=True))
    assert not Delivery.objects.unsent().exists()
    assert Organization.objects.count() == 2


def test_time_that_is_up_leaves_the_rest_as_it_was(books: Receiver) -> None:
    """A receiver that is slow and well would keep a worker until it is killed."""
    bill(3)

    assert deliveries.deliver(seconds=-1) == 0
    (sink,) = deliveries.sinks.all()
    claimed = deliveries._claim(sink, timezone.now())
    deliveries._note(claimed, async_to_sync(deliveries._tell)(sink, claimed, 0.0), timezone.now())

    assert books.heard == []
    assert Delivery.objects.filter(tries=0, first_tried_at=None).count() == 3
    assert deliveries.deliver() == 3
