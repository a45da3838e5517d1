"""What a turn asks, and everything that a model is about to be told for it."""

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.chain import Chains, Link
from responses_ws.connection.log import SharedLog
from responses_ws.engines.base import ChatRequest
from responses_ws.engines.registry import Route
from responses_ws.protocol.compaction import (
    INSTRUCTION,
    asks_compaction,
    in_place,
    is_worth_folding,
    threshold_of,
)
from responses_ws.protocol.configuration import Configuration
from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.items import Item, calls_left_open
from responses_ws.protocol.request import (
    JsonObject,
    Request,
)
from responses_ws.rendering.base import Ask
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.formats import in_words, response_format, schema_of
from responses_ws.rendering.hosted import parted
from responses_ws.rendering.tools import Offer, ToolSet, after_obeyed
from responses_ws.rendering.truncation import without_oldest
from responses_ws.runtime.tracing import NOTHING, Span
from responses_ws.stores.base import Place
from responses_ws.stores.fallback import SealedFallback
from responses_ws.tools.registry import tools as hosted_tools

from .admission import Principal, Ticket
from .conversations import Hold
from .ending import Promised
from .mailbox import Mailbox
from .safety import Screening
from .sampling import Word
from .sealed import opened_context
from .token_step import TokenStep


class Queued(msgspec.Struct, frozen=True):
    """What a request was found to be when it was queued: nothing of that is looked at again."""

    items: list[Item]
    """Its input, as it is stored."""
    instructions: str | list[Item] | None
    refusal: str | None
    """What classifiers want said in the place of an answer."""


class Asked(msgspec.Struct, kw_only=True):
    """One request, from whichever door."""

    principal: Principal
    request: Request
    transport: str
    """A `UsageRecord.Transport` value."""
    stream_id: str | None = None
    response_id: str | None = None
    """Where it is promised to somebody already: then a failed response is kept too."""
    chains: Chains | None = None
    """The connection's memory; None over HTTP."""
    fallback: SealedFallback | None = None
    """Where what is not stored may be found again on another connection."""
    mailbox: Mailbox[Word] | None = None
    """Where others may speak to the running turn; the turn makes its own where nobody does."""
    may_append: bool = False
    """Calls do not end the response: it waits for their outputs."""
    recheck: Callable[[], Awaitable[Principal]] | None = None
    """Asks again who is asking, when a response that has waited goes on."""
    ticket: Ticket | None = None
    """What has let it in, if its door has asked already; whoever runs the turn closes it."""
    hold: Hold | None = None
    """Its conversation, once it is held; whoever runs the turn releases it."""
    queued: Queued | None = None
    """Where another process has queued it, or this one some time ago."""
    span: Span = NOTHING
    """The turn's, for those who measure its parts."""
    began: Callable[[str], None] | None = None
    """Called with the response's id before its first event."""
    ended: Callable[[str], None] | None = None
    """Called with it before its terminal event."""
    why_left: Callable[[], str] = lambda: "client_left"
    """Says why its door has left it, when it has: the reason that is recorded."""
    why_cancelled: str = "cancel_requested"
    """The same where somebody wants no more of it: its client, unless another has said so."""
    received_at: float = msgspec.field(default_factory=time.perf_counter)

    @property
    def previous_response_id(self) -> str | None:
        return self.request.previous_response_id

    @property
    def connection(self) -> Hashable:
        """Whose turn it is, where calls wait for an engine: the socket's, or over HTTP the key's."""
        return (self.principal.project_id, self.principal.api_key_id) if self.chains is None else id(self.chains)

    def evict_parent(self) -> None:
        """The turn was refused or has failed: its own lane forgets the response that it continued."""
        if self.chains is not None:
            self.chains.evict_failed(self.stream_id, self.previous_response_id)


_PROCESS = secrets.token_bytes(16)


def _chain_name(identity: int) -> str:
    """What engines are told instead: an identity is an address in memory, and others have the same."""
    return hashlib.blake2b(identity.to_bytes(8, "big"), key=_PROCESS, digest_size=12).hexdigest()


_SHORT_BYTES = 8192  # about 2,000 tokens: a good summary of something longer is as long


Said = Callable[[ChatPrompt], ChatPrompt]
"""Gives a prompt that ends with what was sampled the token ids that stand for it, or the engine's name for it."""


def as_it_is(prompt: ChatPrompt) -> ChatPrompt:
    return prompt


class Gathered(msgspec.Struct, kw_only=True):
    """Everything that a model is about to be told."""

    asked: Asked
    route: Route | None
    """Who answers; None where only the input is counted, for no model in particular."""
    parent: Link | None
    new_items: list[Item]
    items: SharedLog[Item]
    """Parent's context and the new input; in a response of several steps, also what these have added."""
    input_end: int
    """Items below this position are the response's input."""
    prompt: ChatPrompt
    """The same, rendered; without instructions, which are this request's only."""
    instructions: str | list[Item] | None
    """What stands before the context: the request's own, or what its prompt template says. Not inherited."""
    tools: ToolSet
    """The request's, and those that came as items."""
    configuration: Configuration
    screening: Screening
    """What classifiers say of what is new, and of the answer."""

    def estimated_input_tokens(self) -> int:
        """About four bytes a token, for engines that say nothing."""
        prompt = self.prompt.with_instructions(self.instructions)
        return prompt.estimated_tokens + (len(prompt.instructions) + len(self.tools.encoded or b"") + 3) // 4


class Context(Gathered, kw_only=True):
    """What an engine is about to continue."""

    route: Route
    left_out: int = 0
    """Items that are too old to be in the prompt: this request's own doing."""

    def offer(self, *, is_first: bool = True, is_last: bool = False) -> Offer:
        """The tools of the next engine call: in this response the first one, or one after hosted tools have run; the
        last one if they may not be called any more."""
        choice = self.asked.request.tool_choice
        if is_last:
            # A model that calls one all the same is told once more.
            return msgspec.structs.replace(self._offer("none"), callable_names=None)
        return self._offer(choice if is_first else after_obeyed(choice))

    def _offer(self, choice: str | JsonObject | None) -> Offer:
        can = self.route.capabilities
        return self.tools.offer(
            choice,
            takes_tools=can.tools,
            obeys_choice=can.tool_choice,
            as_items=can.items,
            takes_custom=can.custom_tools,
            passed=can.hosted_tools,
        )

    def chat_request(self, response_id: str, offer: Offer, *, max_output_tokens: int | None) -> ChatRequest:
        """The one call to the engine, in its words."""
        request = self.asked.request
        can = self.route.capabilities
        project_id = self.asked.principal.project_id
        text = request.text or {}
        wanted = text.get("format") or {}
        told = in_words(wanted, can.response_format)
        return ChatRequest(
            request_id=response_id,
            model=self.route.upstream,
            prompt=self.prompt.with_instructions(_with_words(self.instructions, told)),
            tools=offer.encoded,
            hosted_tools=offer.hosted,
            tool_choice=offer.choice,
            parallel_tool_calls=request.parallel_tool_calls,
            max_output_tokens=max_output_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            response_format=None if told else response_format(wanted),
            reasoning_effort=(request.reasoning or {}).get("effort"),
            reasoning_summary=request.reasoning_summary,
            verbosity=text.get("verbosity") if can.verbosity else None,
            top_logprobs=(request.top_logprobs or 0) if can.logprobs and request.wants_logprobs else None,
            affinity=f"{project_id}:{_chain_name(self.items.identity)}",
            isolation=str(self.asked.principal.organization_id),
            prompt_cache_key=f"{project_id}:{request.prompt_cache_key}" if request.prompt_cache_key else None,
        )

    def token_step(self, asked: ChatRequest) -> TokenStep | None:
        """The same call in token ids; None for a model that is not asked in them."""
        if self.route.renderer is None:
            return None
        constraints = self.route.engine.capabilities.constraints
        ask = Ask(
            tools=asked.tools,
            tool_choice=asked.tool_choice,
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            reasoning_effort=asked.reasoning_effort,
            schema=schema_of(asked.response_format),
            schemas=self.tools.schemas if "structural_tag" in constraints else {},
            constraints=constraints,
        )
        return TokenStep(self.route, asked, ask)

    def on(self, route: Route) -> "Context":
        """The same, for another replica: the prompt is kept with its token ids, where both take the same media.

        Raises:
            InvalidRequest: it is too long for that one.
        """
        takes = route.capabilities.media
        if takes == self.prompt.takes:
            return msgspec.structs.replace(self, route=route)
        prompt = ChatPrompt(takes=takes).extended(self.shown_items())
        return msgspec.structs.replace(self, route=route, prompt=prompt, left_out=0).fitted()

    def fitted(self) -> "Context":
        """As ``truncation`` wants it, where the model's limit is known.

        Raises:
            InvalidRequest: too long, and nothing may be left out; or what must stay is too long.
        """
        limit = self.route.context_tokens
        if limit is None:
            return self
        request = self.asked.request
        needed = self.estimated_input_tokens()
        if request.truncation == "auto":
            room = limit - min(request.max_output_tokens or 0, limit // 2)
            # A context that is to be compacted loses nothing yet.
            return self if needed <= room or self.is_too_long() else self.shortened(room)
        # Only what is too long at eight bytes a token, too, is certainly so; of the rest the engine knows more.
        if needed // 2 > limit:
            raise _too_long(needed, limit)
        return self

    def shortened(self, most_tokens: int) -> "Context":
        """Without its oldest turns. Raises InvalidRequest: what must stay takes more than ``most_tokens``."""
        needed = self.estimated_input_tokens()
        room = most_tokens - (needed - self.prompt.estimated_tokens)
        takes = self.prompt.takes
        items = self.shown_items()
        kept = without_oldest(items, most_tokens=room, takes=takes)
        if kept is None:
            raise _too_long(needed, most_tokens)
        prompt = ChatPrompt(takes=takes, is_whole=False).extended(kept)
        return msgspec.structs.replace(self, prompt=prompt, left_out=len(items) - len(kept))

    def grown(self, items: Sequence[Item], said: Said = as_it_is) -> "Context":
        """The context of the next sampling step in the same response. ``said``: what the items are in token ids.

        Everything that is new within a response comes in here: what the model has said and what its hosted tools gave,
        what was appended. The last step's own output does not: no model is told it any more in this response.
        """
        configuration, tools = self.configuration.after(items), self.tools
        if configuration.listings is not self.configuration.listings:
            tools = tool_set(tools.source, configuration, self.route)
        return msgspec.structs.replace(
            self,
            items=self.items.extended(items),
            prompt=self._prompt_with(items, said),
            configuration=configuration,
            tools=tools,
        )

    @property
    def tools_run_here(self) -> list[JsonObject]:
        """The request's tools, without those that an upstream runs itself."""
        return _run_here(self.tools.source, self.route)

    @property
    def asks_compaction(self) -> bool:
        """The input ends with a compaction trigger, and nothing has come after it."""
        return len(self.items) == self.input_end and asks_compaction(self.new_items)

    def is_short(self) -> bool:
        """Whether a summary would hardly be any shorter than the context itself."""
        return self.prompt.byte_length <= _SHORT_BYTES

    def is_too_long(self) -> bool:
        """Whether the client wants this context compacted before the model goes on."""
        threshold = threshold_of(self.asked.request.context_management, self.route.context_tokens)
        if threshold is None or self.estimated_input_tokens() <= threshold:
            return False
        return is_worth_folding(self.shown_items())

    def shown_items(self) -> list[Item]:
        """The whole context as it counts, seals opened. Costs its length."""
        return in_place(opened_context(list(self.items), project_id=self.asked.principal.project_id))

    def summary_request(self, response_id: str) -> ChatRequest:
        """The engine call that makes a summary: the same prompt as ever, so that caches hold, and one word more."""
        most = app_settings.limits.summary_tokens
        request = self.chat_request(response_id, self._offer("none"), max_output_tokens=most)
        asked = {"type": "message", "role": "user", "content": INSTRUCTION}
        # A summary is plain text, whatever form the answer is to have.
        return msgspec.structs.replace(
            request,
            prompt=self.prompt.extended([asked]).with_instructions(self.instructions),
            response_format=None,
            top_logprobs=None,
        )

    def refused(self, first: int) -> "Context":
        """Without what was said in the items from position ``first`` on, and in the instructions. The prompt is made
        anew, once."""
        blank, instructions = self.screening.refused(self.items.since(first), self.instructions)
        shorter = msgspec.structs.replace(
            self,
            items=self.items.until(first).extended(blank),
            new_items=blank[: len(self.new_items)] if first < self.input_end else self.new_items,
            instructions=instructions,
        )
        prompt = ChatPrompt(takes=self.prompt.takes).extended(shorter.shown_items())
        return msgspec.structs.replace(shorter, prompt=prompt)

    def compacted(self, item: Item) -> "Context":
        """Behind a compaction item: the prompt is made anew from it, once.

        Raises:
            InvalidRequest: it is too long still.
        """
        longer = msgspec.structs.replace(self, items=self.items.extended([item]))
        prompt = ChatPrompt(takes=self.prompt.takes).extended(longer.shown_items())
        return msgspec.structs.replace(longer, prompt=prompt).fitted()

    def _prompt_with(self, items: Sequence[Item], said: Said) -> ChatPrompt:
        """What the model has said itself, which may be known in token ids, and then what its hosted calls gave."""
        opened = opened_context(items, project_id=self.asked.principal.project_id)
        own, given = parted(opened, only_ours="hosted_tools" in self.prompt.takes)
        prompt = self.prompt.extended(own)
        if own == opened or "items" not in prompt.takes:
            # An upstream knows a call that was run here by another id: it is told all of it again.
            prompt = said(prompt)
        return prompt.extended(given) if given else prompt

    def link(
        self, response: JsonObject, output: list[Item], place: Place | Promised | None, said: Said = as_it_is
    ) -> Link:
        """What a continuation of the finished response will need. ``output``: of its last step, as it is kept."""
        prompt, parent = self._prompt_with(output, said), self.parent
        ancestor = ""
        if place is None and parent is not None:
            ancestor = parent.stored_ancestor if parent.place is None else parent.response_id
        return Link(
            response_id=response["id"],
            project_id=self.asked.principal.project_id,
            response=response,
            items=self.items.extended(output),
            input_end=self.input_end,
            open_calls=calls_left_open({}, output),
            configuration=self.configuration,
            prompt=prompt,
            tools=self.tools,
            route=self.route,
            # Of a compacted chain the items are still there.
            size=max(prompt.memory_bytes, self.parent.size if self.parent else 0) + 4 * len(self.tools.encoded or b""),
            place=place,
            stored_ancestor=ancestor,
            safety=self.screening.carried(),
        )


def _too_long(needed: int, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"Your input exceeds the context window of this model: about {needed} tokens, with room for {limit}.",
        code="context_length_exceeded",
        param="input",
    )


def _with_words(instructions: str | list[Item] | None, words: str | None) -> str | list[Item] | None:
    """Instructions with something that this engine has to be told in words."""
    if not words:
        return instructions
    if isinstance(instructions, list):
        return [*instructions, {"type": "message", "role": "developer", "content": words}]
    return f"{instructions}\n\n{words}" if instructions else words


def tool_set(sent: Sequence[JsonObject], configuration: Configuration, route: Route | None) -> ToolSet:
    """What was sent, and what our hosted tools offer the model for it."""
    return ToolSet(sent, hosted_tools.functions(_run_here(sent, route), configuration.listings))


def _run_here(sent: Sequence[JsonObject], route: Route | None) -> list[JsonObject]:
    """Without those tools that an upstream runs itself."""
    return [tool for tool in sent if tool["type"] not in run_upstream(route)]


def run_upstream(route: Route | None) -> frozenset[str]:
    """Types of hosted tools that the engine runs itself."""
    return frozenset() if route is None else route.capabilities.hosted_tools
