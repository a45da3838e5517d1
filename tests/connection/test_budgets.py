from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from responses_ws.connection.budgets import Account, Book, Budget, Kind, Share, Short, Window, refusal, take, window_of

INF = float("inf")


def budget(limit: int = 100, *, name: str = "b1", kind: Kind = "total", **fields: Any) -> Budget:
    named = {"organization_id": 1, "currency": "USD", "of": "project agents", **fields}
    return Budget(name=name, kind=kind, limit_nano=limit, **named)


def share(limit: int = 100, *, kind: Kind = "total", **fields: Any) -> Share:
    return budget(limit, kind=kind, **fields).at(datetime(2026, 11, 30, 12, tzinfo=UTC))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("kind", "moment", "start", "end"),
    [
        pytest.param("day", "2026-11-30T23:59:59.999+00:00", "2026-11-30", "2026-12-01", id="the last moment of a day"),
        pytest.param("day", "2026-12-01T00:00:00+00:00", "2026-12-01", "2026-12-02", id="midnight"),
        pytest.param("day", "2026-12-01T00:30:00+02:00", "2026-11-30", "2026-12-01", id="days are those of UTC"),
        pytest.param("week", "2026-11-29T23:59:59+00:00", "2026-11-23", "2026-11-30", id="Sunday"),
        pytest.param("week", "2026-11-30T00:00:00+00:00", "2026-11-30", "2026-12-07", id="Monday"),
        pytest.param("month", "2026-12-31T23:00:00+00:00", "2026-12-01", "2027-01-01", id="over the year's end"),
        pytest.param("month", "2028-02-29T00:00:00+00:00", "2028-02-01", "2028-03-01", id="a leap day"),
    ],
)  # fmt: skip
def test_windows_are_those_of_utc(kind: Kind, moment: str, start: str, end: str) -> None:
    expected = Window(at(f"{start}T00:00:00+00:00"), at(f"{end}T00:00:00+00:00"))

    assert window_of(kind, at(moment)) == expected


def test_a_total_has_no_window() -> None:
    assert window_of("total", at("2026-11-30T00:00:00+00:00")) == Window()


def test_a_turn_is_covered_by_every_budget_that_names_it_or_does_not_say() -> None:
    fields: dict[str, dict[str, Any]] = {
        "all": {},
        "all twice": {},
        "project": {"project_id": 2},
        "key": {"api_key_id": 3},
        "model": {"model": "m"},
        "narrow": {"project_id": 2, "api_key_id": 3, "model": "m"},
        "other": {"project_id": 9},
        "other key": {"api_key_id": 9},
        "other model": {"model": "n"},
        "foreign": {"organization_id": 9},
    }
    book = Book(budget(name=name, **said) for name, said in fields.items())

    def names(*asked: Any) -> set[str]:
        found = [one.name for one in book.of(*asked)]
        assert len(found) == len(set(found))
        return set(found)

    assert names(1, 2, 3, "m") == {"all", "all twice", "project", "key", "model", "narrow"}
    assert names(1, 2, None, "m") == {"all", "all twice", "project", "model"}
    assert names(1, 8, 8, "o") == {"all", "all twice"}
    assert names(9, 2, 3, "m") == {"foreign"}
    assert names(8, 2, 3, "m") == set()
    assert [number in book for number in (1, 9, 8)] == [True, True, False]


@pytest.mark.parametrize(
    ("spent", "holds", "amount", "fits"),
    [
        pytest.param(0, {}, 100, True, id="all of it"),
        pytest.param(0, {}, 101, False, id="one too many"),
        pytest.param(40, {"b": 50}, 10, True, id="to the last one"),
        pytest.param(40, {"b": 50}, 11, False, id="others hold it"),
        pytest.param(40, {"a": 30}, 60, True, id="what is held already is not held twice"),
        pytest.param(40, {"a": 30, "b": 20}, 41, False, id="grows beyond"),
        pytest.param(400, {"a": 30}, 30, True, id="no more than before"),
        pytest.param(400, {"a": 30}, 31, False, id="one more than before"),
        pytest.param(400, {}, 0, True, id="what is free"),
        pytest.param(-50, {}, 150, True, id="credit is spent below nothing"),
    ],
)
def test_what_fits(spent: int, holds: dict[str, int], amount: int, fits: bool) -> None:
    account = Account(spent=spent)
    for name, held in holds.items():
        account.hold(name, held, INF)

    short = take([(share(), account)], "a", amount, now=0.0, until=INF)

    assert (short is None) == fits
    assert account.held == sum(holds.values()) + (amount - holds.get("a", 0) if fits else 0)


def test_a_turn_that_one_budget_refuses_holds_nothing_of_the_others() -> None:
    wide, narrow = Account(spent=0), Account(spent=95)

    short = take([(share(name="b1"), wide), (share(name="b2"), narrow)], "a", 10, now=0.0, until=INF)

    assert short is not None and (short.share.budget.name, short.spent_nano) == ("b2", 95)
    assert (wide.held, narrow.held) == (0, 0)


def test_a_hold_that_nobody_renews_lapses() -> None:
    account = Account(spent=0)
    take([(share(), account)], "dead", 100, now=0.0, until=120.0)

    assert take([(share(), account)], "a", 1, now=119.9, until=INF) is not None
    assert take([(share(), account)], "a", 100, now=120.0, until=INF) is None
    assert account.held == 100


def test_an_older_look_changes_nothing() -> None:
    account = Account(spent=0)
    account.hold("a", 10, INF)
    older, newer = account.draw(), account.draw()

    assert account.refresh(newer, 10, ["a"], true_until=INF)
    account.hold("b", 5, INF)
    assert not account.refresh(older, 0, ["b"], true_until=INF)

    assert (account.spent, account.held) == (10, 5)


def test_a_look_that_was_begun_later_and_has_read_earlier_changes_nothing() -> None:
    """Found by the machine below: what was billed between the two was in neither the sum nor the holds."""
    account = Account(spent=0)
    account.hold("a", 10, INF)
    slow, fast = account.draw(), account.draw()
    # The fast one reads now. Then the response is billed, and the slow one reads.
    assert account.refresh(slow, 10, ["a"], true_until=INF)

    assert not account.refresh(fast, 0, [], true_until=INF)

    assert (account.spent, account.held) == (10, 0)
    assert account.refresh(account.draw(), 10, [], true_until=INF)


@pytest.mark.parametrize(
    ("of", "short", "code", "message"),
    [
        pytest.param(
            share(10 * 10**9, kind="month"), (9_750_000_000, 0), "insufficient_quota",
            "The monthly budget of project agents does not cover this request: 9.75 USD of 10.00 USD are spent. "
            "A new one begins at 2026-12-01 00:00 UTC.",
            id="a month",
        ),
        pytest.param(
            share(10 * 10**9), (0, 10**9), "insufficient_quota",
            "The total budget of project agents does not cover this request: 0.00 USD of 10.00 USD are spent, 1.00 USD "
            "are held by responses that run or are being billed. It is not renewed.",
            id="for ever, with what is held",
        ),
        pytest.param(
            share(0, name="credit", of="Acme"), (-1_234_567, 0), "credit_balance_exhausted",
            "The prepaid credit of Acme does not cover this request: 0.001234567 USD are left. Please add credit, or "
            "ask for less output.",
            id="credit",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_which_what_and_until_when(of: Share, short: tuple[int, int], code: str, message: str) -> None:
    error = refusal(Short(of, *short))

    assert (error.status, error.type, error.code) == (429, "insufficient_quota", code)
    assert error.message == message
    # Neither a delay nor a word that makes clients try again by themselves.
    assert error.headers == {"x-should-retry": "false"}


class Interleavings(RuleBasedStateMachine):
    """Turns that take, grow and end, a biller, and several who look, in any order: each at its own step."""

    LIMIT = 1000

    def __init__(self) -> None:
        super().__init__()
        self.account = Account(spent=0)
        self.share = share(self.LIMIT)
        self.running: dict[str, int] = {}
        """What each holds."""
        self.ended: dict[str, int] = {}
        """What each has cost."""
        self.billed: list[str] = []
        self.looks: dict[int, tuple[set[str], list[str] | None]] = {}
        """By ticket: who held something when it was drawn, and who was billed when it read."""
        self.shown: list[str] = []
        """Whose cost is in the sum that is shown."""
        self.unseen: set[str] = set()
        """In that sum, and not among those that were asked about."""
        self.count = 0

    @rule(amount=st.integers(1, 400))
    def take(self, amount: int) -> None:
        self.count += 1
        name = f"resp_{self.count}"
        if take([(self.share, self.account)], name, amount, now=0.0, until=INF) is None:
            self.running[name] = amount

    @precondition(lambda self: self.running)
    @rule(data=st.data(), amount=st.integers(1, 600))
    def grow(self, data: Any, amount: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        if take([(self.share, self.account)], name, amount, now=0.0, until=INF) is None:
            self.running[name] = amount

    @precondition(lambda self: self.running)
    @rule(data=st.data(), share_of_it=st.floats(0, 1))
    def end(self, data: Any, share_of_it: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        cost = int(self.running.pop(name) * share_of_it)
        self.account.hold(name, cost, INF)
        self.ended[name] = cost

    @precondition(lambda self: set(self.ended) - set(self.billed))
    @rule(data=st.data())
    def bill(self, data: Any) -> None:
        self.billed.append(data.draw(st.sampled_from(sorted(set(self.ended) - set(self.billed)))))

    @rule()
    def draw_ticket(self) -> None:
        self.looks[self.account.draw()] = (set(self.account.holds), None)

    @precondition(lambda self: any(read is None for _, read in self.looks.values()))
    @rule(data=st.data())
    def read(self, data: Any) -> None:
        ticket = data.draw(st.sampled_from([ticket for ticket, (_, read) in self.looks.items() if read is None]))
        self.looks[ticket] = (self.looks[ticket][0], list(self.billed))

    @precondition(lambda self: any(read is not None for _, read in self.looks.values()))
    @rule(data=st.data())
    def show(self, data: Any) -> None:
        ready = [ticket for ticket, (_, read) in self.looks.items() if read is not None]
        ticket = data.draw(st.sampled_from(ready))
        asked, read = self.looks.pop(ticket)
        assert read is not None
        spent = sum(self.ended[name] for name in read)
        if self.account.refresh(ticket, spent, [name for name in read if name in asked], true_until=INF):
            self.shown, self.unseen = read, set(read) - asked

    @invariant()
    def nothing_is_in_neither_place(self) -> None:
        for name, cost in self.ended.items():
            assert name in self.shown or self.account.holds.get(name, (0, 0))[0] == cost, name

    @invariant()
    def nothing_is_in_both_but_what_came_and_was_billed_within_one_look(self) -> None:
        assert {name for name in self.shown if name in self.account.holds} <= self.unseen

    @invariant()
    def what_is_held_is_the_sum_of_the_holds(self) -> None:
        assert self.account.held == sum(amount for amount, _ in self.account.holds.values())

    @invariant()
    def never_more_is_spent_than_the_limit(self) -> None:
        assert sum(self.ended.values()) + sum(self.running.values()) <= self.LIMIT


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=30, stateful_step_count=40)
