"""What all clients of model servers share: a pool of connections, sending, reading a streamed answer, giving back."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import aiohttp

from responses_ws.runtime import tracing

from .base import EngineError
from .chat_errors import refusal
from .sse import AnswerReader, EventSplitter

logger = logging.getLogger(__name__)

MAX_ERROR_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of an answer that was not streamed
SECONDS_TO_DRAIN = 1.0  # between the last event and the end of the body, to keep the connection
SECONDS_TO_TELL = 2.0
# A connection that the server closed while it was idle fails at once; later the call itself has failed.
# llama.cpp closes after every streamed answer, and the pool may hold several of those.
SECONDS_STALE = 1.0
STALE_TRIES = 3
# aiohttp warns about larger bodies given as bytes: it would write them without a pause.
BYTES_WRITTEN_AT_ONCE = 1024 * 1024

_PORTS = {"http": 80, "https": 443}

D = TypeVar("D")


def tcp_connector() -> aiohttp.BaseConnector:
    # No limit: how many turns may run is decided elsewhere.
    return aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ttl_dns_cache=30)


def checked_url(name: str, url: str) -> str:
    """``BASE_URL`` of the engine called ``name``, without a slash at its end. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"ENGINES[{name!r}]['BASE_URL'] must be an http(s) URL, not {url!r}")
    return url.rstrip("/")


class HttpClient:
    """The connections of one engine: one pool per event loop.

    A ``path`` is appended to the base URL, unless it is a URL itself.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        headers: Mapping[str, str] | None = None,
        connect_seconds: float = 5.0,
        connector: Callable[[], aiohttp.BaseConnector] = tcp_connector,
    ) -> None:
        self.base_url = base_url
        # Identity: a compressed stream comes in lumps.
        self._headers = {"Accept-Encoding": "identity", "Accept": "text/event-stream, application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._headers.update(headers or {})
        self._connect_seconds = connect_seconds
        self._connector = connector
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drains: set[asyncio.Task[None]] = set()
        self._tellings: set[asyncio.Task[None]] = set()

    def session(self) -> aiohttp.ClientSession:
        """The pool of the running loop. A pool of another loop (tests have many) is left to that loop's end."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop or self._session.closed:
            if self._session is not None:
                self._session.detach()
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(self._stay,),
            )
            self._loop = loop
            self._drains = set()
            self._tellings = set()
        return self._session

    async def _stay(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Follow no redirect to another host, which would be told our keys: handshakes of sockets follow them."""
        here, there = urlsplit(self.base_url), request.url
        if (here.scheme, here.hostname, here.port or _PORTS[here.scheme]) != (there.scheme, there.host, there.port):
            raise aiohttp.ClientConnectionError(f"it redirects to {there.host}:{there.port}")
        return await handler(request)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> aiohttp.ClientResponse:
        """The head of the answer to a JSON body, whatever its status. `give_back` it.

        Raises:
            EngineError: ``unavailable``.
        """
        url = self._url(path)
        headers = {"Content-Type": "application/json", **tracing.headers(), **(headers or {})}
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        tries_left = STALE_TRIES
        while True:
            data = body if len(body) <= BYTES_WRITTEN_AT_ONCE else io.BytesIO(body)
            try:
                return await self.session().post(url, data=data, headers=headers, allow_redirects=False)
            except aiohttp.ClientConnectorError as exc:
                raise self.unreachable(exc) from exc
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as exc:
                if not tries_left or loop.time() - sent_at > SECONDS_STALE:
                    raise self.unreachable(exc) from exc
                tries_left -= 1
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                raise self.unreachable(exc) from exc

    async def get(self, path: str, *, seconds: float) -> bytes:
        """The whole body of an answer with status 200, from connect to its last byte within ``seconds``.

        Raises:
            EngineError: another status, or ``unavailable``.
        """
        try:
            async with asyncio.timeout(seconds):
                return await _whole(await self.session().get(self._url(path), allow_redirects=False))
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self.unreachable(exc) from exc

    async def ask(self, path: str, body: bytes, *, seconds: float) -> bytes:
        """The same of a POST."""
        try:
            async with asyncio.timeout(seconds):
                return await _whole(await self.post(path, body))
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self.unreachable(exc) from exc

    def tell(self, path: str, body: bytes) -> None:
        """Post it beside whatever goes on; how that ends concerns nobody."""
        task = asyncio.get_running_loop().create_task(self._tell(path, body))
        self._tellings.add(task)
        task.add_done_callback(self._tellings.discard)

    async def _tell(self, path: str, body: bytes) -> None:
        try:
            await self.ask(path, body, seconds=SECONDS_TO_TELL)
        except EngineError as exc:
            logger.info("%s was not told: %s", self._url(path), exc)

    def give_back(self, response: aiohttp.ClientResponse, *, is_whole: bool) -> None:
        """Keeps the connection of a finished answer; closes that of any other, which is how the engine learns."""
        if not is_whole:
            response.close()
        elif response.content.at_eof():
            response.release()
        else:
            # The last event is here, the body's last bytes are not: a moment, beside the turn, saves a new connection.
            task = asyncio.get_running_loop().create_task(_drain(response))
            self._drains.add(task)
            task.add_done_callback(self._drains.discard)
            # Keeps the connection when the end has been reached, closes it when not. Not in the task's own finally:
            # one that is cancelled before its first step has none.
            task.add_done_callback(lambda _task: response.release())

    async def aclose(self) -> None:
        """Idempotent; the next call opens a new pool."""
        if self._loop is asyncio.get_running_loop():
            # Often just said: that a call has been left.
            await asyncio.gather(*self._tellings)
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

    def _url(self, path: str) -> str:
        return path if "://" in path else self.base_url + path

    def unreachable(self, exc: BaseException) -> EngineError:
        """What a failure to connect is told as."""
        return EngineError("unavailable", f"{self.base_url} cannot be reached: {type(exc).__name__}: {exc}")


class StreamedAnswer(AbstractAsyncContextManager[AsyncIterator[list[D]]], Generic[D]):
    """One call and its answer, as `Engine` promises it: a POST of ``body``, its events told by ``reader``."""

    def __init__(
        self,
        client: HttpClient,
        path: str,
        body: bytes,
        reader: AnswerReader[D],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._path = path
        self._body = body
        self._reader = reader
        self._headers = headers
        self._splitter = EventSplitter(reader.max_event_bytes)
        self.has_ended = False
        """Nothing more comes of it."""
        self.is_whole = False
        """The answer has come to its own end."""
        self._error: EngineError | None = None

    async def __aenter__(self) -> "StreamedAnswer[D]":
        body, self._body = self._body, b""
        response = await self._client.post(self._path, body, self._headers)
        try:
            if response.status != 200:
                said = await read(response, MAX_ERROR_BYTES)
                raise self._reader.refusal(response.status, said, response.headers)
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
        self.has_ended = True
        self._client.give_back(self._response, is_whole=self.is_whole)

    def __aiter__(self) -> AsyncIterator[list[D]]:
        return self

    async def __anext__(self) -> list[D]:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self.has_ended:
            raise StopAsyncIteration
        deltas: list[D] = []
        try:
            while not deltas:
                await self._step(deltas)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            self.has_ended = True
            raise _broken(exc) from exc
        except EngineError as exc:
            self.has_ended = True
            if not deltas:
                raise
            # What came in the same read before the fault was made, and counts.
            self._error = exc
        return deltas

    async def _step(self, deltas: list[D]) -> None:
        """One read from the engine."""
        reader = self._reader
        if self._is_json:
            # Asked for a stream, some servers answer in one piece all the same.
            reader.feed(await read(self._response, MAX_ANSWER_BYTES), deltas)
            self._finish(deltas)
            return
        chunk = await self._response.content.readany()
        for data in self._splitter.feed(chunk) if chunk else self._splitter.close():
            reader.feed(data, deltas)
            if reader.is_done:
                break
        if reader.is_done or not chunk:
            self._finish(deltas)

    def _finish(self, deltas: list[D]) -> None:
        self._reader.finish(deltas)
        self.has_ended = self.is_whole = True


class BegunAnswer(AbstractAsyncContextManager[AsyncIterator[list[D]]], Generic[D]):
    """A call that is entered with its first batch: some servers accept everything, and refuse in the stream.

    ``begin`` gives the entered answer and that batch. ``abort`` is called where the answer has been left before its
    end, beside closing its connection.
    """

    def __init__(
        self, begin: Callable[[], Awaitable[tuple[StreamedAnswer[D], list[D]]]], abort: Callable[[], None]
    ) -> None:
        self._begin = begin
        self._abort = abort
        self._first: list[D] | None = None

    async def __aenter__(self) -> "BegunAnswer[D]":
        try:
            self._answer, self._first = await self._begin()
        except EngineError:
            raise
        except BaseException:
            self._abort()
            raise
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        is_left = not self._answer.has_ended
        await self._answer.__aexit__()
        if is_left:
            self._abort()

    def __aiter__(self) -> AsyncIterator[list[D]]:
        return self

    async def __anext__(self) -> list[D]:
        first, self._first = self._first, None
        return await anext(self._answer) if first is None else first


async def begun(answer: StreamedAnswer[D]) -> tuple[StreamedAnswer[D], list[D]]:
    """``answer``, entered, and its first batch. Raises EngineError."""
    await answer.__aenter__()
    try:
        return answer, await anext(answer)
    except BaseException:
        await answer.__aexit__()
        raise


async def read(response: aiohttp.ClientResponse, limit: int) -> bytes:
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


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    async with response:
        if response.status != 200:
            raise refusal(response.status, await read(response, MAX_ERROR_BYTES), response.headers)
        return await read(response, MAX_ANSWER_BYTES)


async def _drain(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(SECONDS_TO_DRAIN):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass


def _broken(exc: BaseException) -> EngineError:
    return EngineError("unavailable", f"the connection to the engine broke: {type(exc).__name__}: {exc}")
