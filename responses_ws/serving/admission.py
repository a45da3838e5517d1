"""Who is asking, and whether they may."""

import time

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.rates import Allowance, Rates, Standing, headers, refusal
from responses_ws.engines.registry import registry
from responses_ws.protocol.errors import ModelNotFound, RateLimited
from responses_ws.protocol.usage import Usage
from responses_ws.runtime import metrics, rates
from responses_ws.runtime.faults import faultpoint


class Principal(msgspec.Struct, frozen=True):
    """Who is asking: a key within a project. The project is the owner of what is stored."""

    organization_id: int
    project_id: int
    api_key_id: int | None
    """None where the host project's own authentication stands behind it."""
    name: str = ""
    """For logs and the live view; never the key."""
    allowed_models: frozenset[str] = frozenset()
    """Empty: all."""
    zero_retention: bool = False
    """Nothing that is said is kept: ``store`` is false whatever a request says, and what needs keeping is refused."""
    sealed_fallback: bool = False
    """What is not stored may be kept for a while where only the client can open it."""
    rates: Rates = Rates()
    """What is said of this key; ``RESPONSES_WS["RATES"]`` says the rest."""

    def may_use(self, model: str) -> bool:
        """Aliases, asked for or allowed, count as what they stand for."""
        if not self.allowed_models or model in self.allowed_models:
            return True
        return registry.real_name(model) in map(registry.real_name, self.allowed_models)


def admit(principal: Principal, model: str) -> None:
    """Check the rights of this turn, on every turn of every door.

    Raises:
        ModelNotFound: the same answer as for a model that does not exist.
    """
    if not principal.may_use(model):
        raise ModelNotFound(model)


class Ticket:
    """What lets one turn, or one socket, in. `close` it, whatever happens."""

    def __init__(self, allowance: Allowance, entry: rates.Entry | None, *, asked_at: float | None = None) -> None:
        self._allowance = allowance
        self._entry = entry
        """None: nothing is limited, so nothing is counted."""
        self._reserved = 0
        self._used = 0
        self.asked_at = time.perf_counter() if asked_at is None else asked_at
        """When it was asked for, by `time.perf_counter`."""
        self.phases: dict[str, float] = {}
        """What the turn has taken so far, in milliseconds, for whoever answers."""

    def headers(self) -> dict[str, str]:
        """``x-ratelimit-*``, as things are after what was taken for this turn, or used by it."""
        if self._entry is None:
            return {}
        standing = self._entry.standing
        return headers(self._allowance, Standing(standing.requests, standing.tokens + self._reserved + self._used))

    def reserve(self, tokens: int) -> None:
        """So many will be used, as far as one can tell."""
        if self._entry is not None:
            self._reserved += tokens
            self._entry.charge(tokens)

    def used(self, usage: Usage) -> None:
        """One response of this turn has ended; what was reserved is corrected by the first."""
        if self._entry is not None:
            tokens = usage.input_tokens + usage.output_tokens
            self._entry.charge(tokens - self._reserved)
            self._reserved = 0
            self._used += tokens

    def close(self) -> None:
        """Give back its place, and what was reserved and not used. Idempotent."""
        if self._entry is not None:
            self._entry.charge(-self._reserved)
            self._reserved = 0
            self._entry.leave()


async def enter(principal: Principal, *, transport: str) -> Ticket:
    """Let one more turn in, at every door, before anything is looked up for it.

    Raises:
        RateLimited: with the headers that say when.
    """
    faultpoint("admission.before")
    try:
        ticket = await _enter("turns", principal, principal.rates.over(app_settings.rates).turn())
    except RateLimited as error:
        metrics.refused.add((transport, str(error.code)))
        raise
    faultpoint("admission.after")
    return ticket


async def enter_again(principal: Principal) -> Ticket:
    """Let a turn in that has been let in before, in a process that has let it go: it takes a place if there is one, and
    counts the tokens that it uses."""
    allowance = msgspec.structs.replace(principal.rates.over(app_settings.rates).turn(), requests=None)
    if allowance.is_unlimited:
        return Ticket(allowance, None)
    return Ticket(allowance, await rates.enter(_owner(principal), allowance))


async def enter_socket(principal: Principal) -> Ticket:
    """Let one more socket in. Raises RateLimited."""
    return await _enter("sockets", principal, principal.rates.over(app_settings.rates).socket())


async def _enter(what: str, principal: Principal, allowance: Allowance) -> Ticket:
    if allowance.is_unlimited:
        return Ticket(allowance, None)
    asked_at = time.perf_counter()
    entry = await rates.enter(_owner(principal, what), allowance)
    if entry.standing.refused is not None:
        raise refusal(allowance, entry.standing)
    return Ticket(allowance, entry, asked_at=asked_at)


def _owner(principal: Principal, what: str = "turns") -> str:
    key = principal.api_key_id
    return f"{what} of project {principal.project_id}" if key is None else f"{what} of key {key}"
