"""WebSocket mode beside HTTP, and where chains were found: two panels of the dashboard."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import msgspec
from asgiref.sync import async_to_sync

from responses_ws.models import UsageRecord
from responses_ws.models.usage import UsageRecordQuerySet
from responses_ws.runtime import metrics
from responses_ws.runtime.connections import live_sockets
from responses_ws.runtime.metrics import Family
from responses_ws.runtime.siblings import siblings

from .formats import milliseconds, percent, thousands

TIERS = {
    "connection": "The socket's memory",
    "process": "The process's memory",
    "redis": "Redis",
    "database": "The database",
    "none": "Nowhere",
}


class Way(msgspec.Struct, frozen=True):
    """One way to ask for a turn; times are ``p50, p95``."""

    name: str
    turns: str
    share: str
    first_token: str
    duration: str


class Tier(msgspec.Struct, frozen=True):
    """One place where the parent of a turn was found."""

    name: str
    turns: str
    share: str


class Host(msgspec.Struct, frozen=True):
    """What the processes of this host have counted since they began."""

    processes: int
    sockets: int
    tiers: list[Tier]
    sent_to_http: int
    """Handshakes answered with 426."""


def ways(records: UsageRecordQuerySet) -> list[Way]:
    """By transport; the times are those of the newest turns only, so that a busy day costs no more than a quiet one."""
    counts = records.by_transport()
    firsts: dict[str, list[float]] = defaultdict(list)
    durations: dict[str, list[float]] = defaultdict(list)
    for transport, first_token_ms, duration_ms in records.newest_times():
        durations[transport].append(duration_ms)
        if first_token_ms is not None:
            firsts[transport].append(first_token_ms)
    total = sum(counts.values())
    return [
        Way(
            name=str(label),
            turns=thousands(counts.get(transport, 0)),
            share=percent(counts.get(transport, 0), total),
            first_token=_half_and_most(firsts[transport]),
            duration=_half_and_most(durations[transport]),
        )
        for transport, label in UsageRecord.Transport.choices
        if transport in counts or transport != UsageRecord.Transport.COMPACT
    ]


def host() -> Host:
    """Asks the other workers behind our socket; those that do not answer in time are left out."""
    others = async_to_sync(siblings.ask)()
    told = [metrics.families(()), *(msgspec.json.decode(one, type=list[Family]) for one in others)]
    everything = list(chain.from_iterable(told))
    found = metrics.sums(everything, metrics.lookups.name)
    total = int(sum(found.values()))
    tiers = [(name, int(found.get(tier, 0))) for tier, name in TIERS.items()]
    return Host(
        processes=len(told),
        sockets=live_sockets() + int(sum(metrics.sums(everything, "responses_ws_sockets").values())),
        tiers=[Tier(name, thousands(turns), percent(turns, total)) for name, turns in tiers],
        sent_to_http=int(metrics.sums(everything, metrics.handshakes_refused.name).get("websocket_off", 0)),
    )


def _half_and_most(values: Sequence[float]) -> str:
    """The nearest rank: values that really occurred."""
    if not values:
        return "–"
    ordered = sorted(values)
    half, most = (ordered[max(0, -(-len(ordered) * per_cent // 100) - 1)] for per_cent in (50, 95))
    return f"{milliseconds(half)}, {milliseconds(most)}"
