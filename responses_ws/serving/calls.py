"""One call to an engine, on whichever replica of the model takes it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from responses_ws.engines.base import EngineError
from responses_ws.engines.registry import Route, registry
from responses_ws.protocol.sampling import Delta, Progress, Started
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.tracing import NOTHING, Attributes, Span

T = TypeVar("T")

Call = AbstractAsyncContextManager[AsyncIterator[list[Delta]]]

PASSED_ON = frozenset({"unavailable", "overloaded"})
"""Kinds of failure that say something of the engine and nothing of the call: another replica may take it."""


class Attempts:
    """The replicas that may take a call, one after the other, each with a place among the calls that it runs.

    ``who`` names the connection, where calls have to wait for a place.
    """

    def __init__(self, route: Route, who: Hashable) -> None:
        self._left = registry.candidates(route)
        self._who = who
        self._route: Route | None = None
        self._since = 0.0
        # What is said where there is none that could be asked.
        self._failure: EngineError | None = None if self._left else route.station.refusal()

    async def next(self) -> Route:
        """Whom to ask now. Raises EngineError, of the last one, when none is left."""
        while self._left:
            route = self._left.pop(0)
            try:
                await route.station.slots.take(self._who)
            except EngineError as full:
                self._failure = full
                continue
            self._route = route
            self._since = asyncio.get_running_loop().time()
            if route.station.rank() is not None:
                return route
            # Found down by another call, while this one waited.
            self._failure = route.station.refusal()
            self.over()
        assert self._failure is not None, "there was a first one"
        raise self._failure

    def answered(self) -> None:
        """It has said something: no other will be asked."""
        assert self._route is not None, "somebody was asked"
        self._route.station.condition.answered()
        self._left.clear()

    def failed(self, failure: EngineError, *, has_spoken: bool = False) -> None:
        """It has not taken the call, or broken it off. Raises the failure, if that is for the client."""
        assert self._route is not None, "somebody was asked"
        self._route.station.failed(failure, has_spoken=has_spoken)
        self._failure = failure
        if has_spoken or failure.kind not in PASSED_ON:
            raise failure

    def fell_silent(self, failure: EngineError, *, has_spoken: bool) -> None:
        """It has said nothing for too long."""
        if self._route is not None:
            self._route.station.failed(failure, has_spoken=has_spoken)

    def over(self, *, is_whole: bool = False) -> None:
        """The call is over, whatever its end. Idempotent."""
        if self._route is not None:
            seconds = asyncio.get_running_loop().time() - self._since
            self._route.station.slots.give_back(seconds if is_whole else None)
            self._route = None


class EngineCall(Call):
    """A call that moves on to the next replica until one has said something.

    ``call(route)`` makes the call for that replica; it is asked again for every one that is tried.
    """

    def __init__(self, route: Route, call: Callable[[Route], Call], *, who: Hashable, span: Span = NOTHING) -> None:
        self._turn_span = span
        self._span = NOTHING
        """Of the replica that is asked."""
        self._route = route
        self._make = call
        self._who = who
        self._call: Call | None = None
        self._has_spoken = False

    async def __aenter__(self) -> "EngineCall":
        self._attempts = Attempts(self._route, self._who)
        await self._enter()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._leave(*exc_info)

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        return self

    async def __anext__(self) -> list[Delta]:
        while True:
            try:
                batch = await anext(self._batches)
            except EngineError as failure:
                self._attempts.failed(failure, has_spoken=self._has_spoken)
                await self._leave(type(failure), failure, failure.__traceback__)
                await self._enter()
                continue
            if not self._has_spoken and not all(isinstance(delta, Started | Progress) for delta in batch):
                self._has_spoken = True
                self._attempts.answered()
            return batch

    def fell_silent(self, failure: EngineError) -> None:
        """Whoever waits for it waits no more. What waited for a place says nothing of the engine."""
        self._attempts.fell_silent(failure, has_spoken=self._has_spoken)

    async def _enter(self) -> None:
        while True:
            route = await self._attempts.next()
            self._span = self._turn_span.child(f"chat {route.upstream}", _told_of(route), calls_out=True)
            # The task that enters a call does nothing else.
            self._span.make_current()
            try:
                faultpoint("engine.before")
                call = self._make(route)
                self._batches = await call.__aenter__()
                faultpoint("engine.after")
            except BaseException as exc:
                self._span.__exit__(type(exc), exc, None)
                try:
                    if not isinstance(exc, EngineError):
                        raise
                    self._attempts.failed(exc)
                finally:
                    self._attempts.over()
            else:
                self._call = call
                return

    async def _leave(self, *exc_info: Any) -> None:
        call, self._call = self._call, None
        self._span.__exit__(*exc_info)
        try:
            if call is not None:
                await call.__aexit__(*exc_info)
        finally:
            self._attempts.over(is_whole=self._has_spoken and exc_info[0] is None)


def _told_of(route: Route) -> Attributes:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": route.engine.name,
        "gen_ai.request.model": route.upstream,
    }


async def ask(route: Route, question: Callable[[Route], Awaitable[T]], *, who: Hashable) -> T:
    """The answer of the first replica that gives one. Raises EngineError, as the last of them did."""
    attempts = Attempts(route, who)
    while True:
        asked = await attempts.next()
        try:
            answer = await question(asked)
        except EngineError as failure:
            attempts.failed(failure)
        else:
            attempts.answered()
            return answer
        finally:
            attempts.over()
