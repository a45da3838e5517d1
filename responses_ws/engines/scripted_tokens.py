"""The scripted engine's answers as token ids, and the prefix cache that it pretends to have."""

import itertools
import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from responses_ws.protocol.sampling import Finished, FinishReason, TokenDelta, Tokens
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.tokens import TokenLog

from .base import ChatRequest, TokenRequest
from .pacing import PacedCall
from .script import FILLER, Plan

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Byte-level BPE over this project's own text, with the control tokens of the Hermes form.
TOKENIZER = Path(__file__).with_name("scripted.tokenizer.json")
CHAINS_KEPT = 1000  # in the prefix cache
CHAINS_COMPARED = 16  # of the same organisation, where a chain is new: a fork is found among them


class Vocabulary:
    """The tokenizer, and the ids that have a meaning."""

    def __init__(self, tokenizer: "Tokenizer", plain: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._plain = plain
        """Without control tokens: what it encodes is text, whatever it spells."""
        self.end = self._marker("<|im_end|>")
        self.think = self._marker("<think>")
        self.end_of_think = self._marker("</think>")
        self.call = self._marker("<tool_call>")
        self.end_of_call = self._marker("</tool_call>")
        self.filler = self.ids(FILLER)

    def ids(self, text: str) -> list[int]:
        """``text`` as ids, none of them a control token."""
        ids: list[int] = self._plain.encode(text).ids
        return ids

    def _marker(self, text: str) -> int:
        marker = self._tokenizer.token_to_id(text)
        assert marker is not None, "the file has all of them"
        return marker

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


@cache
def vocabulary() -> Vocabulary:
    """Read from the file, once."""
    from tokenizers import Tokenizer

    text = TOKENIZER.read_text("utf-8")
    plain = {**msgspec.json.decode(text), "added_tokens": []}
    return Vocabulary(Tokenizer.from_str(text), Tokenizer.from_str(msgspec.json.encode(plain).decode()))


class Prefixes:
    """What a prefix cache would still hold: the newest ids of each chain, by organisation.

    Of a chain its log is held, a view, and what was sampled behind it: the cost of a turn is the cost of what is new.
    """

    def __init__(self) -> None:
        self._chains: OrderedDict[tuple[str | None, str | None], tuple[TokenLog, array[int]]] = OrderedDict()

    def cached(self, request: ChatRequest, log: TokenLog) -> int:
        """How many of the ids that ``log`` begins with have been sent before, by the same organisation."""
        own = self._chains.get((request.isolation, request.affinity))
        if own is not None:
            return _known(log, *own)
        newest = (known for (isolation, _), known in reversed(self._chains.items()) if isolation == request.isolation)
        return max((_known(log, *known) for known in itertools.islice(newest, CHAINS_COMPARED)), default=0)

    def remember(self, request: ChatRequest, log: TokenLog, sampled: Sequence[int] = ()) -> None:
        """This is what the chain is now."""
        key = (request.isolation, request.affinity)
        self._chains[key] = log, array("I", sampled)
        self._chains.move_to_end(key)
        if len(self._chains) > CHAINS_KEPT:
            self._chains.popitem(last=False)


def _known(log: TokenLog, known: TokenLog, sampled: "array[int]") -> int:
    """How many of the ids of ``log`` are those of ``known`` and what was sampled behind it. Shared spans are free."""
    spans = log.shared_spans(known)
    start = log.spans[spans - 1].end if spans else 0
    return start + _common(known.since(start) + sampled, log.since(start))


def _common(known: "array[int]", ids: "array[int]") -> int:
    """Length of the common beginning, by halving: comparing arrays is one call in C."""
    low, high = 0, min(len(known), len(ids))
    if known[:high] == ids[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if known[low:middle] == ids[low:middle]:
            low = middle
        else:
            high = middle
    return low


class TokenCall(PacedCall[TokenDelta]):
    """An answer in token ids."""

    def __init__(
        self,
        request: TokenRequest,
        plan: Plan,
        prefixes: Prefixes,
        *,
        prefill_rate: float,
        ended: Callable[[ChatRequest, Usage, str], None],
    ) -> None:
        counted = len(request.prompt)
        cached = min(prefixes.cached(request.asked, request.prompt), counted)
        if prefill_rate:
            plan.ttft_seconds += (counted - cached) / prefill_rate
        super().__init__(request.asked, plan, Usage(input_tokens=counted, cached_tokens=cached))
        self._tokens = request
        self._prefixes = prefixes
        self._tell_end = ended
        self._sampled: list[int] = []

    def _begin(self) -> None:
        self._prefixes.remember(self._request, self._tokens.prompt)
        self._answer = _answer(self._plan, self._tokens)

    def _take(self, batch: list[TokenDelta], due: int) -> None:
        limit = self._tokens.max_tokens
        room = due if limit is None else min(due, limit - self._emitted)
        taken = list(itertools.islice(self._answer, room))
        ids = [one for one, _ in taken]
        self._emitted += len(ids)
        self._reasoning += sum(is_reasoning for _, is_reasoning in taken)
        self._sampled += ids
        if ids:
            top = self._request.top_logprobs
            batch.append(Tokens(ids, () if top is None else tuple(_logprob(one, top) for one in ids)))
        if len(ids) < room:
            self._finish(batch, "stop" if self._plan.finish == "tool_calls" else self._plan.finish)
        elif limit is not None and self._emitted >= limit:
            has_ended = bool(ids) and ids[-1] in self._tokens.stop_ids
            self._finish(batch, "stop" if has_ended else "length")

    def _finish(self, batch: list[TokenDelta], reason: FinishReason) -> None:
        batch.append(Finished(reason, self._counted()))
        self._prefixes.remember(self._request, self._tokens.prompt, self._sampled)
        self._end("completed")

    def _end(self, outcome: str) -> None:
        super()._end(outcome)
        self._tell_end(self._request, self._counted(), outcome)


def _answer(plan: Plan, request: TokenRequest) -> Iterator[tuple[int, bool]]:
    """The plan as ids in the Hermes form, and whether each is reasoning; behind what has been said in its stead."""
    words = vocabulary()
    said = _said_already(request)
    if said is None:
        yield from _prose(plan, words)
    for number, call in enumerate(plan.calls):
        told = f'\n{{"name": {msgspec.json.encode(call.name).decode()}, "arguments": {call.arguments}}}'
        if said is None:
            if number or plan.text is None or plan.text:
                yield from ((one, False) for one in words.ids("\n"))
            yield words.call, False
        yield from ((one, False) for one in words.ids(told.removeprefix(said or "")))
        if request.constraint is not None:
            # Held to one call's JSON: what stands around it is not the model's to say.
            break
        said = None
        yield from ((one, False) for one in words.ids("\n"))
        yield words.end_of_call, False
    if plan.finish in ("stop", "tool_calls"):
        yield words.end, False


def _prose(plan: Plan, words: Vocabulary) -> Iterator[tuple[int, bool]]:
    if plan.reasoning_tokens:
        yield words.think, False
        yield from ((one, True) for one in itertools.islice(itertools.cycle(words.filler), plan.reasoning_tokens))
        yield words.end_of_think, False
    if plan.text is None:
        yield from ((one, False) for one in itertools.islice(itertools.cycle(words.filler), plan.filler_tokens))
    else:
        yield from ((one, False) for one in words.ids("".join(plan.text)))


def _said_already(request: TokenRequest) -> str | None:
    """What of a call has been said in the model's stead, behind its marker; None where the answer is free."""
    words = vocabulary()
    tail = list(request.prompt.since(max(len(request.prompt) - 64, 0)))
    if words.call not in tail:
        return None
    behind = tail[len(tail) - tail[::-1].index(words.call) :]
    return None if words.end in behind else words.text(behind)


def _logprob(one: int, alternatives: int) -> dict[str, Any]:
    """Half sure of every token; the first alternative is the token itself, the others follow it in the vocabulary."""
    told = [_told(other, 0.5 ** (rank + 1)) for rank, other in enumerate(range(one, one + alternatives))]
    return {**_told(one, 0.5), "top_logprobs": told}


def _told(one: int, probability: float) -> dict[str, Any]:
    text = vocabulary().text([one])
    return {"token": text, "bytes": list(text.encode()), "logprob": math.log(probability)}
