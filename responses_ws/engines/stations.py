"""An engine with what its process knows of it: its work, its health, its models."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from responses_ws.runtime import logs, metrics

from .base import Engine, EngineError, EngineModel
from .health import Condition
from .slots import Slots

logger = logging.getLogger(__name__)

SECONDS_LISTED = 30.0
"""How long an engine's list of models is taken as true. A model loaded meanwhile shows up one list later."""
SECONDS_UNTIL_NEXT_TRY = 5.0
"""After a list that failed. Every try may cost a connect timeout, so not one per request."""
SECONDS_TO_PROBE = 10.0
"""An engine that says nothing for so long is not well."""


class Station:
    """One per engine and process. What it asks its engine by itself, it asks in tasks of its own: no turn waits."""

    def __init__(self, engine: Engine, slots: Slots) -> None:
        self.engine = engine
        self.slots = slots
        self.condition = Condition()
        self._models: dict[str, EngineModel] | None = None
        self._listed_until = 0.0
        self._listing: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None

    def failed(self, error: EngineError, *, has_spoken: bool) -> None:
        """A call has failed; after some output, if it ``has_spoken``."""
        metrics.engine_failures.add((self.engine.name, error.kind))
        before = self.condition.state
        self.condition.failed(error, time.monotonic(), has_spoken=has_spoken)
        if self.condition.state is not before:
            logger.warning("engine %s is %s: %s", self.engine.name, self.condition.state.value, error)
        self._watch()

    def rank(self) -> int | None:
        """As `Condition.rank`, now."""
        self._watch()
        return self.condition.rank(time.monotonic(), is_running=self.slots.running > 0)

    def refusal(self) -> EngineError:
        """What a call is told that is not made, because the engine is down."""
        return self.condition.refusal(time.monotonic())

    async def list(self) -> dict[str, EngineModel] | None:
        """What the engine last said it serves, by its names; None: it never answered.

        The first answer is waited for; one that is old is renewed beside the caller.
        """
        if time.monotonic() >= self._listed_until:
            self._ask()
        if self._models is None and _runs(self._listing):
            assert self._listing is not None, "it runs"
            # Shielded: others wait for the same answer.
            await asyncio.shield(self._listing)
        return self._models

    def listed_once(self) -> dict[str, EngineModel] | None:
        """The same, however old. Waits for nothing: where there is no answer yet, it is asked for."""
        if self._models is None and time.monotonic() >= self._listed_until:
            self._ask()
        return self._models

    def expire(self) -> None:
        """Ask for the models again at the next chance."""
        self._listed_until = 0.0

    async def aclose(self) -> None:
        """Give the engine back."""
        for task in (self._listing, self._probing):
            if task is not None and _runs(task):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.engine.aclose()

    def _ask(self) -> None:
        if not _runs(self._listing):
            self._listing = self._start(self._list(), "models of")

    async def _list(self) -> None:
        try:
            self._models = {model.id: model for model in await self.engine.models()}
        except Exception as exc:
            # Its contract names EngineError; anything else would be nobody's, and asked for again by every chain.
            told = None if isinstance(exc, EngineError) else exc
            logger.warning("engine %s does not list its models: %s", self.engine.name, exc, exc_info=told)
            self._listed_until = time.monotonic() + SECONDS_UNTIL_NEXT_TRY
        else:
            self._listed_until = time.monotonic() + SECONDS_LISTED

    def _watch(self) -> None:
        """Have it probed, if it has to be."""
        if self.condition.wants_probe and not _runs(self._probing):
            self._probing = self._start(self._probe_until_well(), "probe")

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Whichever turn comes upon it."""
        loop = asyncio.get_running_loop()
        return loop.create_task(work, name=f"{what} {self.engine.name}", context=logs.of_nobody())

    async def _probe_until_well(self) -> None:
        condition = self.condition
        while condition.wants_probe:
            await asyncio.sleep(condition.until - time.monotonic())
            if condition.wants_probe:
                condition.probed(await self._probe(), time.monotonic())
        logger.info("engine %s is %s: its probe went well", self.engine.name, condition.state.value)

    async def _probe(self) -> EngineError | None:
        try:
            async with asyncio.timeout(SECONDS_TO_PROBE):
                health = await self.engine.health()
        except Exception as exc:
            # Its contract says that it does not; without this the engine would stay down for ever.
            return EngineError("unavailable", f"its health cannot be asked for: {exc or type(exc).__name__}")
        return None if health.ok else EngineError("unavailable", health.detail)


def _runs(task: asyncio.Task[None] | None) -> bool:
    """On this loop: a task of another one will not go on."""
    return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()
