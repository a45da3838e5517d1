"""The contract of an engine: what continues a context."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import msgspec

from responses_ws.protocol.sampling import Constraint, ConstraintKind, Delta, TokenDelta
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.chat import ChatPrompt, Medium
from responses_ws.rendering.tokens import TokenLog

ErrorKind = Literal[
    "unavailable",
    "overloaded",
    "rate_limited",
    "timeout",
    "context_length",
    "bad_request",
    "auth",
    "protocol",
    "engine",
]


_KNOWN_MEDIA: dict[frozenset[Medium], frozenset[Medium]] = {}


class EngineError(Exception):
    """The engine refused or broke.

    ``kind`` says how; ``status`` is the engine's HTTP status where there was one; ``headers`` are retry hints that
    may be passed on (``retry-after``, ``x-ratelimit-*``). ``message`` may reach the client only for the kinds
    ``context_length`` and ``bad_request``. ``is_quote``: it is the engine's own, which may repeat what a client has
    said; ``str()``, which is for logs, then does without.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        is_quote: bool = False,
    ) -> None:
        super().__init__(f"status {status}, in words that are not logged" if is_quote else message)
        self.is_quote = is_quote
        self.kind: ErrorKind = kind
        self.message = message
        self.status = status
        self.headers = dict(headers or {})


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask an engine before trying."""

    chat: bool = True
    """Takes messages: `Engine.chat`."""
    tokens: bool = False
    """Takes token ids: `Engine.generate`, for models that we have a renderer for."""
    items: bool = False
    """Takes items rather than messages: `Engine.respond`."""
    constraints: frozenset[ConstraintKind] = frozenset()
    """What `Engine.generate` can hold an answer to."""
    exact_usage: bool = False
    """Counts tokens itself as it yields them, so that a cut-off answer is still measured, not estimated."""
    tools: bool = True
    """Takes tools. Without it none are offered."""
    tool_choice: bool = True
    """Obeys ``tool_choice``. Without it, tools that may not be called are not offered."""
    strict_tools: bool = False
    """Promises that the arguments of ``strict`` tools fit their schemas. A call that breaks this fails the response."""
    response_format: frozenset[Literal["json_object", "json_schema"]] = frozenset()
    """The formats that it can hold an answer to. The others are asked for in words."""
    verbosity: bool = False
    logprobs: bool = False
    images: bool = False
    """Takes images in messages. Without it a note stands where one was."""
    files: bool = False
    """Takes files in messages; as images."""
    custom_tools: bool = False
    """Takes custom tools as such, in items. Without it they are functions with one string."""
    reasoning: bool = False
    """Takes its reasoning back as text, in items."""
    hosted_tools: frozenset[str] = frozenset()
    """Types of hosted tools that it runs by itself: offered as the client sent them, in items."""

    @property
    def media(self) -> frozenset[Medium]:
        """What a prompt for it may hold beside text."""
        given: dict[Medium, bool] = {"images": self.images, "files": self.files}
        if self.items:
            given |= {"items": True, "custom_tools": self.custom_tools, "reasoning": self.reasoning}
            given["hosted_tools"] = bool(self.hosted_tools)
        media = frozenset(medium for medium, is_taken in given.items() if is_taken)
        # Every prompt keeps one.
        return _KNOWN_MEDIA.setdefault(media, media)


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sampling step, asked in messages, or in items. Everything is already in the engine's words.

    ``prompt`` is shared and append-only: read it, never change it. Asked in items, ``prompt``, ``tools`` and
    ``tool_choice`` are in the form of the Responses API.
    """

    request_id: str
    model: str
    """The engine's own name of the model."""
    prompt: ChatPrompt
    tools: bytes | None = None
    """JSON array of chat-completions tools, or None."""
    hosted_tools: bytes | None = None
    """JSON array of those that the engine runs itself, or None."""
    tool_choice: str | dict[str, Any] | None = None
    """Chat-completions form: "auto", "none", "required" or ``{type, function: {name}}``."""
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    """Chat-completions ``response_format``, or None for plain text."""
    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    """How the client wants reasoning summed up: for engines that do so themselves."""
    verbosity: str | None = None
    top_logprobs: int | None = None
    """Tell the log probabilities of the answer's tokens, with so many alternatives each; None: none at all."""
    affinity: str | None = None
    """Names the chain, stable from turn to turn: engines that cache prefixes per session may use it."""
    isolation: str | None = None
    """Names the organisation: caches must not let one learn from their speed what another has sent."""
    prompt_cache_key: str | None = None
    """The client's own name for requests that begin alike, made unique to its project."""


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sampling step, asked in token ids."""

    asked: ChatRequest
    """The same step in messages: its id, model, sampling parameters and keys count; the rest is in ``prompt``."""
    prompt: TokenLog
    """Ends where the model goes on. Shared and append-only."""
    max_tokens: int | None = None
    """The client's limit or the room left in the context, whichever is less; None where neither is known."""
    stop_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    """One of the kinds in `Capabilities.constraints`."""


class EngineModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as its engine lists it."""

    id: str
    context_tokens: int | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """``detail`` names the cure where ``ok`` is false."""

    ok: bool
    detail: str = ""


class Engine(ABC):
    """What continues a context: a model server, a client of one, or an embedded one.

    One instance per process and configured name; it is used by many turns at once on one event loop. ``options``
    is its dict from ``RESPONSES_WS["ENGINES"][name]`` without the key ``ENGINE``; a wrong option raises
    ValueError with the key's name.

    ``chat()`` gives a context manager. Entering it sends the call and returns when the engine has *accepted* it;
    a refusal raises EngineError there. Inside, iterate: every step yields the list of deltas that came in one
    read, never an empty list; the last list ends with exactly one ``Finished``, or EngineError is raised. Leaving
    the block early, by exception or cancellation too, frees the engine at once. The block may be entered in one
    task and left in another.

    ``generate()`` and ``respond()`` are the same for engines that take token ids or items. A token engine yields
    ``Tokens``; it never sees text.
    """

    capabilities = Capabilities()

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.options = options

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        """Call the engine once, in messages. See the class for the contract."""
        raise NotImplementedError("an engine without the capability `chat` is not asked in messages")

    def generate(self, request: TokenRequest) -> AbstractAsyncContextManager[AsyncIterator[list[TokenDelta]]]:
        """Call it once, in token ids."""
        raise NotImplementedError("an engine without the capability `tokens` is not asked in token ids")

    def respond(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        """Call it once, in items. The last delta may name the answer; a prompt that goes on from it holds the name."""
        raise NotImplementedError("an engine without the capability `items` is not asked in items")

    async def prefill(self, request: TokenRequest) -> Usage | None:
        """Read a prompt and say nothing, so that the next call finds it cached: a warm-up. None: it does not do that.

        Raises EngineError.
        """
        return None

    def renderer_options(self, model: str) -> Mapping[str, Any] | None:
        """``RENDERER`` of a model whose settings have none, for an engine that brings its model along."""
        return None

    @abstractmethod
    async def models(self) -> list[EngineModel]:
        """What it serves now. Raises EngineError."""

    async def rendered(self, request: ChatRequest) -> Sequence[int] | None:
        """The token ids that it would itself make of a call in messages, which is not made; None: it does not tell.

        Raises EngineError.
        """
        return None

    async def count(self, request: ChatRequest) -> int | None:
        """Tokens of the prompt of that call; None where only making it would tell. Raises EngineError."""
        ids = await self.rendered(request)
        return None if ids is None else len(ids)

    async def health(self) -> Health:
        """Whether a call would have a chance; never raises."""
        try:
            await self.models()
        except EngineError as exc:
            return Health(ok=False, detail=str(exc))
        return Health(ok=True)

    async def start(self) -> None:
        """Spawn or connect what is needed; idempotent. The default needs nothing."""

    async def aclose(self) -> None:
        """Give everything back; idempotent."""
