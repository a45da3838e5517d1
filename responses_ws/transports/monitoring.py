"""Whether this process lives, whether it should be sent work, and what it has counted.

Async views of Django alone: they wait neither for a thread nor for a turn.
"""

import asyncio
import secrets
from typing import Any

import msgspec
from django.db import Error, connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone

from responses_ws.billing import pulse
from responses_ws.conf import app_settings
from responses_ws.engines.health import State
from responses_ws.engines.registry import registry
from responses_ws.models import BackgroundRun, Delivery
from responses_ws.protocol.errors import ApiError
from responses_ws.runtime import connections, dbpool, drain, redis, vitals
from responses_ws.runtime import metrics as counted
from responses_ws.runtime.metrics import Family, Gauge
from responses_ws.runtime.recent import Recent
from responses_ws.runtime.siblings import siblings
from responses_ws.runtime.writer import writer

DATABASE_SECONDS = 2.0
"""How long a health check or a scrape waits for the database."""
SECONDS_READY = 1.0
SECONDS_OWED = 15.0


async def healthz(_request: HttpRequest) -> HttpResponse:
    """The process answers: that is all. Who restarts it because others are down makes it worse."""
    return JsonResponse({"status": "ok"})


async def readyz(_request: HttpRequest) -> HttpResponse:
    """Whether to send work here: 503 while it drains, and while the database, which every turn needs, is away."""
    if drain.is_draining():
        return _unready("draining")
    try:
        await database_answers.get(within=DATABASE_SECONDS)
    except (ApiError, Error, TimeoutError):
        return _unready("unavailable", database="down")
    told = {"status": "ok", "database": "ok"}
    # Chains are read from the database without it.
    if app_settings.REDIS_URL:
        told["redis"] = "ok" if await redis.answers() else "down"
    if await _billing_stands():
        told["billing"] = "late"
    if set(told.values()) != {"ok"}:
        told["status"] = "degraded"
    return _told(told)


async def _billing_stands() -> bool:
    """Usage waits for the ledger, or nobody asks for it to be looked for. Turns go on, and nothing is lost."""
    try:
        now = await owed.get(within=DATABASE_SECONDS)
    except (ApiError, Error, TimeoutError):
        return False
    return now.pulse.is_late or now.pulse.is_silent


async def metrics(request: HttpRequest) -> HttpResponse:
    """For Prometheus: of all workers behind this socket. Without a token in the settings there is no such page."""
    token = app_settings.METRICS_TOKEN
    if not token:
        raise Http404
    if not secrets.compare_digest(request.headers.get("Authorization", "").encode(), f"Bearer {token}".encode()):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    others, everywhere = await asyncio.gather(siblings.ask(), _everywhere())
    here = counted.families([*_here(), *everywhere])
    text = counted.exposition(here, *(msgspec.json.decode(one, type=list[Family]) for one in others))
    return HttpResponse(text, content_type=counted.CONTENT_TYPE)


def told() -> bytes:
    """What the siblings of this process are told of it."""
    return msgspec.json.encode(counted.families(_here()))


def _here() -> list[Gauge]:
    """What is so in this process."""
    stations = registry.stations().items()
    return [
        Gauge("responses_ws_sockets", "Open WebSockets.", samples=[((), connections.live_sockets())]),
        Gauge("responses_ws_lanes", "Lanes that have been named on them.", samples=[((), connections.lanes())]),
        Gauge("responses_ws_turns_running", "Turns in flight, each on a lane.", samples=[((), drain.running_turns())]),
        Gauge("responses_ws_turns_waiting", "Turns waiting on sockets.", samples=[((), connections.waiting_turns())]),
        Gauge("responses_ws_draining", "1 while it takes no more turns.", samples=[((), drain.is_draining())]),
        Gauge("responses_ws_writer_queue", "Writes waiting for a commit to begin.", samples=[((), writer.waiting)]),
        Gauge(
            "responses_ws_engine_calls",
            "Calls to an engine that run, or wait for a place.",
            ("engine", "state"),
            [
                ((name, state), value)
                for name, station in stations
                for state, value in (("running", station.slots.running), ("waiting", station.slots.waiting))
            ],
        ),
        Gauge(
            "responses_ws_engine_up",
            "0 while it is known to be down.",
            ("engine",),
            [((name,), station.condition.state is not State.DOWN) for name, station in stations],
        ),
        *vitals.gauges(),
    ]


async def _everywhere() -> list[Gauge]:
    """What the database says, the same from every process; nothing while it does not answer."""
    try:
        now = await owed.get(within=DATABASE_SECONDS)
    except (ApiError, Error, TimeoutError):
        return []
    waiting = now.pulse.waiting.total_seconds() if now.pulse.waiting is not None else 0.0
    silence = [((), now.pulse.silence.total_seconds())] if now.pulse.silence is not None else []
    return [
        Gauge(
            "responses_ws_unbilled_records",
            "Usage records that wait for the ledger.",
            samples=[((), now.pulse.unbilled)],
        ),
        Gauge("responses_ws_unbilled_oldest_seconds", "Since the first of them ended.", samples=[((), waiting)]),
        Gauge(
            "responses_ws_beat_silent_seconds",
            "Since Celery's beat was heard of.",
            samples=silence,
        ),
        Gauge(
            "responses_ws_background_waiting",
            "Background responses that no process runs.",
            samples=[((), now.background)],
        ),
        Gauge(
            "responses_ws_background_waiting_oldest_seconds",
            "Since the first of them has waited.",
            samples=[((), now.background_seconds)],
        ),
        Gauge(
            "responses_ws_undelivered",
            "Entries of the ledger that a sink has not been told of.",
            ("sink", "state"),
            [((row["sink"], state), row[state]) for row in now.sinks for state in ("waiting", "given_up")],
        ),
    ]


def _select() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


class Owed(msgspec.Struct, frozen=True):
    """What the database says is still to be done."""

    pulse: pulse.Pulse
    background: int
    """Background responses that no process runs."""
    background_seconds: float
    """Since the first of them has waited."""
    sinks: list[dict[str, Any]]
    """As `DeliveryQuerySet.by_sink` has them."""


def _owed() -> Owed:
    now = timezone.now()
    count, oldest = BackgroundRun.objects.backlog(now)
    sinks = list(Delivery.objects.by_sink()) if app_settings.BILLING_SINKS else []
    return Owed(pulse.take(now), count, (now - oldest).total_seconds() if oldest is not None else 0.0, sinks)


def _unready(status: str, **detail: str) -> HttpResponse:
    return _told({"status": status, **detail}, status=503)


def _told(detail: dict[str, str], *, status: int = 200) -> HttpResponse:
    return JsonResponse(detail, status=status, headers={"Cache-Control": "no-store"})


# Health checks need no key: however many come, one of them asks the database.
database_answers = Recent(lambda: dbpool.run(_select), seconds=SECONDS_READY)
owed = Recent(lambda: dbpool.run(_owed), seconds=SECONDS_OWED)
