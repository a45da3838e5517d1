"""One sampling step in token ids: the prompt rendered once, the answer parsed, every id counted."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from responses_ws.engines.base import ChatRequest, EngineError, TokenRequest
from responses_ws.engines.registry import Route
from responses_ws.protocol.sampling import Delta, Finished, FinishReason, Started, TokenDelta, Tokens
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.base import Ask, Draft, EngineDraft, OutputParser, Path, Renderer
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tokens import TokenLog
from responses_ws.runtime import tracing

logger = logging.getLogger(__name__)

# Rendered on the loop up to here: about 2 ms of tokenizer. The hop to a thread costs a tenth of that.
BYTES_RENDERED_INLINE = 8192


class TokenStep:
    """The step's prompt and what becomes of it, for whichever replica answers.

    `render` makes the ids, once. `call` asks an engine with them, and tells deltas. Afterwards `usage` counts, and
    `log_after` is what the chain's next step starts from.
    """

    def __init__(self, route: Route, asked: ChatRequest, ask: Ask) -> None:
        assert route.renderer is not None, "only models with a renderer are asked in token ids"
        self._renderer: Renderer = route.renderer
        self._context_tokens = route.context_tokens
        self._asked = asked
        self._ask = ask
        self._draft: Draft | None = None
        self._request: TokenRequest | None = None
        self._rendered: TokenLog | None = None
        self._closing: tuple[int, ...] = ()
        self._parser: OutputParser | None = None
        self._cached = 0
        self._ids: list[int] = []
        self._untold = 0
        """Tokens that the engine has made and cannot tell: those of a character that the limit has cut off."""
        self._told: deque[int] = deque()
        """For each batch of deltas that has been told, how many ids had come by then."""
        self._heard = 0
        self._has_finished = False
        self.render_ms = 0.0
        """What it has taken to make the ids, the engine's part in it included."""

    @property
    def path(self) -> Path | None:
        """How the prompt was made; None before it is."""
        return None if self._draft is None or self._rendered is None else self._draft.path

    @property
    def rendered_tokens(self) -> int:
        """Ids that were made for this step; the rest of the prompt was there already."""
        return 0 if self._rendered is None or self._draft is None else len(self._rendered) - self._draft.kept_tokens

    async def render(self, route: Route) -> TokenRequest:
        """The call to make. Idempotent. The replica's engine is only asked where it renders itself.

        Raises:
            EngineError: ``context_length``: there is no room for an answer; or the engine has not rendered.
            InvalidRequest: the model's template refuses these messages.
        """
        if self._request is None:
            began = time.perf_counter()
            try:
                self._request = await self._rendered_request(route)
            finally:
                self.render_ms += (time.perf_counter() - began) * 1000
        return self._request

    async def _rendered_request(self, route: Route) -> TokenRequest:
        self._draft = draft = self._renderer.draft(self._asked.prompt, self._ask)
        if isinstance(draft, EngineDraft):
            ids = await route.engine.rendered(_addressed_chat(self._asked, route))
            if ids is None:
                raise EngineError("protocol", "the engine does not tell how it renders prompts")
            draft.take(ids)
        elif draft.size > BYTES_RENDERED_INLINE:
            await asyncio.to_thread(draft.make)
        else:
            draft.make()
        self._rendered = prompt = draft.log()
        opening = self._renderer.opening(self._ask)
        if opening.ids:
            prompt = prompt.extended(opening.ids, "opening", messages=prompt.messages)
        self._closing = opening.closing
        return TokenRequest(
            asked=self._asked,
            prompt=prompt,
            max_tokens=self._most_tokens(len(prompt)),
            stop_ids=self._renderer.stop_ids,
            constraint=opening.constraint,
        )

    def call(self, route: Route) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        """One call to a replica, told in deltas. A second one begins anew, with the same ids."""
        return _TokenCall(self, route)

    async def prefill(self, route: Route) -> Usage:
        """Have a replica read the prompt and say nothing. Returns what that is counted as.

        Raises EngineError, InvalidRequest.
        """
        request = await self.render(route)
        usage = await route.engine.prefill(_addressed(request, route))
        return Usage(input_tokens=len(request.prompt), cached_tokens=usage.cached_tokens if usage else 0).clamped()

    def heard(self) -> None:
        """The oldest batch that had not been heard yet has been."""
        # None of the told, where the batch is a sign of life from a replica that was asked in another way.
        self._heard = self._told.popleft() if self._told else 0

    def usage(self) -> Usage | None:
        """What was consumed so far, to the token; None before there is a prompt."""
        if self._request is None:
            return None
        return Usage(
            input_tokens=len(self._request.prompt),
            cached_tokens=self._cached,
            output_tokens=len(self._ids) + self._untold,
            reasoning_tokens=self._parser.reasoning_tokens if self._parser is not None else 0,
        ).clamped()

    def log_after(self, prompt: ChatPrompt, *, is_as_sampled: bool) -> ChatPrompt:
        """``prompt``, which holds the answer as messages, with the ids that stand for it.

        Where the answer is not ``is_as_sampled`` (a call of it was dropped, say), the ids end before it: what became
        of it is rendered with the next step's input.
        """
        if self._request is None or self._rendered is None:
            return prompt
        if not is_as_sampled:
            return prompt.with_tokens(self._rendered.unopened())
        ids = self._ids[: self._heard]
        if self._has_finished and self._closing:
            if ids and ids[-1] in self._request.stop_ids:
                # Said where the constraint left nothing else; the closing has an end of its own.
                ids.pop()
            ids += self._closing
        has_reasoning = self._parser is not None and self._parser.reasoning_tokens > 0
        log = self._request.prompt.extended(ids, "sampled", messages=len(prompt.log), has_reasoning=has_reasoning)
        return prompt.with_tokens(log)

    def log_without_answer(self, prompt: ChatPrompt) -> ChatPrompt:
        """``prompt`` with the ids that stand for it, after a step that has sampled nothing."""
        return prompt if self._rendered is None else prompt.with_tokens(self._rendered.unopened())

    def _most_tokens(self, length: int) -> int | None:
        wanted = self._asked.max_output_tokens
        if self._context_tokens is None:
            return wanted
        room = self._context_tokens - length
        if room <= 0:
            raise EngineError(
                "context_length", f"{length} tokens of input leave no room in a context of {self._context_tokens}"
            )
        return room if wanted is None else min(wanted, room)

    def _begin(self, request: TokenRequest) -> OutputParser:
        self._ids.clear()
        self._untold = 0
        # Signs of life from the replica before may still be unheard.
        self._told = deque(0 for _ in self._told)
        self._heard = 0
        self._cached = 0
        self._has_finished = False
        self._parser = self._renderer.parser(request.prompt, self._ask)
        return self._parser

    def _take(self, batch: list[TokenDelta]) -> list[Delta]:
        """The deltas of one batch of the engine."""
        request, parser = self._request, self._parser
        assert request is not None and parser is not None, "the call has been entered"
        deltas: list[Delta] = []
        for delta in batch:
            if isinstance(delta, Tokens):
                ids = delta.ids
                room = len(ids) if request.max_tokens is None else request.max_tokens - len(self._ids)
                has_gone_on = len(ids) > room
                if has_gone_on:
                    # An engine that does not stop where it should is cut off there.
                    ids = ids[:room]
                self._ids += ids
                deltas += parser.feed(ids, delta.logprobs)
                if has_gone_on:
                    deltas += self._finish("length")
                    break
            elif isinstance(delta, Finished):
                if delta.usage is not None:
                    self._cached = delta.usage.cached_tokens
                    self._untold = max(delta.usage.output_tokens - len(self._ids), 0)
                deltas += self._finish(delta.reason)
            else:
                if isinstance(delta, Started):
                    self._cached = delta.cached_tokens
                deltas.append(delta)
        if deltas:
            self._told.append(len(self._ids))
        return deltas

    def _finish(self, reason: FinishReason) -> list[Delta]:
        assert self._parser is not None, "the call has been entered"
        self._has_finished = True
        rest = self._parser.finish(reason)
        if self._parser.malformed_calls:
            count = self._parser.malformed_calls
            logger.warning("model %s wrote %d calls that could not be read", self._asked.model, count)
        if reason == "stop" and self._parser.calls:
            reason = "tool_calls"
        return [*rest, Finished(reason, self.usage())]


def _addressed(request: TokenRequest, route: Route) -> TokenRequest:
    """The same under the replica's own name of the model."""
    if request.asked.model == route.upstream:
        return request
    return msgspec.structs.replace(request, asked=_addressed_chat(request.asked, route))


def _addressed_chat(asked: ChatRequest, route: Route) -> ChatRequest:
    return asked if asked.model == route.upstream else msgspec.structs.replace(asked, model=route.upstream)


class _TokenCall(AbstractAsyncContextManager[AsyncIterator[list[Delta]]]):
    """One call to one engine."""

    __slots__ = ("_step", "_route", "_call", "_batches")

    def __init__(self, step: TokenStep, route: Route) -> None:
        self._step = step
        self._route = route

    async def __aenter__(self) -> "_TokenCall":
        with tracing.here("render"):
            request = await self._step.render(self._route)
        self._call = self._route.engine.generate(_addressed(request, self._route))
        self._batches = await self._call.__aenter__()
        self._step._begin(request)
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._call.__aexit__(*exc_info)

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        return self

    async def __anext__(self) -> list[Delta]:
        if self._step._has_finished:
            raise StopAsyncIteration
        while True:
            # A batch may hold nothing that can be said yet: the beginning of a character, or of a call.
            deltas = self._step._take(await anext(self._batches))
            if deltas:
                return deltas
