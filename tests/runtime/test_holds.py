"""The same promises where Redis counts, and where this process does."""

import asyncio
import signal
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from responses_ws.connection.budgets import Budget, Share, Short
from responses_ws.protocol.errors import Overloaded
from responses_ws.runtime import background, holds, metrics, redis
from responses_ws.runtime.holds import Hold, Holds, Reading
from tests.conftest import redis_server
from tests.waiting import until

KEY = "responses_ws:budgets:1:{1}:b1:all"


class Books:
    """What is billed: the database of these tests."""

    def __init__(self) -> None:
        self.billed: dict[str, int] = {}
        self.unbilled: dict[str, int] = {}
        self.credit = 0
        self.is_quiet = True
        self.reads = 0

    async def read(self, share: Share, names: Sequence[str], is_first: bool, mine: Collection[str]) -> Reading:
        self.reads += 1
        found, spent = [name for name in names if name in self.billed], sum(self.billed.values()) - self.credit
        unbilled = dict(self.unbilled) if is_first else {}
        await asyncio.sleep(0)
        return Reading(spent_nano=spent, billed=found, unbilled=unbilled, is_quiet=self.is_quiet)


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
async def process(books: Books, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Holds]:
    """Of one process, which looks whenever anybody wants it to."""
    monkeypatch.setattr(holds, "SECONDS_BETWEEN_LOOKS", 0.0)
    process = Holds(books.read)
    yield process
    process.reset()


@pytest.fixture
async def other(books: Books) -> AsyncIterator[Holds]:
    """Of another one."""
    process = Holds(books.read)
    yield process
    process.reset()


@pytest.fixture(params=["redis", "process"])
async def counted(request: pytest.FixtureRequest, settings: Any) -> AsyncIterator[str]:
    """Where it is counted."""
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": url}
    client = redis.client()
    if client is not None:
        await client.flushall()
    yield request.param
    await leave()
    assert metrics.budgets_without_redis.value("process") == 0, "a script has failed"


@pytest.fixture
async def shared(settings: Any, redis_url: str) -> AsyncIterator[Any]:
    """Redis, where it counts."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": redis_url}
    client = redis.client()
    assert client is not None
    await client.flushall()
    yield client
    await leave()


async def leave() -> None:
    await background.settle()
    await redis.aclose()


def share(limit: int = 100, name: str = "b1") -> Share:
    budget = Budget(name=name, organization_id=1, kind="total", limit_nano=limit, currency="USD")
    return budget.at(datetime(2026, 11, 30, tzinfo=UTC))


async def take(process: Holds, name: str, amount: int, *shares: Share) -> tuple[Hold, Short | None]:
    hold = Hold(name, shares or [share()])
    return hold, await process.take(hold, amount)


def server_answers(url: str) -> bool:
    with Redis.from_url(url, socket_timeout=5) as client:
        return bool(client.ping())


async def end(process: Holds, hold: Hold, amount: int) -> None:
    process.end(hold, amount)
    await background.settle()


@pytest.mark.usefixtures("counted")
async def test_turns_come_in_until_the_limit_is_held(process: Holds) -> None:
    refused = [(await take(process, f"resp_{number}", 40))[1] for number in range(3)]

    assert refused[:2] == [None, None]
    assert refused[2] is not None and (refused[2].spent_nano, refused[2].held_nano) == (0, 80)


@pytest.mark.usefixtures("counted")
async def test_what_a_turn_has_cost_takes_the_place_of_what_it_held(process: Holds) -> None:
    first, _ = await take(process, "resp_1", 90)

    await end(process, first, 30)

    assert (await take(process, "resp_2", 70))[1] is None
    assert (await take(process, "resp_3", 1))[1] is not None


@pytest.mark.usefixtures("counted")
async def test_a_turn_that_is_free_in_the_end_leaves_nothing_behind(process: Holds) -> None:
    first, _ = await take(process, "resp_1", 90)

    await end(process, first, 0)

    assert (await take(process, "resp_2", 100))[1] is None


@pytest.mark.usefixtures("counted")
async def test_an_end_is_told_once(process: Holds) -> None:
    first, _ = await take(process, "resp_1", 90)
    await end(process, first, 30)

    await end(process, first, 0)

    assert await process.standing(share()) == (0, 30)


@pytest.mark.usefixtures("counted")
async def test_a_turn_that_goes_on_grows_its_hold_and_is_refused_beyond_the_limit(process: Holds) -> None:
    hold, _ = await take(process, "resp_1", 40)
    await take(process, "resp_2", 30)

    assert await process.take(hold, 70) is None
    short = await process.take(hold, 71)

    assert short is not None and short.held_nano == 30
    # Refused, it still holds what it held.
    assert await process.standing(share()) == (0, 100)


@pytest.mark.usefixtures("counted")
async def test_a_turn_holds_of_all_its_budgets_or_of_none(process: Holds) -> None:
    wide, narrow = share(1000, "b1"), share(50, "b2")
    await take(process, "resp_1", 40, narrow)

    _, short = await take(process, "resp_2", 20, wide, narrow)

    assert short is not None and short.share == narrow
    assert await process.standing(wide) == (0, 0)


@pytest.mark.usefixtures("counted")
async def test_what_is_billed_moves_from_holds_to_the_sum(process: Holds, books: Books) -> None:
    first, _ = await take(process, "resp_1", 90)
    await end(process, first, 60)
    books.billed["resp_1"] = 60

    assert (await take(process, "resp_2", 41))[1] is not None
    assert (await take(process, "resp_3", 40))[1] is None
    await background.settle()

    assert await process.standing(share()) == (60, 40)


@pytest.mark.usefixtures("counted")
async def test_credit_that_was_added_counts_for_the_next_turn(process: Holds, books: Books) -> None:
    credit = share(0, "credit")
    books.credit = 10
    assert (await take(process, "resp_1", 11, credit))[1] is not None

    books.credit = 20

    assert (await take(process, "resp_1", 11, credit))[1] is None


@pytest.mark.usefixtures("counted")
async def test_a_raised_limit_counts_at_once(process: Holds) -> None:
    await take(process, "resp_1", 100)
    assert (await take(process, "resp_2", 50, share(100)))[1] is not None

    assert (await take(process, "resp_2", 50, share(150)))[1] is None


@pytest.mark.usefixtures("counted")
async def test_what_had_ended_before_anybody_looked_is_held_until_it_is_billed(process: Holds, books: Books) -> None:
    books.unbilled["resp_old"] = 70

    assert (await take(process, "resp_1", 31))[1] is not None
    books.billed["resp_old"] = books.unbilled.pop("resp_old")
    assert (await take(process, "resp_1", 30))[1] is None


@pytest.mark.usefixtures("counted")
async def test_sums_are_exact_beyond_what_a_float_can_tell(process: Holds, books: Books) -> None:
    huge = 2**60
    books.billed["resp_0"] = huge - 3

    assert (await take(process, "resp_1", 4, share(huge)))[1] is not None
    assert (await take(process, "resp_1", 3, share(huge)))[1] is None
    assert (await take(process, "resp_2", 1, share(huge)))[1] is not None


@pytest.mark.usefixtures("counted")
async def test_who_leaves_at_the_door_holds_nothing(process: Holds) -> None:
    for ticks in range(25):
        hold = Hold(f"resp_{ticks}", [share()])
        coming = asyncio.create_task(process.take(hold, 100))
        for _ in range(ticks):
            await asyncio.sleep(0)
        coming.cancel()
        await asyncio.wait({coming})
        await end(process, hold, 0)

        assert await process.standing(share()) == (0, 0), f"after {ticks} ticks"


async def test_accounts_that_are_forgotten_are_made_again_with_what_runs(
    process: Holds, books: Books, settings: Any, monkeypatch: Any
) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": ""}
    monkeypatch.setattr(holds, "_MAX_ACCOUNTS", 2)
    running, _ = await take(process, "resp_1", 60)
    for name in ("b2", "b3", "b4"):
        await take(process, "resp_2", 1, share(name=name))
    await background.settle()

    assert len(process._accounts) == 2
    assert (await take(process, "resp_3", 41))[1] is not None
    assert (await take(process, "resp_3", 40))[1] is None
    await end(process, running, 0)


async def test_many_at_two_processes_spend_the_last_of_it_once(
    shared: Any, process: Holds, other: Holds, books: Books
) -> None:
    limit = share(1000)

    async def agent(process: Holds, agent: int) -> int:
        """Turns of 7, one after the other, until there is nothing left."""
        cost = 0
        for turn in range(1000):
            hold, short = await take(process, f"resp_{id(process)}_{agent}_{turn}", 7, limit)
            if short is not None:
                return cost
            telling = process.end(hold, 5)
            if telling is not None and agent % 2:
                await telling
            cost += 5
            if turn % 5 == 0:
                books.billed[hold.name] = 5
        raise AssertionError("it never ends")

    costs = await asyncio.gather(*(agent(one, number) for one in (process, other) for number in range(10)))

    assert 1000 - 7 < sum(costs) <= 1000


async def test_a_hold_of_a_process_that_died_lapses_and_one_of_a_process_that_lives_does_not(
    shared: Any, process: Holds, other: Holds
) -> None:
    await take(process, "resp_dead", 50)
    await take(other, "resp_alive", 50)
    for name in ("resp_dead", "resp_alive"):
        await shared.zincrby(f"{KEY}:holds", -holds.HOLD_SECONDS + 5, name)

    await other._say(1)
    await shared.zincrby(f"{KEY}:holds", -10, "resp_dead")

    assert (await take(other, "resp_1", 51))[1] is not None
    assert (await take(other, "resp_1", 50))[1] is None


async def test_an_ended_turn_is_held_however_long_billing_takes(shared: Any, process: Holds) -> None:
    hold, _ = await take(process, "resp_1", 80)
    await end(process, hold, 80)

    assert await shared.zscore(f"{KEY}:holds", "resp_1") > holds.hold_scripts.ENDED
    assert (await take(process, "resp_2", 21))[1] is not None


async def test_who_finds_redis_emptied_waits_for_what_others_hold(
    shared: Any, process: Holds, other: Holds, books: Books, monkeypatch: Any
) -> None:
    await take(other, "resp_theirs", 60)
    await take(process, "resp_mine", 30)
    await background.settle()

    await shared.flushall()
    books.is_quiet = False
    monkeypatch.setattr(holds, "SETTLE_SECONDS", 0.5)
    coming = asyncio.create_task(take(process, "resp_new", 20))
    # As every process does once a second.
    await other._say(1)
    _, short = await coming

    assert short is not None and short.held_nano == 90


async def test_an_emptied_redis_holds_nobody_up_where_nobody_else_has_anything(
    shared: Any, process: Holds, books: Books, monkeypatch: Any
) -> None:
    monkeypatch.setattr(holds, "SETTLE_SECONDS", 3600.0)
    await take(process, "resp_mine", 60)

    await shared.flushall()

    assert (await take(process, "resp_1", 41))[1] is not None
    assert (await take(process, "resp_2", 40))[1] is None


async def test_a_look_from_before_redis_was_emptied_changes_nothing(
    shared: Any, process: Holds, books: Books, monkeypatch: Any
) -> None:
    await take(process, "resp_1", 10)
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*asked: Any) -> Reading:
        reading.set()
        await go_on.wait()
        return Reading(spent_nano=0, billed=["resp_1"])

    late = Holds(slow)
    looking = asyncio.create_task(late.standing(share()))
    await reading.wait()
    await shared.flushall()
    await take(process, "resp_2", 60)
    go_on.set()
    await looking

    assert await process.standing(share()) == (0, 70)


async def test_a_look_that_was_begun_later_and_has_read_earlier_changes_nothing(
    shared: Any, process: Holds, other: Holds, books: Books
) -> None:
    hold, _ = await take(process, "resp_1", 10)
    await end(process, hold, 10)
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def fast_and_late(*asked: Any) -> Reading:
        before = await books.read(*asked)
        reading.set()
        await go_on.wait()
        return before

    async def slow(*asked: Any) -> Reading:
        looking = asyncio.create_task(Holds(fast_and_late).standing(share()))
        await reading.wait()
        books.billed["resp_1"] = 10
        try:
            return await books.read(*asked)
        finally:
            later.append(looking)

    later: list[asyncio.Task[Any]] = []
    assert await Holds(slow).standing(share()) == (10, 0)
    go_on.set()

    assert await later[0] == (10, 0)


@pytest.mark.parametrize(
    ("policy", "outcome"), [("process", ["in", "short"]), ("refuse", ["503", "503"]), ("allow", ["in", "in"])]
)
@pytest.mark.parametrize("how", ["killed", "standing still"])
async def test_a_lost_redis_means_what_the_settings_say(
    how: str, policy: str, outcome: list[str], settings: Any, tmp_path: Path, process: Holds
) -> None:
    with redis_server(tmp_path) as (url, server):
        limits = {**settings.RESPONSES_WS["LIMITS"], "redis_seconds": 0.25 if how == "standing still" else 10.0}
        given = {"REDIS_URL": url, "BUDGETS_WITHOUT_REDIS": policy, "LIMITS": limits}
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, **given}
        assert (await take(process, "resp_1", 50))[1] is None
        if how == "killed":
            server.kill()
            server.wait()
        else:
            server.send_signal(signal.SIGSTOP)

        seen = []
        try:
            for number in range(2):
                try:
                    _, short = await take(process, f"resp_lost_{number}", 40)
                    seen.append("in" if short is None else "short")
                except Overloaded as error:
                    assert error.headers == {"retry-after": "1"}
                    seen.append("503")
        finally:
            if how != "killed":
                server.send_signal(signal.SIGCONT)
            process.reset()
            await background.settle()
            await redis.aclose()

    assert seen == outcome


async def test_what_was_taken_without_redis_is_told_when_it_is_back(
    settings: Any, tmp_path: Path, process: Holds, other: Holds
) -> None:
    with redis_server(tmp_path) as (url, server):
        limits = {**settings.RESPONSES_WS["LIMITS"], "redis_seconds": 1.0}
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": url, "LIMITS": limits}
        await take(process, "resp_1", 10)
        server.send_signal(signal.SIGSTOP)
        await take(process, "resp_2", 20)
        ended, _ = await take(process, "resp_3", 30)
        process.end(ended, 25)
        await background.settle()
        server.send_signal(signal.SIGCONT)
        await until(lambda: server_answers(url), "Redis to answer again")
        # As it is asked again by itself, after half a second.
        await redis.aclose()

        # Before anything more is taken.
        _, short = await take(process, "resp_4", 46)

        assert short is not None and short.held_nano == 55
        assert await other.standing(share()) == (0, 55)
        process.reset()
        await background.settle()
        await redis.aclose()


async def test_a_turn_takes_one_round_trip_and_its_end_another_that_nobody_waits_for(
    shared: Any, process: Holds, monkeypatch: Any
) -> None:
    monkeypatch.setattr(holds, "SECONDS_BETWEEN_LOOKS", 3600.0)
    first, _ = await take(process, "resp_1", 10, share(name="b1"), share(name="b2"))
    await end(process, first, 10)
    before = (await shared.info("commandstats"))["cmdstat_evalsha"]["calls"]

    second, _ = await take(process, "resp_2", 10, share(name="b1"), share(name="b2"))
    await process.take(second, 20)
    taken = (await shared.info("commandstats"))["cmdstat_evalsha"]["calls"]
    await end(process, second, 10)
    ended = (await shared.info("commandstats"))["cmdstat_evalsha"]["calls"]

    assert (taken - before, ended - taken) == (2, 1)
