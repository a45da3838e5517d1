"""Whatever happens in whatever order: every entry sums to zero, and every balance is the sum of its postings."""

from datetime import timedelta
from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from responses_ws.billing import credits, ledger, price_import
from responses_ws.billing.price_sources import PricesRefused, WantedPrice
from responses_ws.billing.pricing import amount_for
from responses_ws.billing.reconcile import reconcile
from responses_ws.billing.rerating import rerate
from responses_ws.models import Account, Budget, Journal, Posting, Price, UsageRecord

from .rows import make_prices, make_project, make_record

OWNERS = ("acme", "globex")
HOUR = timedelta(hours=1)
owners = st.sampled_from(OWNERS)
amounts = st.integers(1, 50_000_000)
tokens = st.integers(0, 5_000)
components = st.sampled_from(["input", "cached_input", "output", "reasoning", "tool_call"])
tiers = st.sampled_from(["", "flex"])


class Books(RuleBasedStateMachine):
    """Turns, prices, credit, budgets, corrections, as they come. All of it is rolled back in the end."""

    @initialize()
    def open(self):
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.now = timezone.now() - timedelta(days=2)
        make_prices()
        for owner in OWNERS:
            make_project(owner)

    def teardown(self):
        try:
            ledger.bill_all()
            assert not UsageRecord.objects.unbilled().exists()
            assert reconcile() == []
        finally:
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)

    @rule(
        owner=owners,
        status=st.sampled_from(["completed", "completed", "incomplete", "failed", "cancelled", "abandoned"]),
        fields=st.tuples(tokens, tokens, st.integers(0, 100), st.integers(0, 3), st.booleans(), st.booleans()),
        tier=st.sampled_from(["default", "flex"]),
    )
    def turn(self, owner, status, fields, tier):
        input_tokens, output_tokens, percent, tool_calls, estimated, is_warmup = fields
        self.now += HOUR / 60
        make_record(
            make_project(owner),
            started_at=self.now,
            status=status,
            service_tier=tier,
            estimated=estimated,
            is_warmup=is_warmup,
            input_tokens=input_tokens,
            cached_tokens=input_tokens * percent // 100,
            output_tokens=output_tokens,
            reasoning_tokens=output_tokens * percent // 100,
            tool_calls=tool_calls,
        )

    @rule(component=components, tier=tiers, context=st.sampled_from([0, 1_000]), nano=st.integers(0, 10**11))
    def price_changes(self, component, tier, context, nano):
        self._price(component, tier, context, nano, self.now + HOUR / 120, correct=False)

    @rule(component=components, nano=st.integers(0, 10**11))
    def price_was_wrong(self, component, nano):
        self._price(component, "", 0, nano, self.now - timedelta(days=400), correct=True)

    def _price(self, component, tier, context, nano, start, *, correct):
        thing = ("USD", "m", tier, component, context)
        wanted = WantedPrice(where="test", thing=thing, nano_per_million=nano, valid_from=start)
        try:
            price_import.take_over([wanted], self.now, apply=True, correct=correct)
        except PricesRefused:
            assert not correct

    @rule(owner=owners, amount=amounts, kind=st.sampled_from(["paid", "promotional"]), ends=st.booleans())
    def grant(self, owner, amount, kind, ends):
        expires_at = timezone.now() + HOUR if ends else None
        credits.grant(make_project(owner).organization, amount, kind=kind, expires_at=expires_at)

    @rule()
    def credit_expires(self):
        credits.expire(timezone.now() + 2 * HOUR)

    @rule(owner=owners, limit=amounts)
    def budget(self, owner, limit):
        Budget.objects.create(organization=make_project(owner).organization, limit_nano=limit)

    @rule(limit=st.integers(1, 4))
    def bill(self, limit):
        ledger.bill_batch(limit)

    @rule(place=st.integers(0, 50))
    def take_back(self, place):
        standing = list(Journal.objects.standing().order_by("pk"))
        if standing:
            ledger.reverse(standing[place % len(standing)], "a present")

    @rule(place=st.integers(0, 50), output_tokens=tokens)
    def told_another_end(self, place, output_tokens):
        records = list(UsageRecord.objects.ended().order_by("pk"))
        if records:
            fields = {"status": "completed", "output_tokens": output_tokens, "reasoning_tokens": 0}
            ledger.correct(records[place % len(records)], fields)

    @rule(owner=owners)
    def rated_again(self, owner):
        chosen = UsageRecord.objects.matching(organization=owner)
        list(rerate(chosen, "test", apply=True))
        assert list(rerate(chosen, "test", apply=True)) == []

    @rule()
    def put_back_by_hand(self):
        UsageRecord.objects.filter(pk__in=UsageRecord.objects.billed().values("pk")[:1]).update(billed_at=None)

    @invariant()
    def every_entry_sums_to_zero(self):
        if not hasattr(self, "atomic"):
            return
        connection.check_constraints()
        assert not Journal.objects.with_sums().exclude(posted_nano=0).exists()
        assert not Account.objects.with_wrong_balance().exists()
        assert (Posting.objects.aggregate(total=Sum("amount_nano"))["total"] or 0) == 0
        standing = Price.objects.standing()
        assert not any(standing.overlapping(price).exists() for price in standing.filter(component="input"))


@pytest.mark.django_db
def test_the_books_agree_after_any_history():
    run_state_machine_as_test(
        Books,
        settings=settings(
            max_examples=12, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.chaos
@pytest.mark.django_db
def test_the_books_agree_after_any_of_many_histories():
    run_state_machine_as_test(
        Books,
        settings=settings(
            max_examples=400, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_a_million_turns_are_summed_without_drift():
    """Against decimal arithmetic, turn by turn; sums of floats are wrong here."""
    per_million, million = 2_345_678_901, Decimal(1_000_000)
    total, exact, drifting = 0, Decimal(0), 0.0
    for turn in range(1_000_000):
        quantity = (turn * 7_919) % 4_001
        total += amount_for(quantity, per_million)
        exact += (quantity * per_million / million).quantize(Decimal(1), ROUND_HALF_EVEN)
        drifting += quantity * 2.345678901 / 1_000_000

    assert total == exact
    assert int(drifting * 10**9) != total


@pytest.mark.chaos
@pytest.mark.django_db
def test_a_million_turns_are_billed_without_drift():
    make_prices(per_million={"input": 2_345_678_901})
    project = make_project()
    expected = 0
    for batch in range(200):
        rows = []
        for turn in range(batch * 5_000, (batch + 1) * 5_000):
            quantity = (turn * 7_919) % 4_001
            expected += amount_for(quantity, 2_345_678_901)
            rows.append(
                UsageRecord(
                    response_id=f"million_{turn}",
                    organization=project.organization,
                    project=project,
                    model="m",
                    transport="http",
                    status="completed",
                    input_tokens=quantity,
                    started_at=timezone.now(),
                    ended_at=timezone.now(),
                    lease_until=timezone.now(),
                )
            )
        UsageRecord.objects.bulk_create(rows)
        while ledger.bill_batch(500):
            pass

    assert Account.objects.get(kind="receivable").balance_nano == expected
    assert reconcile() == []
