"""One response, from its engine call to its terminal event."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.budgets import Short, refusal
from responses_ws.connection.chain import Link
from responses_ws.connection.commands import Append
from responses_ws.connection.turn import CANCELLED, Turn
from responses_ws.engines.base import EngineError
from responses_ws.protocol.compaction import compacted
from responses_ws.protocol.errors import (
    ApiError,
    EngineFault,
    InsufficientQuota,
    Interrupted,
    InvalidRequest,
    Overloaded,
    PreviousResponseNotFound,
    websocket_error,
)
from responses_ws.protocol.items import Item, calls_left_open, check_media_sizes, input_items, listed, require_outputs
from responses_ws.protocol.request import JsonObject
from responses_ws.protocol.sampling import Delta, Finished, RefusalDelta
from responses_ws.protocol.steering import Steer, steer_error
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.formats import check_answer
from responses_ws.runtime import faults, logs, metrics
from responses_ws.runtime.faults import faultpoint
from responses_ws.runtime.ids import new_id
from responses_ws.runtime.writer import writer
from responses_ws.stores import rows
from responses_ws.stores.base import Place, StoredChain
from responses_ws.stores.runs import Claim

from .admission import admit
from .budgets import may_apply, reservation_for
from .calls import ask
from .context import Asked, Context, Said, as_it_is
from .ending import LeaseLost, Stored
from .failures import told
from .hosted import HostedWork
from .mailbox import Mailbox
from .queued import seal_request
from .recording import Record
from .sampling import Errand, Sign, Word
from .sealed import seal_context, seal_reasoning
from .settling import settle, to_store
from .steers import Steers
from .step import Step

logger = logging.getLogger(__name__)

Frames = AsyncGenerator[list[str], None]

SHORTENED_AT_MOST = 3
"""How often a context that an engine finds too long is halved: our estimate may be that far off."""
_UNCOVERED = "insufficient_quota"
"""Why a response is incomplete whose next engine call no budget covers."""
_APPENDABLE = frozenset({"function_call_output", "custom_tool_call_output", "mcp_approval_response", "message"})


class Run:
    """One response, from its engine call to its terminal event."""

    def __init__(self, context: Context, mailbox: Mailbox[Word]) -> None:
        self.asked = context.asked
        self._context = context
        self._screening = context.screening
        self._mailbox = mailbox
        self._turn = Turn(
            self.asked.request,
            response_id=self.asked.response_id or new_id("resp"),
            new_id=new_id,
            created_at=int(time.time()),
            seal=partial(seal_reasoning, project_id=self.asked.principal.project_id, model=context.route.model),
            stream_id=self.asked.stream_id,
            shows_raw_reasoning=app_settings.RAW_REASONING,
        )
        self.steers = Steers(self.asked, self._turn)
        self._screening.belongs_to(self._turn.id)
        principal = self.asked.principal
        logs.about(response_id=self._turn.id, project_id=principal.project_id, key_id=principal.api_key_id)
        # With a prompt template they may be messages, too.
        self._turn.response["instructions"] = context.instructions
        self._record = Record(
            self.asked.principal,
            response_id=self._turn.id,
            model=context.route.model,
            service_tier=self._turn.response["service_tier"],
            transport=self.asked.transport,
            is_warmup=self.asked.request.is_warmup,
            received_at=self.asked.received_at,
            count=self._usage,
            count_calls=self._count_calls,
            ticket=self.asked.ticket,
            span=self.asked.span,
        )
        self._step: Step | None = None
        """The engine call that runs or has just run; None while the response waits for outputs."""
        self._step_start = 0
        """How many output items were there when the sampling step began."""
        self._is_summarising = False
        """This sampling step makes a summary of the context, not an answer."""
        self._summary_tokens = 0
        """What summaries have cost: not the answer's, to which ``max_output_tokens`` applies."""
        self._place: Place | None = None
        """Where its input is stored, if it was queued."""
        self._is_cancelled = False
        self._work = HostedWork(self.asked, self._turn, mailbox)
        self._has_obeyed = False
        """A sampling step of this response has ended in calls, and it goes on: a forced choice has been obeyed."""
        self._is_uncovered = False
        """No engine may be called for it: it was accepted some time ago, and its budget is used up since."""
        self._appended: list[Item] = []
        """What was appended last."""
        self._appended_at: int | None = None
        """Where in the context the outputs begin that were appended last."""

    @property
    def response(self) -> JsonObject:
        """The Response as it is now."""
        return self._turn.response

    @property
    def record(self) -> Record:
        return self._record

    @property
    def _is_private(self) -> bool:
        """Nobody but its client will ask for it: it is not stored, has no conversation, and no idempotency key."""
        asked = self.asked
        return not asked.request.is_stored and asked.hold is None and asked.response_id is None

    @property
    def _is_sealed_whole(self) -> bool:
        """Compaction is asked for, of a context that no summary would make much shorter."""
        return self._context.asks_compaction and self._context.is_short()

    async def queue(self, *, owner: str) -> list[str]:
        """Accept a background response: its first events. All that others may ask for is durable when this returns.

        ``owner``: the process that runs it, this one; empty: it waits for one.

        Raises:
            ApiError: refused; nothing has happened.
        """
        # What is refused is not stored either.
        await self._screening.finish()
        if self._screening.refusal is not None:
            self._forget_input()
        frames = self._turn.queue()
        faultpoint("queue.before")
        run = {"owner": owner, "request": seal_request(self._context)}
        if self.asked.hold is not None:
            run |= {"conversation_id": self.asked.hold.id, "holder": self.asked.hold.holder}
        logged = frames if self.asked.request.stream else []
        self._place = await self._record.open_queued(self._stored([]), logged, run)
        faultpoint("queue.after")
        return frames

    def resume(self, stored: StoredChain, claim: Claim, number: int) -> None:
        """Go on with what was queued some time ago, and has told nothing of its output; its next event has this
        number."""
        self._turn.resume(stored.response, number)
        self._record.resume(claim, started_at=datetime.fromtimestamp(stored.response["created_at"], UTC))
        self._place = stored.place

    async def reserve(self) -> None:
        """Hold what the first engine call may cost, of every budget that applies.

        Raises:
            InsufficientQuota: one of them does not cover it.
            Overloaded: nobody can say what is left, and the settings want turns refused then.
        """
        principal, record = self.asked.principal, self._record
        if not may_apply(principal):
            return
        record.reservation = await reservation_for(
            principal,
            response_id=self._turn.id,
            model=self._context.route.model,
            service_tier=self._turn.response["service_tier"],
            started_at=record.started_at,
            is_warmup=self.asked.request.is_warmup,
        )
        if self._screening.refusal is None and not self._is_sealed_whole:
            await self._cover("begin")

    async def reserve_again(self) -> None:
        """The same for what was accepted before: refused, it ends without having begun."""
        try:
            await self.reserve()
        except (InsufficientQuota, Overloaded):
            self._is_uncovered = True

    def close(self) -> None:
        """Nothing of it runs any more: what it still holds of budgets is given back. Idempotent."""
        if self._record.reservation is not None:
            self._record.reservation.release()

    async def _cover(self, moment: str, *, more_tokens: int = 0) -> None:
        """Hold what the next engine call may cost, whose input is so much longer than the context.

        Raises InsufficientQuota, Overloaded.
        """
        reservation, context = self._record.reservation, self._context
        if reservation is None:
            return
        input_tokens = context.estimated_input_tokens() + more_tokens
        if self.asked.request.is_warmup:
            output_tokens = 0
        elif context.asks_compaction or context.is_too_long():
            output_tokens = app_settings.limits.summary_tokens
        else:
            tokens_left = self._tokens_left()
            output_tokens = app_settings.BUDGET_OUTPUT_TOKENS if tokens_left is None else max(0, tokens_left)
        if context.route.context_tokens is not None:
            output_tokens = min(output_tokens, max(0, context.route.context_tokens - input_tokens))
        short: Short | None = await reservation.cover(
            self._usage(), self._count_calls(), input_tokens=input_tokens, output_tokens=output_tokens
        )
        if short is not None:
            budget = short.share.budget
            metrics.budget_refusals.add((budget.name if budget.is_credit else budget.kind, moment))
            raise refusal(short)

    async def _why_uncovered(self) -> str | None:
        """Why the response does not go on, if no budget covers its next engine call."""
        try:
            await self._cover("go on")
        except (InsufficientQuota, Overloaded):
            # Incomplete, not failed: what was made is paid for.
            return _UNCOVERED
        return None

    def let_go(self) -> bool:
        """Leave it to another process: this one writes nothing more of it. False: it has been written already."""
        if self._record.is_closed:
            return False
        self._record.let_go()
        if self.asked.hold is not None:
            self.asked.hold.let_go()
        return True

    async def generate(self) -> Frames:
        """Sample until the model has nothing left to do for now."""
        turn, record, screening = self._turn, self._record, self._screening
        needs_engine = screening.refusal is None and not self._is_sealed_whole and not self._is_uncovered
        needs_preparing = needs_engine and self._work.needs_preparing(self._context, self._context.new_items)
        try:
            if needs_engine and not needs_preparing:
                self._start()
                # The engine is called first; the record becomes durable while it works.
                await asyncio.sleep(0)
            if not record.is_open:
                record.open(is_private=self._is_private)
            async with aclosing(self._answer(needs_engine=needs_engine, needs_preparing=needs_preparing)) as events:
                async for frames in events:
                    yield frames
        except (asyncio.CancelledError, GeneratorExit):
            try:
                await self._work.leave()
                if self._step is not None:
                    await self._step.leave()
            finally:
                # Read ahead of a client that did not read: made, though never told.
                unread = [word for word in self._mailbox.drain() if isinstance(word, list)]
                turn.count([*screening.held(), *(delta for batch in unread for delta in batch)])
                # Of a write that failed the socket's end is told a moment later: a cancellation on top of the first.
                if not record.is_closed:
                    await record.close(status="cancelled", usage=self._usage(), reason=self.asked.why_left())
            raise
        except Exception as exc:
            unheard = await self._leave()
            if self._place is not None and (record.is_closed or isinstance(exc, LeaseLost)):
                # Whoever follows it is told what is stored: by us, or by whoever has taken over.
                raise
            turn.count([*screening.held(), *unheard])
            error = told(exc, turn.id)
            is_interrupted = isinstance(error, Interrupted)
            status, reason = ("abandoned", "server_restarted") if is_interrupted else ("failed", error.code or "")
            usage, failure = self._usage(), turn.fail(error) if turn.has_begun else ""
            if not record.is_closed:
                is_kept = failure and self.asked.response_id is not None and self.asked.request.is_stored
                stored = self._stored(turn.kept_output) if is_kept else None
                with contextlib.suppress(PreviousResponseNotFound):
                    # Deleted meanwhile: then nobody will ask for it.
                    await record.close(status=status, usage=usage, reason=reason, stored=stored)
            self.asked.evict_parent()
            if self.asked.hold is not None:
                # Before the client is told: it may try again at once.
                await self.asked.hold.release()
            if not failure:
                raise error from exc
            self._tell_end()
            yield [failure, *self.steers.give_back(error)]
        finally:
            screening.stop()

    async def _answer(self, *, needs_engine: bool, needs_preparing: bool) -> Frames:
        """Everything from the first event to the terminal one, if nothing breaks."""
        turn, screening = self._turn, self._screening
        cut_off = None
        if self._is_sealed_whole:
            await screening.finish()
        if self._is_uncovered:
            yield self._begin()
            cut_off = _UNCOVERED
        elif not needs_engine and screening.refusal is not None:
            yield [*self._begin(), *await self._decline()]
        elif self._is_sealed_whole:
            # Nothing to ask the engine: all of the context is the answer.
            yield [*self._begin(), *turn.begin_compaction(samples=False), *self._compact(None)]
            turn.feed(Finished("stop"))
        elif needs_preparing:
            yield self._begin()
            async with aclosing(self._run_first(self._context.new_items)) as events:
                async for frames in events:
                    yield frames
            cut_off = self._why_stopped()
            needs_engine = screening.refusal is None
            if not needs_engine:
                yield await self._decline()
            elif cut_off is None and (cut_off := await self._why_uncovered()) is None:
                self._start()
        while needs_engine and cut_off is None:
            if self._is_summarising and turn.has_begun and not turn.is_queued:
                yield turn.begin_compaction(samples=True)
            async with aclosing(self._run_step()) as events:
                async for frames in events:
                    yield frames
            if screening.refusal is not None:
                yield await self._decline()
                break
            if not self._is_summarising and (held := await self._hear([], is_end=True)):
                yield held
            if turn.finished is None:
                if not self._is_cancelled and (self._is_summarising or not self.steers):
                    raise EngineError("protocol", "the engine stopped without finishing")
                cut_off = CANCELLED if self._is_cancelled else "steered"
                if turn.is_compacting:
                    # Without a summary the item that has begun is all of the context.
                    yield self._compact(None)
                break
            if self._is_summarising:
                is_all = self._context.asks_compaction
                yield await self._end_summary()
                if is_all:
                    turn.feed(Finished("stop"))
                    break
                cut_off = self._why_stopped() or await self._why_uncovered()
                if cut_off is None:
                    self._sample()
                continue
            has_called = bool(turn.hosted.waiting) and turn.finished.reason in ("stop", "tool_calls")
            if screening.has_cut:
                break
            if has_called:
                self._has_obeyed = True
                await self._record.cannot_repeat()
                async with aclosing(self._run_errands(self._work.run_waiting(self._context))) as events:
                    async for frames in events:
                        yield frames
                cut_off = self._why_stopped()
                if cut_off is not None:
                    break
            goes_on = has_called and not self._open_items() and self._work.refusals <= 1
            if screening.refusal is None and self._awaits_outputs():
                yield [*self._end_step(), turn.wait_for_outputs(self._open_items())]
                self._has_obeyed = True
                async with aclosing(self._wait_for_outputs()) as events:
                    async for frames in events:
                        yield frames
                if self._awaits_outputs():
                    cut_off = "append_timeout"
                    break
                async with aclosing(self._run_first(self._appended)) as events:
                    async for frames in events:
                        yield frames
                cut_off = self._why_stopped()
            elif screening.refusal is None and goes_on:
                if closing := self._end_step():
                    yield closing
            elif screening.refusal is None:
                break
            tokens_left = self._tokens_left()
            if tokens_left is not None and tokens_left <= 0:
                cut_off = cut_off or "max_output_tokens"
            elif screening.refusal is not None:
                yield await self._decline()
                break
            elif cut_off is None and (cut_off := await self._why_uncovered()) is None:
                self._start()
        usage = self._usage()
        closing = turn.close(usage, completed_at=int(time.time()), cut_off=cut_off)
        if closing:
            yield closing
        if turn.status == "completed":
            check_answer((self.asked.request.text or {}).get("format") or {}, turn.output)
        link = await self._settle(usage)
        yield self._end(link)
        await faults.sent("terminal.after")

    async def warm_up(self) -> Frames:
        """``generate: false``: everything but the sampling. A full response with an empty output."""
        turn, context = self._turn, self._context
        await self._screening.finish()
        if self._screening.refusal is not None:
            yield [*self._begin(), *await self._decline()]
            turn.close(Usage(), completed_at=int(time.time()))
            yield self._end(await self._settle(Usage()))
            return
        yield self._begin()
        usage = Usage(input_tokens=context.estimated_input_tokens(), estimated=True)
        began = time.perf_counter()
        asked = context.chat_request(turn.id, context.offer(), max_output_tokens=None)
        tokens, said = context.token_step(asked), as_it_is
        self._record.prepared(time.perf_counter() - began, tokens)
        if tokens is not None:
            try:
                usage = await ask(context.route, tokens.prefill, who=self.asked.connection)
                said = tokens.log_without_answer
            except InvalidRequest:
                # A template may refuse what is no conversation yet: tools without any message, for one.
                pass
        turn.feed(Finished("stop", usage))
        turn.close(usage, completed_at=int(time.time()))
        yield self._end(await self._settle(usage, said))

    def successor(self) -> Asked:
        """What continues a steered response: its own settings, the steers as input."""
        request = msgspec.structs.replace(
            self.asked.request, input=self.steers.items(), previous_response_id=self._turn.id, generate=None
        )
        return msgspec.structs.replace(self.asked, request=request, response_id=None, received_at=time.perf_counter())

    def _start(self) -> None:
        """Call the engine: for an answer, or first for a summary of what has become too long."""
        self._is_summarising = self._context.asks_compaction or self._context.is_too_long()
        self._sample()
        self._screening.begin(self._mailbox)

    async def _end_summary(self) -> list[str]:
        turn = self._turn
        if not turn.summary:
            raise EngineError("protocol", "the engine has made no summary")
        # The summary is an output as any other: it does not leave before the record is durable.
        await self._record.wait_until_open()
        summary = await self._screening.summary(turn.summary)
        assert self._step is not None, "a step has been started"
        usage = self._step.usage()
        frames = turn.end_step(usage)
        self._summary_tokens += usage.output_tokens
        self._step = None
        self._is_summarising = False
        return [*frames, *self._compact(summary)]

    def _compact(self, summary: str | None) -> list[str]:
        """Seal the context, and go on from there."""
        items = compacted(self._context.shown_items(), summary)
        frames = self._turn.end_compaction(seal_context(items, project_id=self.asked.principal.project_id))
        self._context = self._context.compacted(self._turn.output[-1])
        return frames

    def _sample(self) -> None:
        if not self._is_summarising:
            self._step_start = len(self._turn.output)
        self._step = Step(
            self._context,
            self._turn,
            self._record,
            self._mailbox,
            is_summary=self._is_summarising,
            tokens_left=self._tokens_left(),
            has_obeyed=self._has_obeyed,
            is_last=self._work.refusals > 0,
        )

    def _tokens_left(self) -> int | None:
        """What of ``max_output_tokens``, which counts for the whole response, earlier steps have left."""
        limit = self.asked.request.max_output_tokens
        return None if limit is None else limit - (self._turn.past_usage.output_tokens - self._summary_tokens)

    def _why_stopped(self) -> str | None:
        """Why the response does not go on, if the client has said so."""
        return CANCELLED if self._is_cancelled else "steered" if self.steers else None

    async def _run_first(self, items: list[Item]) -> Frames:
        """What has to be done before the model is asked: tools to be listed, calls that ``items`` allow."""
        if not self._work.needs_preparing(self._context, items):
            return
        # Nothing is called for an input that is refused.
        await self._screening.finish()
        if self._screening.refusal is not None:
            return
        await self._record.cannot_repeat()
        await self._record.wait_until_open()
        async with aclosing(self._run_errands(self._work.prepare(self._context, items))) as events:
            async for frames in events:
                yield frames
        self._context = self._context.grown(self._turn.kept_output[self._step_start :])
        self._step_start = len(self._turn.output)

    async def _run_errands(self, first: list[str]) -> Frames:
        """The events of what runs for the model, ``first`` those of its beginning, until all of it has ended; or until
        the client wants no more. What a steer interrupts is the model, not its tools."""
        work = self._work
        try:
            # They are output as any other.
            await self._record.wait_until_open()
            if first:
                yield first
            work.spoke()
            while work.is_busy:
                word = await self._mailbox.get()
                frames: list[str] = []
                if isinstance(word, Errand):
                    frames = work.hear(await work.screened(word, self._screening))
                elif isinstance(word, Steer):
                    frames = self.steers.take(word)
                elif isinstance(word, Append):
                    frames = self._refuse_append(InvalidRequest("This response waits for nothing.", param="input"))
                elif word is Sign.CANCELLED:
                    self._is_cancelled = True
                    return
                elif word is Sign.SILENT:
                    frames = [self._turn.keep_alive()]
                elif isinstance(word, Exception):
                    raise word
                if frames:
                    yield frames
                    work.spoke()
        finally:
            await work.leave()

    async def _leave(self) -> list[Delta]:
        """Free the engine. Gives what it had still to say."""
        unheard: list[Delta] = []
        if self._step is not None:
            await self._step.leave()
            for word in self._mailbox.drain():
                if isinstance(word, list):
                    unheard += word
                elif isinstance(word, Steer | Append | Interrupted) or word is Sign.CANCELLED:
                    # Not the engine's: it holds for what follows.
                    self._mailbox.put(word)
        return unheard

    async def _run_step(self) -> Frames:
        """The events of one sampling step. Where the engine finds the context too long, again with less of it."""
        for tries_left in range(SHORTENED_AT_MOST, -1, -1):
            step = self._step
            assert step is not None, "a step has been started"
            refusal: EngineError | None = None
            try:
                async with aclosing(self._listen(step)) as events:
                    async for frames in events:
                        yield frames
            except EngineError as exc:
                may_shorten = self.asked.request.truncation == "auto" and not step.has_spoken
                if exc.kind != "context_length" or not may_shorten or not tries_left:
                    raise
                refusal = exc
            await self._leave()
            self._context = step.context
            if refusal is None:
                return
            self._context = self._context.shortened(self._context.estimated_input_tokens() // 2)
            self._sample()

    async def _listen(self, step: Step) -> Frames:
        """The events of one sampling step, until the engine has ended or a steer stops it between two deltas."""
        turn, record = self._turn, self._record
        fault: EngineFault | None = None
        while True:
            word = await self._mailbox.get(self._screening.may_hear)
            if self._screening.refusal is not None:
                return
            if isinstance(word, list):
                step.heard()
                if record.first_token_ms is None:
                    # Before its events are made: what cannot leave for want of a record leaves no gap in their numbers.
                    await record.wait_until_open()
                    faultpoint("output.before")
                if self._is_summarising:
                    frames = [frame for delta in word for frame in turn.hear_summary(delta)]
                else:
                    allowed, fault = step.allowed(word)
                    frames = await self._hear(allowed)
                    step.has_spoken |= bool(frames)
                if frames and record.first_token_ms is None:
                    record.saw_first_token()
            elif word is Sign.ENDED:
                return
            elif isinstance(word, Exception):
                raise word
            elif isinstance(word, Steer):
                frames = self.steers.take(word)
            elif isinstance(word, Append):
                frames = self._refuse_append(InvalidRequest("This response waits for nothing.", param="input"))
            elif word is Sign.CANCELLED:
                self._is_cancelled = True
                return
            elif word is Sign.SCREENED:
                frames = []
            elif not turn.has_begun or turn.is_queued:
                # Accepted, or due: whichever came first.
                frames = self._begin()
            else:
                frames = [turn.keep_alive()] if word is Sign.SILENT else []
            if frames:
                step.spoke()
                yield frames
                await faults.sent("output.after")
            if fault is not None:
                raise fault
            if self._is_summarising:
                continue
            if step.has_cut or self._screening.has_cut:
                return
            if self.steers and turn.finished is None and not self._has_called:
                return

    async def _hear(self, said: list[Delta], *, is_end: bool = False) -> list[str]:
        """The events of what may leave now."""
        leaving = await self._screening.output(said, is_end=is_end)
        return [frame for delta in leaving for frame in self._turn.feed(delta)]

    async def _decline(self) -> list[str]:
        """The input was refused: say so in the place of an answer, and forget what was asked."""
        assert self._screening.refusal is not None, "only what was refused is declined"
        if self._record.is_open:
            await self._record.wait_until_open()
        usage = self._step.usage() if self._step is not None else None
        self._forget_input()
        frames = self._compact(None) if self._turn.is_compacting else []
        frames += self._turn.feed(RefusalDelta(self._screening.refusal, tokens=0))
        return [*frames, *self._turn.feed(Finished("stop", usage))]

    def _forget_input(self) -> None:
        """Nobody reads again what was refused last: the input, or outputs that were appended."""
        if self._screening.has_forgotten:
            return
        context = self._context
        first = self._appended_at or context.input_end - len(context.new_items)
        self._context = context.refused(first)
        self._turn.response["instructions"] = self._context.instructions
        if self._step is not None:
            # Its ids stand for what was said.
            self._step.tokens = None
        if self._appended_at is not None:
            self._turn.replace(self._context.items.since(first))

    def _begin(self) -> list[str]:
        if self.asked.began is not None:
            self.asked.began(self._turn.id)
        if self._place is not None:
            writer.submit(partial(rows.begin, self._turn.id))
        frames = self._turn.begin()
        return [*frames, *self._turn.begin_compaction(samples=True)] if self._is_summarising else frames

    def _tell_end(self) -> None:
        if self.asked.ticket is not None and not self.steers:
            # Before the client is told: its next turn may come at once.
            self.asked.ticket.close()
        if self.asked.ended is not None:
            self.asked.ended(self._turn.id)

    def _end(self, link: Link) -> list[str]:
        """The terminal event, and what becomes of steers that a response with open calls cannot follow up."""
        self._tell_end()
        faultpoint("terminal.before")
        frames = [self._turn.end()]
        if self.steers and link.open_calls:
            frames += self.steers.keep(link, self._open_items())
        return frames

    @property
    def _has_called(self) -> bool:
        """Whether this step has begun a call: no place to stop, since the calls want their outputs first anyway."""
        turn = self._turn
        has_whole_call = bool(turn.hosted.waiting) or any("call_id" in item for item in turn.output[self._step_start :])
        return turn.is_within_call or has_whole_call

    def _open_items(self) -> list[Item]:
        """Calls of the last step that wait for outputs."""
        output = self._turn.output[self._step_start :]
        still_open = calls_left_open({}, output)
        # An approval request waits for its answer by its own id.
        return [item for item in output if (item.get("call_id") or item["id"]) in still_open]

    def _awaits_outputs(self) -> bool:
        return self.asked.may_append and bool(self._open_items())

    def _end_step(self) -> list[str]:
        """This step is over, and the response goes on."""
        assert self._step is not None, "a step has been started"
        usage, said = self._step.usage(), self._said()
        frames = self._turn.end_step(usage)
        self._context = self._context.grown(self._turn.kept_output[self._step_start :], said)
        self._step = None
        return frames

    async def _wait_for_outputs(self) -> Frames:
        """Until the outputs have come, all of them; or not in time."""
        overdue = asyncio.get_running_loop().call_later(
            app_settings.limits.append_seconds, self._mailbox.put, Sign.OVERDUE
        )
        try:
            while True:
                word = await self._mailbox.get()
                if word is Sign.OVERDUE:
                    return
                if isinstance(word, Interrupted):
                    raise word
                if isinstance(word, Steer):
                    error = steer_error("response_not_active", "The response waits for outputs; append the input.")
                    yield [self._turn.refuse_steer(word, error)]
                elif isinstance(word, Append):
                    try:
                        await self._take_outputs(word)
                    except ApiError as refused:
                        yield self._refuse_append(refused)
                    else:
                        return
        finally:
            overdue.cancel()

    async def _take_outputs(self, append: Append) -> None:
        """Go on with these outputs. Raises ApiError; the response goes on waiting."""
        if self.asked.recheck is not None:
            admit(await self.asked.recheck(), self._context.route.model)
        limits = app_settings.limits
        items = input_items(append.input, new_id, max_items=limits.max_items)
        check_media_sizes(items, max_image_bytes=limits.max_image_bytes, max_file_bytes=limits.max_file_bytes)
        if any(str(item.get("type") or "message") not in _APPENDABLE for item in items):
            raise InvalidRequest("Only outputs and user messages can be appended.", param="input")
        require_outputs(calls_left_open(calls_left_open({}, self._turn.output[self._step_start :]), items))
        if self._record.reservation is not None:
            await self._cover("go on", more_tokens=len(msgspec.json.encode(items)) // 4)
        # In full form: they become output, which clients read by type.
        items, _ = await self._screening.admit([listed(item) for item in items])
        self._appended_at = len(self._context.items)
        self._turn.append(items)
        self._step_start = len(self._turn.output)
        self._context = self._context.grown(items)
        self._appended = items

    def _refuse_append(self, error: ApiError) -> list[str]:
        return [websocket_error(error, stream_id=self.asked.stream_id)]

    def _usage(self) -> Usage:
        """What was consumed so far, all steps together."""
        past = self._turn.past_usage
        return past if self._step is None else past.plus(self._step.usage())

    def _count_calls(self) -> int:
        return self._turn.hosted.calls_run

    def _said(self) -> Said:
        """What gives a prompt that ends with the last step's output the ids that were sampled."""
        finished = self._turn.finished
        if self._step is None or (finished is None and self._step.tokens is None):
            return as_it_is
        continuation = finished.continuation if finished is not None else None
        return partial(self._step.remembered, continuation=continuation, is_changed=self._screening.has_changed)

    async def _settle(self, usage: Usage, said: Said | None = None) -> Link:
        said = said or self._said()
        with self.asked.span.child("settle"):
            return await settle(self._context, self._turn, self._record, usage, said=said, begun=self._place)

    def _stored(self, output: list[Item]) -> Stored:
        return to_store(self._context, self._turn, output, begun=self._place)
