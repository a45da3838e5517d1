"""How much one key may ask for: its rates, and the rule that decides whether one more may come in."""

import math
from typing import Annotated, Literal

import msgspec

from responses_ws.protocol.errors import RateLimited

Limit = Annotated[int, msgspec.Meta(ge=1)]
Kind = Literal["requests", "tokens", "slots"]

_NAMES: dict[Kind, str] = {"requests": "requests per minute", "tokens": "tokens per minute"}
# Nobody knows when a place becomes free.
_SECONDS_TO_A_SLOT = 1.0


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What stands at one door: None is no limit."""

    requests: int | None = None
    """Per minute."""
    tokens: int | None = None
    """Per minute."""
    slots: int | None = None
    """At once."""
    of: str = ""
    """What takes a slot, in words."""

    @property
    def is_unlimited(self) -> bool:
        return self.requests is None and self.tokens is None and self.slots is None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of a key, a project, or of ``RESPONSES_WS["RATES"]``. None: the next wider one says; or nobody does."""

    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    """Input and output together."""
    concurrent_turns: Limit | None = None
    open_sockets: Limit | None = None

    def over(self, default: "Rates") -> "Rates":
        """These, and the default's where nothing is said."""
        said = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(default, **said)

    def turn(self) -> Allowance:
        return Allowance(
            requests=self.requests_per_minute,
            tokens=self.tokens_per_minute,
            slots=self.concurrent_turns,
            of="concurrent responses",
        )

    def socket(self) -> Allowance:
        return Allowance(slots=self.open_sockets, of="open sockets")


class Standing(msgspec.Struct, frozen=True):
    """What is used of an allowance, once somebody has asked to come in; and why not, if not."""

    requests: float
    tokens: float
    refused: Kind | None = None


class Count(msgspec.Struct):
    """What is used of an allowance. Used requests and tokens drain evenly, a whole limit in a minute.

    So a key that was silent may use its minute at once, and who is over the limit waits only until there is room for
    one more. Tokens are known when they are used: a turn may come in while any are left, and what it uses beyond
    them is waited for by the next one.
    """

    at: float
    """When this was so; seconds of any clock that the callers share."""
    requests: float = 0.0
    tokens: float = 0.0
    slots: int = 0

    def enter(self, allowance: Allowance, now: float) -> Standing:
        """Take one request and one slot; or, refused, nothing."""
        self._drain(allowance, now)
        refused: Kind | None = None
        if allowance.slots is not None and self.slots >= allowance.slots:
            refused = "slots"
        elif allowance.requests is not None and self.requests + 1 > allowance.requests:
            refused = "requests"
        elif allowance.tokens is not None and self.tokens + 1 > allowance.tokens:
            refused = "tokens"
        else:
            self.requests += allowance.requests is not None
            self.slots += allowance.slots is not None
        return Standing(self.requests, self.tokens, refused)

    def charge(self, allowance: Allowance, now: float, tokens: int) -> None:
        """So many tokens more were used; or, below 0, fewer than was thought."""
        self._drain(allowance, now)
        if allowance.tokens is not None:
            self.tokens = max(0.0, self.tokens + tokens)

    def _drain(self, allowance: Allowance, now: float) -> None:
        minutes = max(0.0, now - self.at) / 60
        self.at = now
        self.requests = max(0.0, self.requests - minutes * (allowance.requests or 0))
        self.tokens = max(0.0, self.tokens - minutes * (allowance.tokens or 0))


def headers(allowance: Allowance, standing: Standing) -> dict[str, str]:
    """``x-ratelimit-*`` of the limits that there are.

    Source: the rate limit headers of the OpenAI API. ``reset`` is how long until nothing is used any more.
    """
    said: dict[str, str] = {}
    for name, limit, used in (
        ("requests", allowance.requests, standing.requests),
        ("tokens", allowance.tokens, standing.tokens),
    ):
        if limit is not None:
            said[f"x-ratelimit-limit-{name}"] = str(limit)
            said[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(limit - used)))
            said[f"x-ratelimit-reset-{name}"] = duration(used * 60 / limit)
    return said


def refusal(allowance: Allowance, standing: Standing) -> RateLimited:
    """What a client is told who may not come in."""
    if standing.refused == "slots":
        what, limit, seconds = allowance.of, allowance.slots, _SECONDS_TO_A_SLOT
    else:
        assert standing.refused is not None, "only who is refused is told so"
        what = _NAMES[standing.refused]
        limit, used = getattr(allowance, standing.refused), getattr(standing, standing.refused)
        seconds = (used + 1 - limit) * 60 / limit
    return RateLimited(
        # Codex reads the delay out of this sentence.
        f"Rate limit reached: {limit} {what}. Please try again in {duration(seconds)}.",
        headers={"retry-after": str(max(1, math.ceil(seconds))), **headers(allowance, standing)},
    )


def duration(seconds: float) -> str:
    """As the API spells it: ``120ms``, ``8.64s``, ``6m0s``. Rounded up: earlier than this is too early."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{math.ceil(rest / 1000)}s" if minutes else f"{rest / 1000:g}s"
