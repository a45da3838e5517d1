"""What budgets refuse, at every place where an engine is about to be called; and what is held meanwhile."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from responses_ws.billing import ledger
from responses_ws.connection.budgets import Share
from responses_ws.connection.chain import Chains
from responses_ws.models import ApiKey, Budget, CreditGrant, Organization, Price, UsageRecord
from responses_ws.protocol.errors import ApiError, InsufficientQuota
from responses_ws.runtime import background, dbpool, holds, redis
from responses_ws.serving import budgets, turns
from responses_ws.serving.admission import Principal

from .hosted import NOTES, calls, note, run_here, script
from .turns import asked, events_of, response_of

__all__ = ["run_here"]

# A nano unit for a token of either kind: costs are token counts.
PRICE = 1_000_000


@pytest.fixture(params=["redis", "process"])
async def counted(request: pytest.FixtureRequest, settings: Any, monkeypatch: Any) -> AsyncIterator[None]:
    monkeypatch.setattr(holds, "SECONDS_BETWEEN_LOOKS", 0.0)
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": url, "BUDGET_OUTPUT_TOKENS": 100}
    if url:
        client = redis.client()
        assert client is not None
        await client.flushall()
    yield
    await budgets.stop()
    budgets.reset()
    await background.settle()
    await redis.aclose()


@pytest.fixture
def prices(transactional_db: None) -> None:
    for component in ("input", "output"):
        Price.objects.create(
            model="scripted",
            component=component,
            nano_per_million=PRICE,
            valid_from=timezone.now() - timedelta(days=400),
        )


def make_budget(owner: ApiKey, limit: int, **fields: Any) -> Budget:
    return Budget.objects.create(organization=owner.project.organization, limit_nano=limit, **fields)


async def limited(owner: ApiKey, limit: int, **fields: Any) -> Budget:
    """A budget of the key's organisation, as this process finds it at its first turn."""
    return await dbpool.run(make_budget, owner, limit, **fields)


async def spent_and_held(budget: Budget, moment: datetime | None = None) -> tuple[int, int]:
    share = await dbpool.run(share_of, budget, moment or timezone.now())
    standing = await budgets.holds.standing(share)
    assert standing is not None
    return standing


def share_of(budget: Budget, moment: datetime) -> Share:
    row = Budget.objects.select_related("organization", "project", "api_key").get(pk=budget.pk)
    return budgets.rows.rule_of(row).at(moment)


async def refused(principal: Principal, *args: Any, **fields: Any) -> ApiError:
    with pytest.raises(InsufficientQuota) as caught:
        await events_of(asked(principal, *args, **fields))
    return caught.value


TURN = {"store": False, "max_output_tokens": 50}


@pytest.mark.usefixtures("counted", "prices")
async def test_a_budget_is_asked_on_every_turn_of_a_socket(principal: Principal, api_key: ApiKey) -> None:
    chains = Chains()
    budget = await limited(api_key, 150)
    parent = None
    for _ in range(3):
        fields = {"previous_response_id": parent, "chains": chains, **TURN}
        try:
            parent = (await response_of(asked(principal, "!tokens 30", **fields)))["id"]
        except InsufficientQuota:
            break
    else:
        raise AssertionError("nothing was refused")

    spent, held = await spent_and_held(budget)
    assert 0 < spent + held <= 150
    # The refusal has not cost the chain its newest response.
    assert chains.find(str(parent)) is not None


@pytest.mark.usefixtures("counted", "prices")
async def test_turns_hold_what_they_may_cost_and_leave_what_they_have_cost(
    principal: Principal, api_key: ApiKey
) -> None:
    budget = await limited(api_key, 1_000)

    usage = (await response_of(asked(principal, "!tokens 7", store=False, max_output_tokens=900)))["usage"]

    assert await spent_and_held(budget) == (0, usage["total_tokens"])
    await dbpool.run(ledger.bill_all)
    assert sum(await spent_and_held(budget)) == usage["total_tokens"]


@pytest.mark.usefixtures("counted", "prices")
async def test_a_request_without_a_limit_holds_what_the_settings_say(principal: Principal, api_key: ApiKey) -> None:
    await limited(api_key, 100)

    error = await refused(principal, "Hello", store=False)
    fits = await response_of(asked(principal, "Hello", store=False, max_output_tokens=20))

    assert error.code == "insufficient_quota"
    assert error.message.startswith("The monthly budget of organization Acme does not cover this request: 0.00 USD of ")
    assert fits["status"] == "completed"


@pytest.mark.usefixtures("counted", "prices")
@pytest.mark.parametrize("of", ["organization", "project", "key", "model", "another project", "another model"])
async def test_a_budget_is_asked_by_those_whom_it_is_for(of: str, principal: Principal, api_key: ApiKey) -> None:
    fields: dict[str, Any] = {
        "organization": {},
        "project": {"project": api_key.project},
        "key": {"api_key": api_key},
        "model": {"model": "scripted"},
        "another project": {"project_id": None},
        "another model": {"model": "embedded"},
    }[of]
    if of == "another project":
        other = await dbpool.run(lambda: api_key.project.organization.projects.create(name="other"))
        fields = {"project": other}
    await limited(api_key, 10, **fields)

    if of.startswith("another"):
        assert (await response_of(asked(principal, "Hello", **TURN)))["status"] == "completed"
    else:
        await refused(principal, "Hello", **TURN)


@pytest.mark.usefixtures("counted", "prices")
@pytest.mark.parametrize("fields", [{"is_hard": False}, {"is_active": False}], ids=["soft", "inactive"])
async def test_only_hard_budgets_refuse(fields: dict[str, Any], principal: Principal, api_key: ApiKey) -> None:
    await limited(api_key, 1, **fields)

    assert (await response_of(asked(principal, "Hello", **TURN)))["status"] == "completed"


@pytest.mark.usefixtures("counted", "prices")
async def test_a_response_that_cannot_go_on_is_incomplete_and_paid_for(principal: Principal, api_key: ApiKey) -> None:
    script(calls(note("a " * 100)), "Never said.")
    budget = await limited(api_key, 400)

    response = await response_of(asked(principal, "Note.", tools=[NOTES], store=False, max_output_tokens=300))

    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "insufficient_quota"})
    assert [item["type"] for item in response["output"]] == ["mcp_call"]
    record = await dbpool.run(UsageRecord.objects.get)
    assert (record.status, record.reason) == ("incomplete", "insufficient_quota")
    assert await spent_and_held(budget) == (0, response["usage"]["total_tokens"])


@pytest.mark.usefixtures("counted", "prices")
async def test_a_response_that_goes_on_grows_what_it_holds(
    principal: Principal, api_key: ApiKey, monkeypatch: Any
) -> None:
    script(calls(note("a")), calls(note("b")), "Done.")
    await limited(api_key, 100_000)
    amounts: list[int] = []
    take = budgets.holds.take

    async def noted(hold: Any, amount: int) -> Any:
        amounts.append(amount)
        return await take(hold, amount)

    monkeypatch.setattr(budgets.holds, "take", noted)
    response = await response_of(asked(principal, "Note.", tools=[NOTES], store=False, max_output_tokens=40))

    assert len(amounts) == 3 and amounts == sorted(amounts)
    assert amounts[-1] >= response["usage"]["total_tokens"]


@pytest.mark.usefixtures("counted", "prices")
@pytest.mark.parametrize("how", ["left", "left at once"])
async def test_a_turn_that_comes_to_nothing_gives_back_what_it_held(
    how: str, principal: Principal, api_key: ApiKey
) -> None:
    budget = await limited(api_key, 1_000)
    async with aclosing(turns.run_turn(asked(principal, "!stall 30", store=False))) as runs:
        if how == "left":
            await anext(runs)
    await background.settle()

    spent, held = await spent_and_held(budget)
    assert spent == 0
    # What the engine has read by then is paid for.
    assert held <= 20


@pytest.mark.usefixtures("counted", "prices")
async def test_what_the_engine_refuses_is_held_no_longer(principal: Principal, api_key: ApiKey) -> None:
    budget = await limited(api_key, 1_000)

    with pytest.raises(ApiError):
        await events_of(asked(principal, "!fail unavailable", store=False))
    await background.settle()

    assert await spent_and_held(budget) == (0, 0)


@pytest.mark.usefixtures("counted", "prices")
async def test_a_warm_up_is_free_and_needs_no_budget(principal: Principal, api_key: ApiKey) -> None:
    budget = await limited(api_key, 1)

    response = await response_of(asked(principal, "Hello", generate=False, store=False))

    assert response["status"] == "completed"
    assert await spent_and_held(budget) == (0, 0)


@pytest.mark.usefixtures("counted")
async def test_a_model_without_a_price_needs_no_budget(principal: Principal, api_key: ApiKey) -> None:
    await limited(api_key, 1)

    assert (await response_of(asked(principal, "Hello", **TURN)))["status"] == "completed"


@pytest.mark.usefixtures("counted", "prices")
async def test_a_prepaid_organisation_spends_what_its_grants_hold(principal: Principal, api_key: ApiKey) -> None:
    def grant(amount: int, **fields: Any) -> None:
        owner = Organization.objects.get()
        Organization.objects.update(is_prepaid=True)
        CreditGrant.objects.create(organization=owner, kind="paid", amount_nano=amount, remaining_nano=amount, **fields)

    await dbpool.run(grant, 1_000_000, expires_at=timezone.now() - timedelta(seconds=1))
    error = await refused(principal, "Hello", **TURN)
    await dbpool.run(grant, 100)

    assert error.code == "credit_balance_exhausted"
    assert (await response_of(asked(principal, "Hello", **TURN)))["status"] == "completed"
    assert (await refused(principal, "Hello", store=False)).code == "credit_balance_exhausted"


@pytest.mark.usefixtures("counted", "prices")
async def test_a_turn_belongs_to_the_day_of_its_start(principal: Principal, api_key: ApiKey, monkeypatch: Any) -> None:
    late = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
    budget = await limited(api_key, 200, window="day")
    monkeypatch.setattr("responses_ws.serving.recording.timezone.now", lambda: late)
    await response_of(asked(principal, "!tokens 100", store=False, max_output_tokens=110))
    await refused(principal, "Hello", store=False, max_output_tokens=110)

    monkeypatch.setattr("responses_ws.serving.recording.timezone.now", lambda: late + timedelta(seconds=1))
    response = await response_of(asked(principal, "Hello", store=False, max_output_tokens=110))

    assert response["status"] == "completed"
    assert sum(await spent_and_held(budget, late)) > 100
    assert sum(await spent_and_held(budget, late + timedelta(seconds=1))) < 100


@pytest.mark.usefixtures("prices")
async def test_without_a_budget_no_turn_waits_for_anything_or_asks_redis(
    principal: Principal, redis_url: str, settings: Any
) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": redis_url}
    await budgets._known()
    client = redis.client()
    assert client is not None
    before = (await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"]
    waited: list[str] = []
    reserve = turns.Run.reserve

    async def noted(run: turns.Run) -> None:
        coroutine = reserve(run)
        try:
            coroutine.send(None)
            waited.append("for something")
        except StopIteration:
            waited.append("not at all")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns.Run, "reserve", noted)
        await response_of(asked(principal, "Hello", **TURN))

    after = (await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"]
    assert (waited, after - before) == (["not at all"], 0)
    await budgets.stop()
    await redis.aclose()
