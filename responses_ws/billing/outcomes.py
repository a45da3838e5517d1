"""Who pays for which ending: the one table that bills, the admin and the documentation are made of."""

from typing import Any

import msgspec

from responses_ws.conf import app_settings


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Which endings are billed; the settings of the same names, in capitals."""

    bill_cancelled: bool = True
    bill_warmup: bool = False
    bill_abandoned: bool = True


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """An ending of a response, and who pays for it."""

    status: str
    means: str
    billed: str
    """What is charged, as the documentation says it."""
    setting: str = ""
    """The field of `Policy` that decides."""
    waiver: str = ""
    """The ledger's memo where it is free; empty: it always has to be paid."""

    def is_free(self, policy: Policy) -> bool:
        return bool(self.waiver) and not (self.setting and getattr(policy, self.setting))


OUTCOMES = (
    Outcome(status="completed", means="all is well", billed="yes"),
    Outcome(status="incomplete", means="an output limit or a content filter ended it", billed="yes"),
    Outcome(
        status="cancelled",
        means="the client left, or cancelled it, or its socket was closed; the engine was stopped at once",
        billed="what was made, unless `BILL_CANCELLED` is off",
        setting="bill_cancelled",
        waiver="cancelled: not billed by policy",
    ),
    Outcome(
        status="abandoned",
        means="our process died",
        billed="up to the last count, unless `BILL_ABANDONED` is off",
        setting="bill_abandoned",
        waiver="abandoned: not billed by policy",
    ),
    Outcome(
        status="failed",
        means="the engine, or we, broke",
        billed="no",
        waiver="failed: provider failures are free",
    ),
)
WARMUP = Outcome(
    status="a warm-up (`generate: false`)",
    means="the engine did no work",
    billed="no, unless `BILL_WARMUP` is on",
    setting="bill_warmup",
    waiver="warm-up: the engine did no work",
)
BY_STATUS = {outcome.status: outcome for outcome in OUTCOMES}


def current_policy() -> Policy:
    """As the settings have it now."""
    return Policy(**{name: getattr(app_settings, name.upper()) for name in Policy.__struct_fields__})


def waiver_for(status: str, *, is_warmup: bool, policy: Policy) -> str:
    """Why a response that ended like this is free, or an empty string when it is to be paid."""
    endings = [BY_STATUS[status]]
    if is_warmup:
        # A failure is one, whatever was asked for; else that it was a warm-up says more.
        endings.insert(1 if status == "failed" else 0, WARMUP)
    return next((ending.waiver for ending in endings if ending.is_free(policy)), "")


def explained(record: Any, memo: str | None) -> str:
    """In a sentence or two, how a usage record ended, how its tokens were counted, and why it costs what it costs.

    Args:
        memo: of its standing entry in the ledger; None while it has none.
    """
    outcome = BY_STATUS.get(record.status)
    if outcome is None:
        return "It still runs. Nothing is billed before it has ended."
    means = WARMUP.means if record.is_warmup else outcome.means
    counted = "estimated, since the engine did not say" if record.estimated else "measured by the engine"
    because = f" ({record.reason})" if record.reason else ""
    return f"{means.capitalize()}{because}. Tokens: {counted}. {_charged(record, memo)}"


def _charged(record: Any, memo: str | None) -> str:
    if record.billed_at is None:
        return f"Not billed: {record.billing_error}." if record.billing_error else "It waits to be billed."
    if memo is None:
        return "What was billed was taken back."
    why = memo.removesuffix("estimated").removesuffix("; ")
    return f"Cost: {why}." if why else "Cost: by the prices of its start."


def table() -> str:
    """The policy in Markdown."""
    rows = [
        f"| {outcome.status if outcome is WARMUP else f'`{outcome.status}`'} | {outcome.means} | {outcome.billed} |"
        for outcome in (*OUTCOMES, WARMUP)
    ]
    return "\n".join(["| it ended as | that is | tokens are billed |", "|---|---|---|", *rows, ""])
