"""How much may be spent in a window of time, and the rule that decides whether one more turn fits into what is left.

Money is an integer of nano units of its currency (10⁻⁹ USD, say). Windows are days, weeks (from Monday) and months of
UTC, as bills are.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from responses_ws.protocol.errors import InsufficientQuota

from .amounts import spoken

Kind = Literal["day", "week", "month", "total"]

_PER: dict[Kind, str] = {"day": "daily", "week": "weekly", "month": "monthly", "total": "total"}


class Window(msgspec.Struct, frozen=True):
    """[start, end); None is without one."""

    start: datetime | None = None
    end: datetime | None = None

    @property
    def name(self) -> str:
        return "all" if self.start is None else f"{self.start:%Y%m%d}"


def window_of(kind: Kind, moment: datetime) -> Window:
    """The window of this kind that holds an aware ``moment``."""
    if kind == "total":
        return Window()
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if kind == "day":
        return Window(day, day + timedelta(days=1))
    if kind == "week":
        monday = day - timedelta(days=day.weekday())
        return Window(monday, monday + timedelta(days=7))
    first = day.replace(day=1)
    return Window(first, (first + timedelta(days=32)).replace(day=1))


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A hard limit on what somebody spends in a window: an organisation, or one of its projects, keys, models.

    Of prepaid credit the limit is 0, and what is spent is what is left of it, below 0.
    """

    name: str
    """Unique, and not another's later: ``b7`` for the row 7; ``credit``."""
    organization_id: int
    kind: Kind
    limit_nano: int
    currency: str
    of: str = ""
    """Whose it is, in words for the client: ``project agents``."""
    project_id: int | None = None
    api_key_id: int | None = None
    model: str = ""
    """Empty: all."""

    @property
    def is_credit(self) -> bool:
        return self.name == "credit"

    def at(self, moment: datetime) -> "Share":
        """The budget in the window of a turn that started then."""
        return Share(self, window_of(self.kind, moment))


class Share(msgspec.Struct, frozen=True):
    """A budget in one of its windows."""

    budget: Budget
    window: Window

    @property
    def key(self) -> str:
        """Unique among those of its organisation."""
        return f"{self.budget.name}:{self.window.name}"


class Book:
    """All budgets of some moment, found by what a turn asks for."""

    def __init__(self, budgets: Iterable[Budget]) -> None:
        self._budgets: dict[int, dict[tuple[int | None, int | None, str], list[Budget]]] = {}
        for budget in budgets:
            of_organization = self._budgets.setdefault(budget.organization_id, {})
            place = (budget.project_id, budget.api_key_id, budget.model)
            of_organization.setdefault(place, []).append(budget)

    def __contains__(self, organization_id: int) -> bool:
        """Whether any turn of this organisation can have one."""
        return organization_id in self._budgets

    def of(self, organization_id: int, project_id: int, api_key_id: int | None, model: str) -> list[Budget]:
        """Those that have to cover a turn of this key, for this model."""
        known = self._budgets.get(organization_id)
        if known is None:
            return []
        keys = (None,) if api_key_id is None else (None, api_key_id)
        places = ((project, key, of) for project in (None, project_id) for key in keys for of in ("", model))
        return [budget for place in places for budget in known.get(place, ())]


class Short(msgspec.Struct, frozen=True):
    """Why a turn may not go on: this share has not enough left."""

    share: Share
    spent_nano: int
    held_nano: int
    """By other responses that run, or are not billed yet."""


class Account(msgspec.Struct):
    """What is spent and held of one share, by response.

    A turn holds what it may cost at most, from before its first engine call on. When it ends, that becomes what it has
    cost, and stays until the sum of what is spent holds it: only `refresh` takes it away, in the moment in which it
    sets the sum. So an amount is always in one of the two.
    """

    spent: int | None = None
    """As billed; None: nobody has looked yet."""
    held: int = 0
    holds: dict[str, tuple[int, float]] = {}
    """By response: the amount, and until when it is believed without another word."""
    true_until: float = 0.0
    """When somebody has to look again before anything is taken."""
    drawn: int = 0
    shown: int = 0
    """Tickets: the newest that was drawn, and the newest when the sum was shown. None up to that is good any more."""

    def fits(self, name: str, amount: int, limit: int) -> bool:
        """Whether this response may cost so much. Who wants no more than it holds always fits."""
        assert self.spent is not None, "the sum is read before anybody takes"
        own = self.holds.get(name, (0, 0.0))[0]
        return amount <= own or self.spent + self.held - own + amount <= limit

    def hold(self, name: str, amount: int, until: float) -> None:
        """From now on it is so much; 0: nothing."""
        self.held += amount - self.holds.pop(name, (0, 0.0))[0]
        if amount:
            self.holds[name] = (amount, until)

    def drop_dead(self, now: float) -> None:
        """Whoever was to renew these is gone."""
        for name in [name for name, (_, until) in self.holds.items() if until <= now]:
            self.hold(name, 0, now)

    def draw(self) -> int:
        """A ticket for `refresh`, drawn before anything is read for it."""
        self.drawn += 1
        return self.drawn

    def refresh(self, ticket: int, spent: int, billed: Iterable[str], *, true_until: float) -> bool:
        """Show this sum, in which these responses are. Nothing changes where another was shown since the draw.

        Who drew later may have read earlier; who drew behind what is shown has read behind it.
        """
        if ticket <= self.shown:
            return False
        self.shown, self.spent, self.true_until = self.drawn, spent, true_until
        for name in billed:
            self.hold(name, 0, 0.0)
        return True


def take(
    accounts: Sequence[tuple[Share, Account]], name: str, amount: int, *, now: float, until: float
) -> Short | None:
    """Hold so much for a response, in all of its shares or, where one of them is short, in none."""
    for share, account in accounts:
        account.drop_dead(now)
        if not account.fits(name, amount, share.budget.limit_nano):
            own = account.holds.get(name, (0, 0.0))[0]
            return Short(share, account.spent or 0, account.held - own)
    for _, account in accounts:
        account.hold(name, amount, until)
    return None


def refusal(short: Short) -> InsufficientQuota:
    """What a client is told. Nothing in it makes a client try again by itself: that would help nobody."""
    budget, window = short.share.budget, short.share.window
    if budget.is_credit:
        left = max(0, -short.spent_nano)
        return InsufficientQuota(
            f"The prepaid credit of {budget.of} does not cover this request: {spoken(left, budget.currency)} are left"
            f"{_held(short)}. Please add credit, or ask for less output.",
            code="credit_balance_exhausted",
        )
    ends = "It is not renewed" if window.end is None else f"A new one begins at {window.end:%Y-%m-%d %H:%M} UTC"
    return InsufficientQuota(
        f"The {_PER[budget.kind]} budget of {budget.of} does not cover this request: "
        f"{spoken(short.spent_nano, budget.currency)} of {spoken(budget.limit_nano, budget.currency)} are spent"
        f"{_held(short)}. {ends}."
    )


def _held(short: Short) -> str:
    if not short.held_nano:
        return ""
    return (
        f", {spoken(short.held_nano, short.share.budget.currency)} are held by responses that run or are being billed"
    )
