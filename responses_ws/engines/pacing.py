"""The pace of a scripted answer: when its tokens may be told, and what goes wrong on the way."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import msgspec

from responses_ws.protocol.sampling import Started
from responses_ws.protocol.usage import Usage

from .base import ChatRequest, EngineError
from .script import Plan

T = TypeVar("T")

TOKENS_PER_READ = 16  # at most, when not paced: between reads the loop serves others

_STATUS = {"overloaded": 503, "unavailable": None, "rate_limited": 429, "timeout": 504, "auth": 401}


class PacedCall(AbstractAsyncContextManager[AsyncIterator[list[T]]], Generic[T]):
    """One call: a plan, told by the clock, in deltas of whichever kind.

    Paced by absolute deadlines: whoever is late gets all tokens that are due at once.
    """

    def __init__(self, request: ChatRequest, plan: Plan, usage: Usage) -> None:
        self._request = request
        self._plan = plan
        self._usage = usage
        """Of the prompt."""
        self._emitted = 0
        self._reasoning = 0
        self._has_started = self._has_stalled = self._has_ended = False

    async def __aenter__(self) -> AsyncIterator[list[T]]:
        if self._plan.fail is not None:
            self._end("error")
            raise _refusal(self._plan)
        self._begin()
        self._epoch = asyncio.get_running_loop().time() + self._plan.ttft_seconds
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        if not self._has_ended:
            self._end("aborted")

    def __aiter__(self) -> AsyncIterator[list[T]]:
        return self

    async def __anext__(self) -> list[T]:
        if self._has_ended:
            raise StopAsyncIteration
        plan = self._plan
        batch: list[T] = []
        if not self._has_started:
            self._has_started = True
            batch.append(Started(self._usage.input_tokens, self._usage.cached_tokens))  # type: ignore[arg-type]
            if plan.ttft_seconds or plan.break_after == 0:
                return batch
        if plan.break_after is not None and self._emitted >= plan.break_after:
            self._end("error")
            raise EngineError("engine", f"scripted to break after {plan.break_after} tokens")
        if plan.stall_seconds and self._emitted and not self._has_stalled:
            self._has_stalled = True
            self._epoch += plan.stall_seconds
            await asyncio.sleep(plan.stall_seconds)
        due = await self._tokens_due()
        if plan.break_after is not None:
            due = min(due, plan.break_after - self._emitted)
        if plan.stall_seconds and not self._has_stalled:
            due = 1
        self._take(batch, due)
        return batch

    async def _tokens_due(self) -> int:
        """Waits for the next token's time; how many may be told by now."""
        loop = asyncio.get_running_loop()
        rate = self._plan.tokens_per_second
        wait = self._epoch + (self._emitted / rate if rate else 0.0) - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        elif self._emitted:
            await asyncio.sleep(0)
        if not rate:
            return TOKENS_PER_READ
        return max(int((loop.time() - self._epoch) * rate) + 1 - self._emitted, 1)

    def _counted(self) -> Usage:
        return msgspec.structs.replace(self._usage, output_tokens=self._emitted, reasoning_tokens=self._reasoning)

    @abstractmethod
    def _begin(self) -> None:
        """The call is accepted."""

    @abstractmethod
    def _take(self, batch: list[T], due: int) -> None:
        """Move what ``due`` tokens say into ``batch``, and the end when it is there."""

    @abstractmethod
    def _end(self, outcome: str) -> None:
        """The call is over: ``completed``, ``aborted`` or ``error``."""
        self._has_ended = True


def _refusal(plan: Plan) -> EngineError:
    assert plan.fail is not None, "only asked for when the plan refuses"
    headers = {"retry-after": "1"} if plan.fail in ("rate_limited", "overloaded") else None
    status = _STATUS.get(plan.fail, 400 if plan.fail in ("bad_request", "context_length") else 500)
    return EngineError(plan.fail, f"scripted to fail as {plan.fail}", status=status, headers=headers)
