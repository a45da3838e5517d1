"""What this process does when another one has told it something."""

from collections.abc import Mapping
from typing import Any

import msgspec

from responses_ws.billing import pricebook
from responses_ws.runtime import connections, live
from responses_ws.runtime.bus import bus
from responses_ws.serving import background, budgets, runner
from responses_ws.stores import runs
from responses_ws.stores.forgetting import forgetting
from responses_ws.stores.memory import hot_tier
from responses_ws.stores.rows import Deleted

from .authentication import authenticator
from .shares import shares


async def listen() -> None:
    """Hear control messages from now on. Idempotent."""
    bus.handle("key_changed", _key_changed)
    bus.handle("responses_deleted", _responses_deleted)
    bus.handle("response_cancelled", _response_cancelled)
    bus.handle("turn_cancelled", lambda body: live.cancel(body["response_id"]))
    bus.handle("socket_closed", lambda body: connections.close(body["connection_id"]))
    bus.answer("live", live.told)
    bus.answer("totals", live.told_totals)
    bus.handle(runs.WAITING, lambda _body: runner.nudge())
    bus.handle("budgets_changed", lambda _body: budgets.changed())
    bus.handle("prices_changed", lambda _body: pricebook.forget())
    bus.handle("websocket_shares_changed", lambda _body: shares.forget())
    await bus.listen()
    budgets.watch()


async def _key_changed(body: Mapping[str, Any]) -> None:
    """A key was revoked, or its rights have changed: nothing that is remembered of it counts any more."""
    authenticator().forget_key(body["api_key_id"])
    await connections.recheck(body["api_key_id"])


async def _responses_deleted(body: Mapping[str, Any]) -> None:
    forget_responses(body["project_id"], set(body["response_ids"]))
    await forgetting.tell(body["project_id"], msgspec.convert(body, Deleted, str_keys=True))


def _response_cancelled(body: Mapping[str, Any]) -> None:
    background.forget({body["response_id"]})


def forget_responses(project_id: int, response_ids: set[str]) -> None:
    """Nothing in this process may continue these, nor go on making them."""
    background.forget(response_ids)
    hot_tier.forget(project_id, response_ids)
    connections.forget_responses(project_id, response_ids)
