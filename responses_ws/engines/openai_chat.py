"""Any server that speaks chat completions: vLLM, SGLang, llama.cpp, Ollama, LiteLLM, the providers."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import msgspec

from responses_ws.protocol.sampling import Delta

from .base import Capabilities, ChatRequest, Engine, EngineError, EngineModel
from .chat_stream import ChatStream
from .http import Body, HttpClient, StreamedAnswer, checked_url
from .options import Timeouts, read_options

_RESERVED = frozenset({"messages", "model", "stream", "tools"})

Feature = Literal[
    "tools", "tool_choice", "strict_tools", "json_object", "json_schema", "verbosity", "logprobs", "images", "files"
]


class OpenAIChatOptions(msgspec.Struct, rename="upper", forbid_unknown_fields=True, kw_only=True):
    """Options of `OpenAIChat`."""

    base_url: str
    """Up to and including the version: ``http://127.0.0.1:8000/v1``."""
    api_key: str = ""
    headers: dict[str, str] = {}
    """More headers for every call."""
    timeouts: Timeouts = Timeouts()
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the output limit. OpenAI's newer models refuse the old name, many servers the new one."""
    extra_body: dict[str, Any] = {}
    """More fields for every call, over our own: ``{"return_progress": True}``."""
    affinity_field: Literal["", "prompt_cache_key", "user"] = ""
    """Where to put the client's ``prompt_cache_key``, or the chain's name, for servers that route by it. Empty:
    nowhere; strict servers refuse fields they do not know."""
    isolation_field: Literal["", "cache_salt", "extra_key"] = ""
    """Where to name the organisation, for servers that keep the prefix caches of such names apart, as vLLM does by the
    first, SGLang by either."""
    supports: frozenset[Feature] = frozenset({"tools", "tool_choice", "json_object", "json_schema", "logprobs"})
    """What the server and its model can do. What they cannot is left out or asked for in words."""


def _capabilities(supports: frozenset[Feature]) -> Capabilities:
    flags = ("tools", "tool_choice", "strict_tools", "verbosity", "logprobs", "images", "files")
    formats: frozenset[Literal["json_object", "json_schema"]] = frozenset(
        name for name in ("json_object", "json_schema") if name in supports
    )
    given: dict[str, Any] = {flag: flag in supports for flag in flags}
    return Capabilities(response_format=formats, **given)


class OpenAIChat(Engine):
    """A client of ``POST {BASE_URL}/chat/completions``, streamed."""

    options_type: type[OpenAIChatOptions] = OpenAIChatOptions

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self._settings = settings = read_options(name, options, self.options_type)
        for key in settings.extra_body:
            if key in _RESERVED:
                raise ValueError(f"ENGINES[{name!r}]['EXTRA_BODY'] may not hold {key!r}")
        self.capabilities = _capabilities(settings.supports)
        self._client = HttpClient(
            checked_url(name, settings.base_url),
            api_key=settings.api_key,
            headers=settings.headers,
            connect_seconds=settings.timeouts.connect,
        )

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        settings = self._settings
        body = chat_body(
            request,
            max_tokens_field=settings.max_tokens_field,
            affinity_field=settings.affinity_field,
            extra=self.more_fields(request),
        )
        headers = {"X-Request-Id": request.request_id}
        return StreamedAnswer(self._client, "/chat/completions", body, ChatStream(), headers)

    def more_fields(self, request: ChatRequest) -> Mapping[str, Any]:
        """More fields of the call's body."""
        return {**isolation(self._settings.isolation_field, request), **self._settings.extra_body}

    async def models(self) -> list[EngineModel]:
        return models_in(await self._client.get("/models", seconds=self._settings.timeouts.models))

    async def aclose(self) -> None:
        await self._client.aclose()


def isolation(field: str, request: ChatRequest) -> Mapping[str, Any]:
    """The body's field that keeps one organisation's prompts out of another's cache."""
    return {field: request.isolation} if field and request.isolation else {}


def chat_body(
    request: ChatRequest,
    *,
    max_tokens_field: str = "max_tokens",
    affinity_field: str = "",
    extra: Mapping[str, Any] | None = None,
) -> Body:
    """The JSON body of a call. The messages are copied as the bytes they are, once."""
    fields: dict[str, Any] = {
        "model": request.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        max_tokens_field: request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "response_format": request.response_format,
        "reasoning_effort": request.reasoning_effort,
        "verbosity": request.verbosity,
    }
    if request.top_logprobs is not None:
        fields["logprobs"] = True
        fields["top_logprobs"] = request.top_logprobs
    if request.tools:
        fields["tool_choice"] = request.tool_choice
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    if affinity_field:
        fields[affinity_field] = request.prompt_cache_key or request.affinity
    given = {key: value for key, value in fields.items() if value is not None}
    given.update(extra or {})
    tools = (b'"tools":', request.tools, b",") if request.tools else ()
    rest = msgspec.json.encode(given)[1:]
    return (b'{"messages":[', request.prompt.json(), b"],", *tools, rest)


class _Listed(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    context_length: int | None = None
    context_window: int | None = None


class _List(msgspec.Struct):
    data: list[_Listed]


def models_in(body: bytes) -> list[EngineModel]:
    """A list of models as ``GET /v1/models`` gives it. Raises EngineError."""
    try:
        listed = msgspec.json.decode(body, type=_List)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise EngineError("protocol", f"the engine's list of models cannot be read: {exc}") from exc
    return [
        EngineModel(id=one.id, context_tokens=one.max_model_len or one.context_length or one.context_window)
        for one in listed.data
    ]
