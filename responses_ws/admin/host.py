"""What the processes of this host tell of themselves: sockets, lanes, where chains were found."""

from itertools import chain

import msgspec
from asgiref.sync import async_to_sync

from responses_ws.runtime import connections, metrics
from responses_ws.runtime.connections import live_sockets
from responses_ws.runtime.metrics import Family
from responses_ws.runtime.siblings import siblings

from .formats import percent, thousands

TIERS = {
    "connection": "The socket's memory",
    "process": "The process's memory",
    "redis": "Redis",
    "database": "The database",
    "none": "Nowhere",
}


class Tier(msgspec.Struct, frozen=True):
    """One place where the parent of a turn was found."""

    name: str
    turns: str
    share: str


class Host(msgspec.Struct, frozen=True):
    """What the processes of this host have counted since they began."""

    processes: int
    sockets: int
    lanes: int
    tiers: list[Tier]
    sent_to_http: int
    """Handshakes answered with 426."""
    settle_ms: float | None
    """How long the end of a turn took to become durable, on average."""


def host() -> Host:
    """Asks the other workers behind our socket; those that do not answer in time are left out."""
    others = async_to_sync(siblings.ask)()
    told = [metrics.families(()), *(msgspec.json.decode(one, type=list[Family]) for one in others)]
    everything = list(chain.from_iterable(told))
    found = metrics.sums(everything, metrics.lookups.name)
    total = int(sum(found.values()))
    settle = metrics.means(everything, metrics.turn_phases.name).get("settle")
    tiers = [(name, int(found.get(tier, 0))) for tier, name in TIERS.items()]
    return Host(
        processes=len(told),
        sockets=live_sockets() + int(sum(metrics.sums(everything, "responses_ws_sockets").values())),
        lanes=connections.lanes() + int(sum(metrics.sums(everything, "responses_ws_lanes").values())),
        tiers=[Tier(name, thousands(turns), percent(turns, total)) for name, turns in tiers],
        sent_to_http=int(metrics.sums(everything, metrics.handshakes_refused.name).get("websocket_off", 0)),
        settle_ms=None if settle is None else settle * 1000,
    )
