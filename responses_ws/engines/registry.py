"""The engines of one process, and which of them answers for a model."""

import asyncio
import functools
import hashlib
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import ModelNotFound, Overloaded
from responses_ws.rendering.base import Renderer
from responses_ws.runtime import renderers

from .base import Capabilities, Engine
from .slots import Slots
from .stations import Station

logger = logging.getLogger(__name__)

STATION_KEYS = frozenset({"ENGINE", "CONCURRENCY", "QUEUE"})
"""Keys of an entry of ``ENGINES`` that are not the engine's own options."""
CALLS_WORTH_A_PREFIX = 4
"""A replica that may have a beginning cached is passed over when it has so many calls more to do than another."""
WAITING_PER_SLOT = 8
"""How many calls may wait for each that may run, where ``QUEUE`` does not say it."""


@functools.cache
def _in_tokens(can: Capabilities) -> Capabilities:
    """Of an engine that is asked in token ids: tools and calls are the renderer's and the parser's work, and what comes
    out is held to a form by constraints."""
    formats = {"json_object", "json_schema"} if "json_schema" in can.constraints else ()
    return msgspec.structs.replace(
        can,
        tools=True,
        tool_choice=True,
        strict_tools="structural_tag" in can.constraints,
        response_format=frozenset(formats),
        verbosity=False,
        images=False,
        files=False,
        exact_usage=True,
    )


class Route(msgspec.Struct, eq=False, kw_only=True):
    """One replica of a model: who answers for it. A chain keeps the one it was given."""

    model: str
    """The name that clients are told."""
    station: Station
    upstream: str
    """The engine's own name of it."""
    context_tokens: int | None = None
    """How much it can read and write, as soon as that is known."""
    renderer: Renderer | None = None
    """Makes its token ids, the same for all replicas of a model; None: it is asked in messages or items."""
    weight: float = 1.0
    """How much of the work is meant for it, beside the other replicas."""
    replicas: tuple["Route", ...] = ()
    """All that answer for the model, this one included."""
    is_stale: bool = False
    """The settings have changed since: whoever keeps it asks for another."""

    @property
    def engine(self) -> Engine:
        return self.station.engine

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do, asked in the way that it is asked in."""
        can = self.engine.capabilities
        return can if self.renderer is None else _in_tokens(can)

    def is_like(self, other: "Route") -> bool:
        """Whether a call to the other may be made to this one as it is."""
        return self.renderer is other.renderer and self.capabilities == other.capabilities

    @property
    def load(self) -> float:
        """Calls that it has to do, for what it is meant to do."""
        return (self.station.slots.running + self.station.slots.waiting) / self.weight


class EngineRegistry:
    """Engines by configured name, built at first use, one instance each per process; and the models they answer for.

    Plain dicts: Django's connection handlers keep one instance per asyncio task, which would mean a connection
    pool per turn. ``chance`` draws among replicas that are equally good: a number in [0, 1).
    """

    def __init__(self, *, chance: Callable[[], float] = random.random) -> None:
        self._stations: dict[str, Station] = {}
        self._routes: dict[str, Route] = {}
        self._listed: dict[str, Route] = {}
        """Of models that nothing but their engine's list names."""
        self.chance = chance

    def engine(self, name: str) -> Engine:
        """The engine called ``name`` in the settings.

        Raises:
            ValueError: there is none, its class cannot be imported, or an option is wrong.
        """
        return self.station(name).engine

    def station(self, name: str) -> Station:
        """The same, with what is known of it. Raises ValueError."""
        station = self._stations.get(name)
        if station is None:
            station = self._stations[name] = Station(_build(name), _slots(name))
        return station

    def stations(self) -> dict[str, Station]:
        """Those that there are so far, by name."""
        return dict(self._stations)

    def install(self, name: str, engine: Engine) -> None:
        """Use this instance under ``name``, whatever the settings say: for tests and embedding projects."""
        self._forget_routes()
        self._stations[name] = Station(engine, _slots(name))

    def real_name(self, model: str) -> str:
        """What an alias stands for; any other name as it is."""
        entry = app_settings.MODELS.get(model)
        name: str = model if entry is None else entry.get("ALIAS", model)
        return name

    async def resolve(self, model: str, *, key: str | None = None) -> Route:
        """The route for a new chain: the replica of ``model`` with the least to do, among those that are well.

        ``key`` names what was or will be asked elsewhere with the same beginning: as long as none has much more to do
        than another, all processes give the same replica for it.

        Raises:
            ModelNotFound: nobody serves it.
            Overloaded: it may well be served by the engine behind ``"*"``, which has not answered yet.
        """
        model = self.real_name(model)
        route = self._routes.get(model)
        if route is None:
            entry = app_settings.MODELS.get(model)
            if entry is None or model == "*":
                return await self._resolve_listed(model)
            # Others may have made it meanwhile.
            route = self._routes.setdefault(model, await self._made(model, entry))
        _learn_contexts(route)
        if len(route.replicas) > 1:
            # Where all of them are down, the call will say so.
            route = next(iter(self._ranked(route, own=None, key=key)), route)
        return route

    async def prepare(self) -> None:
        """Make the routes of all configured models, so that no turn waits for the files of their renderers."""
        for name, entry in app_settings.MODELS.items():
            if name != "*" and "ALIAS" not in entry:
                try:
                    await self.resolve(name)
                except ValueError as exc:
                    # Fails open: the others can be served.
                    logger.error("model %s cannot be served: %s", name, exc)

    def candidates(self, route: Route) -> list[Route]:
        """Where a turn of this chain may be sent, best first: its own replica while that is well, then the others.

        Those that are down are left out: they are probed beside all turns.
        """
        return self._ranked(route, own=route)

    async def list_models(self) -> list[tuple[str, str]]:
        """(client's name, engine's configured name) of all that is served, configured names first."""
        entries = {name: entry for name, entry in app_settings.MODELS.items() if name != "*"}
        models = {name: replicas_of(entry)[0]["ENGINE"] for name, entry in entries.items() if "ALIAS" not in entry}
        catch_all = app_settings.MODELS.get("*")
        if catch_all is not None:
            for name in await self.station(catch_all["ENGINE"]).list() or ():
                models.setdefault(name, catch_all["ENGINE"])
        aliases = {name: entry["ALIAS"] for name, entry in entries.items() if "ALIAS" in entry}
        models.update({name: models[real] for name, real in aliases.items() if real in models})
        return list(models.items())

    async def aclose_all(self) -> None:
        """Give everything back; the next use builds anew."""
        stations = list(self._stations.values())
        self.reset()
        for station in stations:
            await station.aclose()

    def reset(self) -> None:
        """Forget everything without closing it, as after a change of settings."""
        self._forget_routes()
        self._stations = {}

    def expire(self, name: str) -> None:
        """Ask that engine for its models again at the next chance."""
        self.station(name).expire()

    def _ranked(self, route: Route, *, own: Route | None, key: str | None = None) -> list[Route]:
        ranks = {other: rank for other in route.replicas if (rank := other.station.rank()) is not None}
        least = min((other.load for other in ranks), default=0)

        def order(other: Route) -> tuple[Any, ...]:
            more = other.load - least if key is None else (other.load - least) // CALLS_WORTH_A_PREFIX
            # Of equals each is drawn as often as its weight says.
            drawn = (self.chance() if key is None else _chance_of(key, other)) ** (1 / other.weight)
            return ranks[other], other is not own, more, -drawn

        return sorted(ranks, key=order)

    async def _resolve_listed(self, model: str) -> Route:
        catch_all = app_settings.MODELS.get("*")
        if catch_all is None or model == "*":
            raise ModelNotFound(model)
        station = self.station(catch_all["ENGINE"])
        listed = await station.list()
        if listed is None:
            raise Overloaded("The engine does not say which models it serves. Please try again later")
        if model not in listed:
            raise ModelNotFound(model)
        route = self._listed.get(model)
        if route is None:
            # The same Route object as long as it is listed: chains keep theirs.
            route = self._listed.setdefault(model, await self._made(model, {"ENGINE": catch_all["ENGINE"]}))
        _learn_contexts(route)
        return route

    async def _made(self, model: str, entry: Mapping[str, Any]) -> Route:
        """The routes of a model, the first of which is given. Raises ValueError."""
        routes = []
        for replica in replicas_of(entry):
            station = self.station(replica["ENGINE"])
            upstream = replica.get("UPSTREAM", entry.get("UPSTREAM", model))
            routes.append(
                Route(
                    model=model,
                    station=station,
                    upstream=upstream,
                    context_tokens=entry.get("CONTEXT"),
                    renderer=await _renderer(station.engine, upstream, entry),
                    weight=replica.get("WEIGHT", 1),
                )
            )
        for route in routes:
            route.replicas = tuple(routes)
        return routes[0]

    def _forget_routes(self) -> None:
        for route in [*self._routes.values(), *self._listed.values()]:
            for replica in route.replicas:
                replica.is_stale = True
        self._routes, self._listed = {}, {}


def replicas_of(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What an entry of ``MODELS`` says of each replica."""
    return entry.get("REPLICAS") or [entry]


def _chance_of(key: str, route: Route) -> float:
    """A number in [0, 1) that is the same in all processes."""
    drawn = hashlib.blake2b(f"{key}\n{route.engine.name}\n{route.upstream}".encode(), digest_size=6).digest()
    return int.from_bytes(drawn) / 2**48


def _learn_contexts(route: Route) -> None:
    """What the settings do not say of a model's limits its engine may: asked once, beside the turn."""
    for replica in route.replicas:
        if replica.context_tokens is None:
            listed = replica.station.listed_once()
            if listed is not None and replica.upstream in listed:
                replica.context_tokens = listed[replica.upstream].context_tokens or None


async def _renderer(engine: Engine, upstream: str, entry: Mapping[str, Any]) -> Renderer | None:
    """What makes token ids for this model, if it can be asked in them. Raises ValueError."""
    can = engine.capabilities
    options = (entry.get("RENDERER") or engine.renderer_options(upstream)) if can.tokens else None
    if options is not None:
        # In a thread: it reads files.
        return await asyncio.to_thread(renderers.load, options)
    if not (can.chat or can.items):
        raise ValueError(f"the engine {engine.name} takes token ids only: its model {upstream!r} needs a RENDERER")
    return None


def _build(name: str) -> Engine:
    entry = app_settings.ENGINES.get(name)
    if entry is None:
        known = ", ".join(sorted(app_settings.ENGINES)) or "none"
        raise ValueError(f"ENGINES has no {name!r}; there are {known}")
    path = entry.get("ENGINE")
    if not isinstance(path, str):
        raise ValueError(f"ENGINES[{name!r}]['ENGINE'] must be the dotted path of an Engine, not {path!r}")
    try:
        factory = import_string(path)
    except ImportError as exc:
        raise ValueError(f"ENGINES[{name!r}]['ENGINE']: cannot import {path!r}: {exc}") from exc
    if not (isinstance(factory, type) and issubclass(factory, Engine)):
        raise ValueError(f"ENGINES[{name!r}]['ENGINE']: {path!r} is not an Engine")
    return factory(name, {key: value for key, value in entry.items() if key not in STATION_KEYS})


def _slots(name: str) -> Slots:
    entry = app_settings.ENGINES.get(name, {})
    limit = entry.get("CONCURRENCY")
    return Slots(limit, entry.get("QUEUE", WAITING_PER_SLOT * (limit or 0)))


registry = EngineRegistry()


def _reset_after_change(*, setting: str, **_kwargs: Any) -> None:
    if setting == "RESPONSES_WS":
        registry.reset()


setting_changed.connect(_reset_after_change)
