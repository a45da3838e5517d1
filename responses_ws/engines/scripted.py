"""The scripted engine: deterministic answers with exact token counts, for tests, demos and load."""

import asyncio
import importlib.util
import math
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from responses_ws.protocol.sampling import (
    CallEnd,
    CallStart,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenDelta,
)
from responses_ws.protocol.usage import Usage

from .base import Capabilities, ChatRequest, Engine, EngineModel, TokenRequest
from .options import read_options
from .pacing import PacedCall
from .script import Plan, plan_for
from .scripted_tokens import TOKENIZER, Prefixes, TokenCall

BYTES_PER_TOKEN = 4  # of a prompt: what common tokenizers need on English text and JSON
AFFINITIES_KEPT = 10_000


class ScriptedOptions(msgspec.Struct, rename="upper", forbid_unknown_fields=True):
    """Options of `Scripted`; directives in the user's text go before them."""

    rate: float = 0.0
    """Tokens per second; 0: as fast as it goes."""
    ttft_ms: float = 0.0
    """Milliseconds before the first token."""
    tokens: int = 0
    """Answer with so many tokens of filler; 0: with a sentence about what was said."""
    token_ids: bool = True
    """Be asked in token ids, if the package ``tokenizers`` is there. Off: in messages, where a word is a token."""
    prefill_rate: float = 0.0
    """Prompt tokens that are not cached, per second, before the first token of an answer; 0: they cost no time."""
    token_log: str | None = None
    """Path of a file that gets one JSON line per call when it ends: what this engine says it has made."""


class Scripted(Engine):
    """Answers by rule, not by model: the model it serves is called ``scripted``, so that nobody is misled.

    Tools offered and none used since the user's last message: it calls the one whose words the message shares
    most. Outputs present: a sentence that quotes them. Otherwise: a sentence that quotes the message. A word is a
    token, a prompt token is four bytes of prompt, and what the chain named by ``affinity`` has sent before counts
    as cached.

    The last user message may hold directives, for tests and load:

    ==================  ==============================================================
    ``!tokens N``       N tokens of text instead of a sentence or a call
    ``!rate R``         R tokens a second
    ``!ttft MS``        milliseconds before the first token
    ``!reason N``       N tokens of reasoning first
    ``!fail KIND``      refuse the call with that kind of EngineError
    ``!break N``        break after N tokens
    ``!stall S``        pause S seconds after the first token
    ``!refuse``         decline
    ``!cut``            end at half of it, as ``length``
    ``!filter``         end at half of it, as ``content_filter``
    ``!calls N``        N parallel calls
    ``!rounds N``       call tools N times in a row before answering
    ``!call NAME {…}``  call that tool with these arguments
    ==================  ==============================================================
    """

    capabilities = Capabilities(
        exact_usage=True,
        response_format=frozenset({"json_object", "json_schema"}),
        logprobs=True,
        images=True,
        files=True,
    )

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self._options = read_options(name, options, ScriptedOptions)
        self._defaults = Plan(
            tokens_per_second=self._options.rate,
            ttft_seconds=self._options.ttft_ms / 1000,
            filler_tokens=self._options.tokens,
        )
        if self._options.token_ids and importlib.util.find_spec("tokenizers") is not None:
            self.capabilities = msgspec.structs.replace(
                self.capabilities, tokens=True, constraints=frozenset({"json_schema"})
            )
        self._prefixes = Prefixes()
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._log_descriptor: int | None = None

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        return _ChatCall(self, request)

    def generate(self, request: TokenRequest) -> AbstractAsyncContextManager[AsyncIterator[list[TokenDelta]]]:
        plan = self.plan(request.asked)
        return TokenCall(request, plan, self._prefixes, prefill_rate=self._options.prefill_rate, ended=self.log_call)

    async def prefill(self, request: TokenRequest) -> Usage:
        cached = self._prefixes.cached(request.asked, request.prompt)
        if self._options.prefill_rate:
            await asyncio.sleep((len(request.prompt) - cached) / self._options.prefill_rate)
        self._prefixes.remember(request.asked, request.prompt)
        return Usage(input_tokens=len(request.prompt), cached_tokens=cached)

    def renderer_options(self, model: str) -> Mapping[str, Any]:
        return {"TOKENIZER": str(TOKENIZER), "TEMPLATE": "think-hermes", "PARSER": "think-hermes"}

    async def count(self, request: ChatRequest) -> int:
        return prompt_tokens(request)

    async def models(self) -> list[EngineModel]:
        return [EngineModel(id="scripted")]

    async def aclose(self) -> None:
        if self._log_descriptor is not None:
            os.close(self._log_descriptor)
            self._log_descriptor = None

    def plan(self, request: ChatRequest) -> Plan:
        """What to answer; the seam for subclasses with scripts of their own."""
        return plan_for(request, self._defaults)

    def tokens_seen(self, affinity: str | None) -> int:
        """Tokens of that chain that a prefix cache would hold."""
        return self._seen.get(affinity, 0) if affinity else 0

    def remember(self, affinity: str | None, tokens: int) -> None:
        """The chain is now ``tokens`` long."""
        if affinity:
            self._seen[affinity] = tokens
            self._seen.move_to_end(affinity)
            if len(self._seen) > AFFINITIES_KEPT:
                self._seen.popitem(last=False)

    def log_call(self, request: ChatRequest, usage: Usage, outcome: str) -> None:
        """One line in the token log, on disk when this returns: it blocks, truth being the point here."""
        if self._options.token_log is None:
            return
        record = {
            "request_id": request.request_id,
            "model": request.model,
            "prompt_tokens": usage.input_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "outcome": outcome,
        }
        if self._log_descriptor is None:
            self._log_descriptor = os.open(self._options.token_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._log_descriptor, msgspec.json.encode(record) + b"\n")
        os.fsync(self._log_descriptor)


def prompt_tokens(request: ChatRequest) -> int:
    """Tokens of a call's prompt, tools included."""
    prompt = request.prompt
    size = prompt.byte_length + len(prompt.instructions) + len(request.tools or b"")
    return -(-size // BYTES_PER_TOKEN)


class _ChatCall(PacedCall[Delta]):
    """An answer in words: each a token."""

    def __init__(self, engine: Scripted, request: ChatRequest) -> None:
        counted = prompt_tokens(request)
        usage = Usage(input_tokens=counted, cached_tokens=min(counted, engine.tokens_seen(request.affinity)))
        super().__init__(request, engine.plan(request), usage)
        self._engine = engine
        self._pending: Delta | None = None

    def _begin(self) -> None:
        request = self._request
        self._engine.remember(request.affinity, self._usage.input_tokens)
        self._deltas: Iterator[Delta] = self._plan.deltas(f"{request.request_id}:{len(request.prompt.log)}")

    def _take(self, batch: list[Delta], due: int) -> None:
        limit = self._request.max_output_tokens
        while True:
            delta = self._pending or next(self._deltas, None)
            self._pending = None
            if delta is None:
                self._finish(batch, self._plan.finish)
                return
            if isinstance(delta, CallEnd):
                batch.append(delta)
                continue
            if limit is not None and self._emitted >= limit:
                self._finish(batch, "length")
                return
            if due <= 0:
                self._pending = delta
                return
            if isinstance(delta, TextDelta) and self._request.top_logprobs is not None:
                delta = _with_logprobs(delta, self._request.top_logprobs)
            batch.append(delta)
            if isinstance(delta, CallStart):
                continue
            due -= 1
            self._emitted += 1
            self._reasoning += isinstance(delta, ReasoningDelta)

    def _finish(self, batch: list[Delta], reason: FinishReason) -> None:
        batch.append(Finished(reason, self._counted()))
        self._engine.remember(self._request.affinity, self._usage.input_tokens + self._emitted)
        self._end("completed")

    def _end(self, outcome: str) -> None:
        super()._end(outcome)
        self._engine.log_call(self._request, self._counted(), outcome)


def _with_logprobs(delta: TextDelta, alternatives: int) -> TextDelta:
    """Half sure of every token; the first alternative is the token itself, the others end in a number."""
    tokens = [delta.text, *(f"{delta.text}{number}" for number in range(1, alternatives))][:alternatives]
    told = [_logprob(token, math.log(0.5 ** (rank + 1))) for rank, token in enumerate(tokens)]
    logprob = {**_logprob(delta.text, math.log(0.5)), "top_logprobs": told}
    return msgspec.structs.replace(delta, logprobs=(logprob,))


def _logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(token.encode("utf-8", "replace")), "logprob": logprob}
