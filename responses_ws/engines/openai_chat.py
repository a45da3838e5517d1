"""Any server that speaks chat completions: vLLM, SGLang, llama.cpp, Ollama, LiteLLM, the providers."""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from responses_ws.protocol.sampling import Delta

from .base import Capabilities, ChatRequest, Engine, EngineError, EngineModel
from .chat_errors import refusal
from .chat_stream import ChatStream
from .options import read_options
from .sse import EventSplitter

MAX_ERROR_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of an answer that was not streamed
SECONDS_TO_DRAIN = 1.0  # between [DONE] and the end of the body, to keep the connection
# A connection that the server closed while it was idle fails at once; later the call itself has failed.
# llama.cpp closes after every streamed answer, and the pool may hold several of those.
SECONDS_STALE = 1.0
STALE_TRIES = 3
# aiohttp warns about larger bodies given as bytes: it would write them without a pause.
BYTES_WRITTEN_AT_ONCE = 1024 * 1024

_RESERVED = frozenset({"messages", "model", "stream", "tools"})

Feature = Literal[
    "tools", "tool_choice", "strict_tools", "json_object", "json_schema", "verbosity", "logprobs", "images", "files"
]


class Timeouts(msgspec.Struct, frozen=True, rename="upper", forbid_unknown_fields=True):
    """Seconds. How long an answer may take is the caller's business."""

    connect: float = 5.0
    models: float = 10.0
    """For the list of models, from connect to the last byte."""


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
    """A client of ``POST {BASE_URL}/chat/completions``, streamed.

    One connection pool per event loop and engine, without a limit: how many turns may run is decided elsewhere.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self._configure(read_options(name, options, OpenAIChatOptions))

    def _configure(self, settings: OpenAIChatOptions) -> None:
        parts = urlsplit(settings.base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"ENGINES[{self.name!r}]['BASE_URL'] must be an http(s) URL, not {settings.base_url!r}")
        for key in settings.extra_body:
            if key in _RESERVED:
                raise ValueError(f"ENGINES[{self.name!r}]['EXTRA_BODY'] may not hold {key!r}")
        self._settings = settings
        self.capabilities = _capabilities(settings.supports)
        self._base_url = settings.base_url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drains: set[asyncio.Task[None]] = set()

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        return _ChatCall(self, request)

    async def models(self) -> list[EngineModel]:
        try:
            async with asyncio.timeout(self._settings.timeouts.models):
                async with self.session().get(f"{self._base_url}/models", allow_redirects=False) as response:
                    if response.status != 200:
                        raise refusal(response.status, await _read(response, MAX_ERROR_BYTES), response.headers)
                    body = await _read(response, MAX_ANSWER_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise _unreachable(self._base_url, exc) from exc
        return _models_in(body)

    async def aclose(self) -> None:
        session, loop = self._session, self._loop
        self._session = self._loop = None
        drains, self._drains = self._drains, set()
        if session is None:
            return
        if loop is not asyncio.get_running_loop():
            session.detach()
            return
        for task in drains:
            task.cancel()
        await asyncio.gather(*drains, return_exceptions=True)
        await session.close()

    def session(self) -> aiohttp.ClientSession:
        """The pool of the running loop. A pool of another loop (tests have many) is left to that loop's end."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop or self._session.closed:
            if self._session is not None:
                self._session.detach()
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._settings.timeouts.connect),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            self._loop = loop
            self._drains = set()
        return self._session

    def _connector(self) -> aiohttp.BaseConnector:
        return aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ttl_dns_cache=30)

    def _headers(self) -> dict[str, str]:
        # Identity: a compressed stream comes in lumps.
        headers = {"Accept-Encoding": "identity", "Accept": "text/event-stream, application/json"}
        if self._settings.api_key:
            headers["Authorization"] = f"Bearer {self._settings.api_key}"
        return {**headers, **self._settings.headers}

    def body(self, request: ChatRequest) -> bytes:
        """The JSON body. The messages are copied as the bytes they are."""
        fields: dict[str, Any] = {
            "model": request.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            self._settings.max_tokens_field: request.max_output_tokens,
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
        if self._settings.affinity_field:
            fields[self._settings.affinity_field] = request.prompt_cache_key or request.affinity
        given = {key: value for key, value in fields.items() if value is not None}
        given.update(self._settings.extra_body)
        tools = (b'"tools":', request.tools, b",") if request.tools else ()
        rest = msgspec.json.encode(given)[1:]
        return b"".join((b'{"messages":[', request.prompt.json(), b"],", *tools, rest))

    async def send(self, request: ChatRequest) -> aiohttp.ClientResponse:
        """The answer's head, whatever its status."""
        url = f"{self._base_url}/chat/completions"
        headers = {"Content-Type": "application/json", "X-Request-Id": request.request_id}
        body = self.body(request)
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        tries_left = STALE_TRIES
        while True:
            data = body if len(body) <= BYTES_WRITTEN_AT_ONCE else io.BytesIO(body)
            try:
                return await self.session().post(url, data=data, headers=headers, allow_redirects=False)
            except aiohttp.ClientConnectorError as exc:
                raise _unreachable(self._base_url, exc) from exc
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as exc:
                if not tries_left or loop.time() - sent_at > SECONDS_STALE:
                    raise _unreachable(self._base_url, exc) from exc
                tries_left -= 1
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                raise _unreachable(self._base_url, exc) from exc

    def give_back(self, response: aiohttp.ClientResponse, *, is_whole: bool) -> None:
        """Keeps the connection of a finished answer; closes that of any other, which is how the engine learns."""
        if not is_whole:
            response.close()
        elif response.content.at_eof():
            response.release()
        else:
            # [DONE] is here, the body's last bytes are not: a moment, beside the turn, saves a new connection.
            task = asyncio.get_running_loop().create_task(_drain(response))
            self._drains.add(task)
            task.add_done_callback(self._drains.discard)
            # Keeps the connection when the end has been reached, closes it when not. Not in the task's own finally:
            # one that is cancelled before its first step has none.
            task.add_done_callback(lambda _task: response.release())


class _ChatCall(AbstractAsyncContextManager[AsyncIterator[list[Delta]]]):
    """One call and its answer."""

    __slots__ = (
        "_engine",
        "_request",
        "_response",
        "_splitter",
        "_stream",
        "_is_json",
        "_ended",
        "_is_whole",
        "_error",
    )

    def __init__(self, engine: OpenAIChat, request: ChatRequest) -> None:
        self._engine = engine
        self._request = request
        self._splitter = EventSplitter()
        self._stream = ChatStream()
        self._ended = self._is_whole = False
        self._error: EngineError | None = None

    async def __aenter__(self) -> "_ChatCall":
        response = await self._engine.send(self._request)
        try:
            if response.status != 200:
                raise refusal(response.status, await _read(response, MAX_ERROR_BYTES), response.headers)
            kind = response.content_type
            if kind in ("text/html", "application/xhtml+xml"):
                raise EngineError("protocol", "the engine answered with a web page; is BASE_URL right?", status=200)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            response.close()
            raise _broken(exc) from exc
        except EngineError:
            # Closes the connection too, unless all of the answer has been read.
            response.release()
            raise
        except BaseException:
            response.close()
            raise
        self._response = response
        self._is_json = kind == "application/json"
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        self._ended = True
        self._engine.give_back(self._response, is_whole=self._is_whole)

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        return self

    async def __anext__(self) -> list[Delta]:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._ended:
            raise StopAsyncIteration
        deltas: list[Delta] = []
        try:
            while not deltas:
                await self._step(deltas)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            self._ended = True
            raise _broken(exc) from exc
        except EngineError as exc:
            self._ended = True
            if not deltas:
                raise
            # What came in the same read before the fault was made, and counts.
            self._error = exc
        return deltas

    async def _step(self, deltas: list[Delta]) -> None:
        """One read from the engine."""
        stream = self._stream
        if self._is_json:
            # Asked for a stream, some servers answer in one piece all the same.
            stream.feed(await _read(self._response, MAX_ANSWER_BYTES), deltas)
            self._finish(deltas)
            return
        chunk = await self._response.content.readany()
        for data in self._splitter.feed(chunk) if chunk else self._splitter.close():
            stream.feed(data, deltas)
            if stream.is_done:
                break
        if stream.is_done or not chunk:
            self._finish(deltas)

    def _finish(self, deltas: list[Delta]) -> None:
        self._stream.finish(deltas)
        self._ended = self._is_whole = True


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, up to ``limit`` bytes; a longer one is cut, and its connection not kept."""
    parts: list[bytes] = []
    size = 0
    while size < limit:
        chunk = await response.content.readany()
        if not chunk:
            break
        parts.append(chunk)
        size += len(chunk)
    return b"".join(parts)[:limit]


async def _drain(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(SECONDS_TO_DRAIN):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass


def _unreachable(url: str, exc: BaseException) -> EngineError:
    return EngineError("unavailable", f"{url} cannot be reached: {type(exc).__name__}: {exc}")


def _broken(exc: BaseException) -> EngineError:
    return EngineError("unavailable", f"the connection to the engine broke: {type(exc).__name__}: {exc}")


class _Listed(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    context_length: int | None = None
    context_window: int | None = None


class _List(msgspec.Struct):
    data: list[_Listed]


def _models_in(body: bytes) -> list[EngineModel]:
    try:
        listed = msgspec.json.decode(body, type=_List)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise EngineError("protocol", f"the engine's list of models cannot be read: {exc}") from exc
    return [
        EngineModel(id=one.id, context_tokens=one.max_model_len or one.context_length or one.context_window)
        for one in listed.data
    ]
