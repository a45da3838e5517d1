"""Stripe's billing meters."""

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Literal
from urllib.parse import urlencode

import msgspec

from responses_ws.billing import webhooks
from responses_ws.models import Organization
from responses_ws.runtime import options as options_module
from responses_ws.runtime.http import Answer, Poster

from .base import Message, Rejected, Sink, Tell, Unavailable

MOST_AGE = timedelta(days=35)
MOST_IDENTIFIER = 100
VERSION = "2025-04-30.basil"
"""Of Stripe's API, whatever the account has been set to."""


class StripeOptions(msgspec.Struct, rename="upper", kw_only=True):
    """Options of `StripeMeter`."""

    api_key: str
    """A secret or restricted key that may write meter events."""
    event_name: str
    """Of the meter, which adds up (``sum``) what it is told."""
    value: Literal["owed_nano", "amount_nano", "input_tokens", "output_tokens", "tool_calls", "responses"] = "owed_nano"
    """What is counted. ``owed_nano``: what is owed after credit that was granted here, in 10⁻⁹ of the currency; its
    price at Stripe is 0.0000001 cents a unit, or 0.000000001 where there are no cents. ``amount_nano``: the same
    before credit. Or tokens, for prices that Stripe knows."""
    url: str = "https://api.stripe.com/v1/billing/meter_events"


class StripeMeter(Sink):
    """A meter event for every entry of organisations with a Stripe customer; corrections are negative ones.

    Events count for the moment of the turn, corrections for that of the correction: in a month that is over nobody
    would see them. Customers are told of one event at a time, as Stripe wants it.

    Source: Stripe's API reference, "Create a billing meter event", and "Record usage for billing with the API".
    """

    # "At least 24 hours".
    remembers: ClassVar[timedelta | None] = timedelta(hours=24)

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self.options = options_module.read(f"BILLING_SINKS[{name!r}]", options, StripeOptions)

    def wants(self, organization: Organization) -> bool:
        return bool(organization.stripe_customer)

    def lane(self, message: Message) -> str:
        return message.stripe_customer

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Tell]:
        async with webhooks.poster(self.options.url) as poster:
            yield partial(self._tell, poster)

    async def _tell(self, poster: Poster, message: Message) -> None:
        headers = {
            "authorization": f"Bearer {self.options.api_key}",
            "content-type": "application/x-www-form-urlencoded",
            "stripe-version": VERSION,
        }
        body = urlencode(self._event(message, datetime.now(UTC))).encode()
        _understand(await poster.post(body, headers))

    def _event(self, message: Message, now: datetime) -> dict[str, str]:
        body = message.body
        if not message.stripe_customer:
            raise Rejected("the organisation has no Stripe customer any more")
        is_correction = body["kind"] == "reversal" or body["rating_version"] > 1
        moment = datetime.fromisoformat(body["posted_at" if is_correction else "started_at"])
        if now - moment > MOST_AGE:
            raise Rejected(f"older than the {MOST_AGE.days} days that Stripe takes")
        return {
            "event_name": self.options.event_name,
            "identifier": self._identifier(message),
            "timestamp": str(int(moment.timestamp())),
            "payload[stripe_customer_id]": message.stripe_customer,
            "payload[value]": str(body[self.options.value]),
        }

    def _identifier(self, message: Message) -> str:
        # With the meter: two of them are told of the same entry.
        whole = f"{message.id}:{self.options.event_name}"
        return whole if len(whole) <= MOST_IDENTIFIER else hashlib.sha256(whole.encode()).hexdigest()


class _Error(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error


_decode = msgspec.json.Decoder(_Refusal).decode
# Not all versions of the API give it a code.
_DUPLICATE = re.compile(r"already exists with identifier|duplicate identifier", re.IGNORECASE)
# What is wrong with the event itself; a key that is not good, a lock or a limit are not.
_FOR_GOOD = (400, 402, 404, 422)


def _understand(answer: Answer) -> None:
    """Raises Unavailable, Rejected. An event that Stripe has already is one that has arrived."""
    if answer.is_ok:
        return
    try:
        error = _decode(answer.body).error
    except msgspec.DecodeError:
        error = _Error()
    said = error.message or ""
    if error.code == "duplicate_meter_event" or (answer.status == 400 and _DUPLICATE.search(said)):
        return
    if answer.status in _FOR_GOOD:
        raise Rejected(f"{answer.status} {error.code or ''} {said}"[:200])
    raise Unavailable(f"the status is {answer.status}")
