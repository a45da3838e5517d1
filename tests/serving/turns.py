"""Helpers to run turns without a door."""

from contextlib import aclosing
from typing import Any

import msgspec

from responses_ws.connection.chain import Chains
from responses_ws.protocol.request import Request
from responses_ws.runtime import background
from responses_ws.serving.admission import Principal
from responses_ws.serving.context import Asked
from responses_ws.serving.turns import run_turn


def asked(principal: Principal, given: Any = None, **fields: Any) -> Asked:
    """A request for the scripted model; ``chains`` and ``stream_id`` go to the connection."""
    connection = {name: fields.pop(name) for name in ("chains", "stream_id", "transport") if name in fields}
    request = msgspec.convert({"model": "scripted", "input": given, **fields}, Request)
    return Asked(principal=principal, request=request, **{"transport": "websocket", **connection})


async def events_of(ask: Asked) -> list[dict[str, Any]]:
    """All events of a turn, decoded; returns when everything that it owes in the background is done."""
    events: list[dict[str, Any]] = []
    async with aclosing(run_turn(ask)) as runs:
        async for frames in runs:
            assert frames, "a run of events is never empty"
            events += map(msgspec.json.decode, frames)
    await background.settle()
    return events


async def response_of(ask: Asked) -> dict[str, Any]:
    """The Response in the terminal event."""
    response: dict[str, Any] = (await events_of(ask))[-1]["response"]
    return response


__all__ = ["Chains", "asked", "events_of", "response_of"]
