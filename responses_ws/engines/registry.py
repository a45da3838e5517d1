"""The engines of one process, and which of them answers for a model."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import ModelNotFound, Overloaded
from responses_ws.rendering.base import Renderer
from responses_ws.runtime import renderers

from .base import Capabilities, Engine, EngineError

logger = logging.getLogger(__name__)

SECONDS_LISTED = 30.0
"""How long an engine's list of models is taken as true. A model loaded meanwhile shows up one list later."""
SECONDS_UNTIL_NEXT_TRY = 5.0
"""After a list that failed. Every try may cost a connect timeout, so not one per request."""


class Route(msgspec.Struct, frozen=True):
    """Who answers for a model; resolved once per chain."""

    model: str
    """The name the client uses."""
    engine: Engine
    upstream: str
    """The engine's own name of it."""
    context_tokens: int | None = None
    """How much it can read and write, where that is known."""
    renderer: Renderer | None = None
    """Makes its token ids; None: it is asked in messages or items."""

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do, asked in the way that it is asked in."""
        can = self.engine.capabilities
        if self.renderer is None:
            return can
        # Tools and calls are the renderer's and the parser's work; what comes out is held to a form by constraints.
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


class _Listing:
    """What one engine said it serves, and when."""

    __slots__ = ("routes", "expires", "task")

    def __init__(self) -> None:
        self.routes: dict[str, Route] | None = None
        """None until the engine has answered once; the last answer after that, however old."""
        self.expires = 0.0
        self.task: asyncio.Task[None] | None = None


class EngineRegistry:
    """Engines by configured name, built at first use, one instance each per process.

    A plain dict: Django's connection handlers keep one instance per asyncio task, which would mean a connection
    pool per turn.
    """

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}
        self._routes: dict[str, Route] = {}
        self._listings: dict[str, _Listing] = {}

    def engine(self, name: str) -> Engine:
        """The engine called ``name`` in the settings.

        Raises:
            ValueError: there is none, its class cannot be imported, or an option is wrong.
        """
        engine = self._engines.get(name)
        if engine is None:
            engine = self._engines[name] = _build(name)
        return engine

    def install(self, name: str, engine: Engine) -> None:
        """Use this instance under ``name``, whatever the settings say: for tests and embedding projects."""
        self._engines[name] = engine
        self._routes = {}
        self._listings.pop(name, None)

    async def resolve(self, model: str) -> Route:
        """The route for the client's ``model``: a dict hit for configured names.

        Raises:
            ModelNotFound: nobody serves it.
            Overloaded: it may well be served by the engine behind ``"*"``, which has not answered yet.
        """
        route = self._routes.get(model)
        if route is not None:
            return route
        entry = app_settings.MODELS.get(model)
        if entry is not None and model != "*":
            engine = self.engine(entry["ENGINE"])
            upstream = entry.get("UPSTREAM", model)
            route = Route(model, engine, upstream, entry.get("CONTEXT"), _renderer(engine, upstream, entry))
            self._routes[model] = route
            return route
        catch_all = app_settings.MODELS.get("*")
        if catch_all is None or model == "*":
            raise ModelNotFound(model)
        listed = await self._listed(catch_all["ENGINE"])
        if listed is None:
            raise Overloaded("The engine does not say which models it serves. Please try again later")
        if model not in listed:
            raise ModelNotFound(model)
        return listed[model]

    async def list_models(self) -> list[tuple[str, str]]:
        """(client's name, engine's configured name) of all that is served, configured names first."""
        models = {name: entry["ENGINE"] for name, entry in app_settings.MODELS.items() if name != "*"}
        catch_all = app_settings.MODELS.get("*")
        if catch_all is not None:
            for name in await self._listed(catch_all["ENGINE"]) or ():
                models.setdefault(name, catch_all["ENGINE"])
        return list(models.items())

    async def aclose_all(self) -> None:
        """Give everything back; the next use builds anew."""
        engines, listings = list(self._engines.values()), list(self._listings.values())
        self.reset()
        loop = asyncio.get_running_loop()
        for listing in listings:
            if listing.task is not None and listing.task.get_loop() is loop:
                listing.task.cancel()
                await asyncio.gather(listing.task, return_exceptions=True)
        for engine in engines:
            await engine.aclose()

    def reset(self) -> None:
        """Forget everything without closing it, as after a change of settings."""
        self._engines = {}
        self._routes = {}
        self._listings = {}

    def expire(self, name: str) -> None:
        """Ask that engine for its models again at the next chance."""
        if name in self._listings:
            self._listings[name].expires = 0.0

    async def _listed(self, name: str) -> dict[str, Route] | None:
        """Routes by model of what the engine lists: fresh, or stale while a refresh runs; None: it never answered."""
        listing = self._listings.setdefault(name, _Listing())
        loop = asyncio.get_running_loop()
        if listing.task is not None and listing.task.get_loop() is not loop:
            listing.task = None
        if listing.task is None and time.monotonic() >= listing.expires:
            listing.task = loop.create_task(self._refresh(self.engine(name), listing), name=f"models of {name}")
        if listing.routes is None and listing.task is not None:
            # Shielded: others wait for the same answer.
            await asyncio.shield(listing.task)
        return listing.routes

    async def _refresh(self, engine: Engine, listing: _Listing) -> None:
        try:
            models = await engine.models()
        except EngineError as exc:
            logger.warning("engine %s does not list its models: %s", engine.name, exc)
            listing.expires = time.monotonic() + SECONDS_UNTIL_NEXT_TRY
        else:
            known = listing.routes or {}
            # The same Route object as before: chains keep theirs.
            listing.routes = {
                m.id: known.get(m.id)
                or Route(m.id, engine, m.id, m.context_tokens or None, _renderer(engine, m.id, {}))
                for m in models
            }
            listing.expires = time.monotonic() + SECONDS_LISTED
        finally:
            listing.task = None


def _renderer(engine: Engine, upstream: str, entry: Mapping[str, Any]) -> Renderer | None:
    """What makes token ids for this model, if it can be asked in them. Raises ValueError."""
    if not engine.capabilities.tokens:
        return None
    options = entry.get("RENDERER") or engine.renderer_options(upstream)
    return None if options is None else renderers.load(options)


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
    return factory(name, {key: value for key, value in entry.items() if key != "ENGINE"})


registry = EngineRegistry()


def _reset_after_change(*, setting: str, **_kwargs: Any) -> None:
    if setting == "RESPONSES_WS":
        registry.reset()


setting_changed.connect(_reset_after_change)
