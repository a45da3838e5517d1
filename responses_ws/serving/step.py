"""One sampling step of a response: what it asks, of whom, and what is made of the answer."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from responses_ws.connection.guard import Guard
from responses_ws.connection.turn import Turn
from responses_ws.engines.base import ChatRequest
from responses_ws.engines.registry import Route
from responses_ws.protocol.errors import EngineFault
from responses_ws.protocol.sampling import Delta
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tools import CallTranslator

from .calls import EngineCall
from .context import Context
from .mailbox import Mailbox
from .recording import Record
from .sampling import SamplingStep, Word
from .token_step import TokenStep

logger = logging.getLogger(__name__)


class Step:
    """Calls the engine when made, and tells ``mailbox`` of it. Always `leave` it.

    ``tokens_left``: how long the answer may become. ``has_obeyed``: a forced choice has been obeyed already.
    ``is_last``: no more hosted calls are wanted.
    """

    def __init__(
        self,
        context: Context,
        turn: Turn,
        record: Record,
        mailbox: Mailbox[Word],
        *,
        is_summary: bool,
        tokens_left: int | None,
        has_obeyed: bool = False,
        is_last: bool = False,
    ) -> None:
        self.context = context
        """What the engine continues; on the replica that has taken the call, once one has."""
        self.has_spoken = False
        """Something of the answer has come out."""
        self.tokens: TokenStep | None = None
        """The same in token ids, for a model that is asked in them; None also once these stand for nothing any more."""
        self._turn = turn
        self._record = record
        self._is_summary = is_summary
        self._tokens_left = tokens_left
        self._has_obeyed = has_obeyed
        self._is_last = is_last
        self._start = len(turn.output)
        if context.left_out:
            logger.info("Response %s: %d old items are left out of its context", turn.id, context.left_out)
        self._prepare()
        call = EngineCall(context.route, self._call, who=context.asked.connection, span=context.asked.span)
        self._sampling = SamplingStep(call, mailbox, gave_up=call.fell_silent)

    def spoke(self) -> None:
        """An event has gone out."""
        self._sampling.spoke()

    async def leave(self) -> None:
        """Free the engine, at once, whatever it is doing. Idempotent."""
        await self._sampling.leave()

    def heard(self) -> None:
        """One more batch of deltas has been read."""
        if self.tokens is not None:
            self.tokens.heard()

    @property
    def has_cut(self) -> bool:
        """The answer was ended here, although the engine has not said so."""
        return self._guard.has_cut

    def allowed(self, batch: list[Delta]) -> tuple[list[Delta], EngineFault | None]:
        """What of a batch may come out, in the client's words; and why not more."""
        translate, guard = self._translator.feed, self._guard.feed
        deltas: list[Delta] = []
        try:
            for delta in batch:
                for may in guard(delta):
                    deltas += translate(may)
        except EngineFault as fault:
            return deltas, fault
        return deltas, None

    def usage(self) -> Usage:
        """The engine's word where it gave one, our own count where not."""
        turn = self._turn
        counted = self.tokens.usage() if self.tokens is not None else None
        if counted is not None:
            return counted
        if turn.finished is not None and turn.finished.usage is not None:
            return turn.finished.usage.clamped()
        started = turn.started
        return Usage(
            input_tokens=started.prompt_tokens if started else self.context.estimated_input_tokens(),
            cached_tokens=started.cached_tokens if started else 0,
            output_tokens=turn.output_tokens,
            reasoning_tokens=turn.reasoning_tokens,
            estimated=not (started and self.context.route.capabilities.exact_usage),
        ).clamped()

    def remembered(self, prompt: ChatPrompt, *, continuation: Any, is_changed: bool) -> ChatPrompt:
        """``prompt``, which ends with this step's output, with the token ids that were sampled, or with the engine's
        own name for its answer, ``continuation``. Neither stands for an answer that ``is_changed`` on its way out."""
        if self._is_summary:
            # Of what was summed up, a new prompt is made.
            return prompt
        if self.tokens is None:
            return prompt if is_changed else prompt.named(continuation)
        output = self._turn.output[self._start :]
        has_cut_call = self._turn.hosted.has_dropped_call or any(
            str(item["type"]).endswith("_call") and item.get("status") == "incomplete" for item in output
        )
        # Of an answer that was cut before it said anything (within a marker, say) no message is left to stand for.
        is_as_sampled = bool(output) and not (self.has_cut or is_changed or has_cut_call)
        return self.tokens.log_after(prompt, is_as_sampled=is_as_sampled)

    def _prepare(self) -> None:
        """What the call says, and what reads its answer; anew for a replica of other capabilities."""
        context, began = self.context, time.perf_counter()
        if self._is_summary:
            self._request: ChatRequest = context.summary_request(self._turn.id)
        else:
            offer = context.offer(is_first=not self._has_obeyed, is_last=self._is_last)
            self._translator = CallTranslator(context.tools)
            self._guard = Guard(
                callable_names=offer.callable_names,
                schemas=context.tools.schemas if context.route.capabilities.strict_tools else {},
                one_call=context.asked.request.parallel_tool_calls is False,
                # Where every id is counted, that is done there.
                max_tokens=self._tokens_left if context.route.renderer is None else None,
            )
            self._request = context.chat_request(self._turn.id, offer, max_output_tokens=self._tokens_left)
        self.tokens = context.token_step(self._request)
        self._record.prepared(time.perf_counter() - began, self.tokens)

    def _call(self, route: Route) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        """The call, to this replica."""
        before = self.context.route
        if route is not before:
            self.context = self.context.on(route)
            if not route.is_like(before):
                self._prepare()
        if self.tokens is not None:
            return self.tokens.call(route)
        asked = msgspec.structs.replace(self._request, model=route.upstream)
        return route.engine.respond(asked) if route.capabilities.items else route.engine.chat(asked)
