"""Another server that speaks the Responses API: over HTTP, or over WebSockets that remember their chains."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, get_args

import msgspec

from responses_ws.protocol.sampling import Delta

from .base import Capabilities, ChatRequest, Engine, EngineError, EngineModel
from .http import HttpClient, StreamedAnswer, checked_url
from .openai_chat import isolation, models_in
from .options import Timeouts, read_options
from .responses_stream import Forgotten, ResponsesReader
from .sockets import Socket, SocketAnswer, SocketLimits, Sockets

logger = logging.getLogger(__name__)

Answer = AbstractAsyncContextManager[AsyncIterator[list[Delta]]]

_RESERVED = frozenset({"type", "model", "input", "stream", "previous_response_id", "store", "tools", "background"})

_CLIENTS_OWN = frozenset({"function", "custom", "namespace"})

Feature = Literal[
    "tools",
    "tool_choice",
    "strict_tools",
    "json_object",
    "json_schema",
    "verbosity",
    "logprobs",
    "images",
    "files",
    "custom_tools",
    "reasoning",
]
_FORMATS: tuple[Literal["json_object", "json_schema"], ...] = ("json_object", "json_schema")


class ResponsesOptions(msgspec.Struct, rename="upper", forbid_unknown_fields=True, kw_only=True):
    """Options of `Responses`."""

    base_url: str
    """Up to and including the version: ``https://llm.example.com/v1``."""
    api_key: str = ""
    headers: dict[str, str] = {}
    """More headers for every call."""
    timeouts: Timeouts = Timeouts()
    transport: Literal["http", "websocket"] = "http"
    store: bool = False
    """Let the upstream keep the responses: then a chain goes on from any of them with what is new only, over HTTP too.
    Without it only a WebSocket remembers, its last response."""
    sockets: SocketLimits = SocketLimits()
    extra_body: dict[str, Any] = {}
    """More fields for every call, over our own."""
    affinity_field: Literal["", "prompt_cache_key", "user"] = "prompt_cache_key"
    """Where to put the client's ``prompt_cache_key``, or the chain's name. Empty: nowhere."""
    isolation_field: Literal["", "cache_salt"] = ""
    """As of `OpenAIChat`."""
    hosted_tools: frozenset[str] = frozenset()
    """Types of hosted tools that the server runs: ``["web_search", "code_interpreter"]``. They are offered to it as the
    client sent them."""
    supports: frozenset[Feature] = frozenset({"tools", "tool_choice", "json_object", "json_schema", "logprobs"})
    """What the server and its model can do. What they cannot is left out or asked for in words."""


class Continuation(msgspec.Struct, frozen=True):
    """How an upstream knows an answer of its own. It travels with the chain and is brought back to `Responses`."""

    engine: "Responses"
    model: str
    response_id: str
    """The upstream's; nobody else ever sees it."""
    socket: Socket | None = None
    """Where it was made."""


class Responses(Engine):
    """A client of ``POST {BASE_URL}/responses``, streamed, or of the same in WebSocket mode.

    A chain goes on from the upstream's last response with its new items only, as long as the upstream keeps it. One
    that it has forgotten, or whose socket has closed, is sent whole, once, and never after the upstream has begun to
    answer.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self._settings = settings = read_options(name, options, ResponsesOptions)
        for key in settings.extra_body:
            if key in _RESERVED:
                raise ValueError(f"ENGINES[{name!r}]['EXTRA_BODY'] may not hold {key!r}")
        if own := settings.hosted_tools & _CLIENTS_OWN:
            raise ValueError(f"ENGINES[{name!r}]['HOSTED_TOOLS'] may not hold {min(own)!r}: those are the client's")
        formats = frozenset(one for one in _FORMATS if one in settings.supports)
        flags: dict[str, Any] = {feature: feature in settings.supports for feature in get_args(Feature)}
        given = {flag: is_given for flag, is_given in flags.items() if flag not in _FORMATS}
        self.capabilities = Capabilities(
            chat=False, items=True, response_format=formats, hosted_tools=settings.hosted_tools, **given
        )
        self._client = HttpClient(
            checked_url(name, settings.base_url),
            api_key=settings.api_key,
            headers=settings.headers,
            connect_seconds=settings.timeouts.connect,
        )
        self.sockets = Sockets(self._client, settings.sockets, connect_seconds=settings.timeouts.connect)

    def respond(self, request: ChatRequest) -> Answer:
        return _Call(self, request)

    async def models(self) -> list[EngineModel]:
        return models_in(await self._client.get("/models", seconds=self._settings.timeouts.models))

    async def aclose(self) -> None:
        await self.sockets.aclose()
        await self._client.aclose()

    def continuation(self, request: ChatRequest) -> Continuation | None:
        """What the upstream can go on from, if it still knows it."""
        prompt, known = request.prompt, request.prompt.continuation
        if not isinstance(known, Continuation) or known.engine is not self or known.model != request.model:
            return None
        if prompt.instructions[:1] not in (b"", b'"') or prompt.continued >= len(prompt.log):
            # Messages that stand in front of everything, or nothing new: neither can be said by what is new.
            return None
        return known if self._settings.store or self.free_socket(known) is not None else None

    def free_socket(self, known: Continuation) -> Socket | None:
        """The socket on which this answer is the last."""
        socket = known.socket
        if socket is None or socket.response_id != known.response_id or not self.sockets.is_free(socket):
            return None
        return socket

    def answer(self, request: ChatRequest, known: Continuation | None) -> Answer:
        """One call: with what is new since ``known``, or with everything."""
        body = self.body(request, known)
        if self._settings.transport == "http":
            reader = ResponsesReader(lambda response_id: Continuation(self, request.model, response_id))
            headers = {"X-Request-Id": request.request_id}
            return StreamedAnswer(self._client, "/responses", body, reader, headers)
        reader = ResponsesReader(lambda response_id: Continuation(self, request.model, response_id, answer.socket))
        socket = self.free_socket(known) if known is not None else None
        answer = SocketAnswer(self.sockets, b"".join(body), reader, socket)
        return answer

    async def count(self, request: ChatRequest) -> int | None:
        body = _joined(_context_fields(request), request, None)
        try:
            said = await self._client.ask("/responses/input_tokens", body, seconds=self._settings.timeouts.models)
            return msgspec.json.decode(said, type=_Counted).input_tokens
        except (EngineError, msgspec.DecodeError):
            # Not every upstream counts.
            return None

    def body(self, request: ChatRequest, known: Continuation | None = None) -> list[bytes]:
        """The JSON body, or the event, in pieces. The items are copied as the bytes they are, once."""
        settings = self._settings
        is_http = settings.transport == "http"
        fields: dict[str, Any] = {
            "type": None if is_http else "response.create",
            "stream": True if is_http else None,
            "store": settings.store,
            **_context_fields(request),
            "max_output_tokens": request.max_output_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "frequency_penalty": request.frequency_penalty,
            "presence_penalty": request.presence_penalty,
        }
        if request.top_logprobs is not None:
            fields["top_logprobs"] = request.top_logprobs
            fields["include"] = ["message.output_text.logprobs"]
        if settings.affinity_field:
            fields[settings.affinity_field] = request.prompt_cache_key or request.affinity
        extra = {**isolation(settings.isolation_field, request), **settings.extra_body}
        return _joined({**fields, **extra}, request, known)


class _Call(AbstractAsyncContextManager[AsyncIterator[list[Delta]]]):
    """One call: with what is new, and with everything if the upstream turns out to have forgotten the rest."""

    def __init__(self, engine: Responses, request: ChatRequest) -> None:
        self._engine = engine
        self._request = request

    async def __aenter__(self) -> AsyncIterator[list[Delta]]:
        engine, request = self._engine, self._request
        known = engine.continuation(request)
        self._answer = engine.answer(request, known)
        try:
            return await self._answer.__aenter__()
        except Forgotten as forgotten:
            if known is None:
                raise
            logger.info("Response %s: everything is sent again: %s", request.request_id, forgotten.kind)
        self._answer = engine.answer(request, None)
        return await self._answer.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._answer.__aexit__(*exc_info)


class _Counted(msgspec.Struct):
    input_tokens: int


def _context_fields(request: ChatRequest) -> dict[str, Any]:
    """What the model is told beside its input."""
    text = {"format": _format(request.response_format), "verbosity": request.verbosity}
    reasoning = {"effort": request.reasoning_effort, "summary": request.reasoning_summary}
    has_tools = request.tools or request.hosted_tools
    return {
        "model": request.model,
        "text": _given(text) or None,
        "reasoning": _given(reasoning) or None,
        "tool_choice": request.tool_choice if has_tools else None,
        "parallel_tool_calls": request.parallel_tool_calls if has_tools else None,
    }


def _joined(fields: dict[str, Any], request: ChatRequest, known: Continuation | None) -> list[bytes]:
    """A JSON object of these fields, the tools, and the input that ``known`` is continued with."""
    prompt = request.prompt
    if known is None:
        items = list(prompt.log)
    else:
        fields = {**fields, "previous_response_id": known.response_id}
        items = prompt.log.since(prompt.continued)
    parts = [msgspec.json.encode(_given(fields))[:-1]]
    tools = [given[1:-1] for given in (request.tools, request.hosted_tools) if given]
    if tools:
        parts += [b',"tools":[', b",".join(tools), b"]"]
    if prompt.instructions.startswith(b'"'):
        parts += [b',"instructions":', prompt.instructions]
    elif prompt.instructions:
        items = [prompt.instructions, *items]
    return [*parts, b',"input":[', b",".join(items), b"]}"]


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _format(asked: dict[str, Any] | None) -> dict[str, Any] | None:
    """``text.format`` for a chat-completions ``response_format``."""
    if asked is None or asked["type"] != "json_schema":
        return asked
    return {"type": "json_schema", **asked["json_schema"]}
