"""Any server that takes a POST of JSON."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from responses_ws.billing import webhooks
from responses_ws.conf import app_settings
from responses_ws.runtime import options as options_module
from responses_ws.runtime.http import Poster

from .base import Message, Sink, Tell, Unavailable


class WebhookOptions(msgspec.Struct, rename="upper", kw_only=True):
    """Options of `Webhook`."""

    url: str
    """Public and ``https``, or of an origin in ``WEBHOOK_ORIGINS``."""
    secret: str = ""
    """What it is signed with; empty: ``WEBHOOK_SECRET``."""


class Webhook(Sink):
    """A POST for every entry: ``{"type": "usage.billed", "timestamp": …, "data": {…}}``, or ``usage.reversed``.

    Signed as budgets' webhooks are; ``webhook-id`` is `Message.id`. Any 2xx means that it has arrived, and everything
    else that it has not: a receiver that is set up wrongly is one that will be mended.

    Source: Standard Webhooks.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self.options = options_module.read(f"BILLING_SINKS[{name!r}]", options, WebhookOptions)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Tell]:
        async with webhooks.poster(self.options.url) as poster:
            yield partial(self._tell, poster)

    async def _tell(self, poster: Poster, message: Message) -> None:
        kind = "usage.reversed" if message.body["kind"] == "reversal" else "usage.billed"
        told = {"type": kind, "timestamp": message.body["posted_at"], "data": message.body}
        body = msgspec.json.encode(told)
        secret = self.options.secret or app_settings.WEBHOOK_SECRET
        answer = await poster.post(body, {**webhooks.JSON, **webhooks.signed(secret, message.id, body)})
        if not answer.is_ok:
            raise Unavailable(f"the status is {answer.status}")
