"""Both sinks keep the contract."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from responses_ws.billing.sinks.base import Sink
from responses_ws.billing.sinks.registry import load
from responses_ws.testing.billing import SinkContract

from .receivers import Meter, Receiver


class OfReceiver(SinkContract):
    options: dict[str, Any]

    def receiver(self) -> Any:
        return Receiver()

    @pytest.fixture(autouse=True)
    def _running(self, settings: Any) -> Iterator[None]:
        self.settings = settings
        with self.receiver() as self.running:
            yield

    def sink(self) -> Sink:
        return self._told_at(self.running.origin)

    def down(self) -> Sink:
        return self._told_at("http://127.0.0.1:9")

    def _told_at(self, origin: str) -> Sink:
        changed = {"BILLING_SINKS": {"one": {**self.options, "URL": f"{origin}/hook"}}, "WEBHOOK_ORIGINS": [origin]}
        self.settings.RESPONSES_WS = {**self.settings.RESPONSES_WS, **changed}
        return load("one")


class TestWebhook(OfReceiver):
    options = {"SINK": "responses_ws.billing.sinks.webhook.Webhook"}

    def counted(self) -> Collection[Any]:
        return self.running.counted()


class TestStripeMeter(OfReceiver):
    options = {"SINK": "responses_ws.billing.sinks.stripe.StripeMeter", "API_KEY": Meter.KEY, "EVENT_NAME": "spend"}
    started_at = datetime.now(UTC).isoformat()
    stripe_customer = "cus_acme"

    def receiver(self) -> Any:
        return Meter("cus_acme")

    def counted(self) -> Collection[Any]:
        return self.running.events
