"""What all clients of model servers share: a pool of connections, sending, reading a streamed answer, giving back."""

import asyncio
import base64
import functools
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar
from urllib.parse import SplitResult, quote, unquote_to_bytes, urlsplit

from responses_ws import __version__
from responses_ws.runtime import tracing

from .base import EngineError
from .chat_errors import refusal
from .pool import Pool, tcp
from .sse import AnswerReader, EventSplitter
from .wire import Connection

logger = logging.getLogger(__name__)

MAX_ERROR_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of an answer that was not streamed
SECONDS_TO_TELL = 2.0
# A connection that the server closed while it was idle fails at once; later the call itself has failed.
# llama.cpp closes after every streamed answer, and the pool may hold several of those.
SECONDS_STALE = 1.0
STALE_TRIES = 3

PORTS = {"http": 80, "https": 443}
# Source: RFC 9110 §5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PATH = "/%!$&'()*+,;=:@~"
_OURS = frozenset({"connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade"})

D = TypeVar("D")

Body = bytes | Sequence[bytes | memoryview]
"""In one piece, or in pieces that are sent one after the other."""


def checked_url(name: str, url: str) -> str:
    """``BASE_URL`` of the engine called ``name``, without a slash at its end. Raises ValueError."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in PORTS and parts.hostname and not parts.query and not parts.fragment
        # Of a port that is none, or a host that cannot be looked up, these tell.
        is_good = is_good and parts.port != 0 and _host(parts) and url.isprintable() and " " not in url
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError(f"ENGINES[{name!r}]['BASE_URL'] must be an http(s) URL, not {url!r}")
    return parts._replace(path=quote(parts.path.rstrip("/"), safe=_PATH)).geturl()


class Unreachable(EngineError):
    """No connection could be made."""


class HttpClient:
    """The connections of one engine: one pool per event loop.

    A ``path`` is appended to the base URL, unless it is a URL itself, of the same server.

    Raises:
        ValueError: a header that cannot be sent.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        headers: Mapping[str, str] | None = None,
        connect_seconds: float = 5.0,
    ) -> None:
        parts = urlsplit(base_url)
        self._parts = here = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        self.base_url = here.geturl()
        self._origin = f"{here.scheme}://{here.netloc}"
        given = {
            "Host": _host(parts) if parts.port is None else f"{_host(parts)}:{parts.port}",
            "User-Agent": f"responses_ws/{__version__}",
            # Identity: a compressed stream comes in lumps.
            "Accept-Encoding": "identity",
            "Accept": "text/event-stream, application/json",
        }
        if api_key:
            given["Authorization"] = f"Bearer {api_key}"
        elif parts.username is not None:
            credentials = unquote_to_bytes(parts.username) + b":" + unquote_to_bytes(parts.password or "")
            given["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
        names = {name.lower(): name for name in given}
        for name, value in (headers or {}).items():
            if name.lower() in _OURS or not _TOKEN.fullmatch(name):
                raise ValueError(f"HEADERS may not hold {name!r}")
            given.pop(names.get(name.lower(), name), None)
            given[name] = value
        self.headers = given
        """Of every call."""
        self._head = _lines(given)
        self._connect_seconds = connect_seconds
        self._pool: Pool | None = None
        self._tellings: set[asyncio.Task[None]] = set()
        self._tls = tls() if parts.scheme == "https" else None

    def new_pool(self) -> Pool:
        """Of the running loop."""
        parts = self._parts
        return Pool(tcp(parts.hostname or "", parts.port or PORTS[parts.scheme], tls=self._tls))

    async def post(self, path: str, body: Body, headers: Mapping[str, str] | None = None) -> Connection:
        """The head of the answer to a JSON body, whatever its status. `give_back` it.

        Raises:
            EngineError: ``unavailable``.
        """
        parts = (body,) if isinstance(body, bytes) else body
        size = sum(map(len, parts))
        lines = {
            "Content-Type": "application/json",
            "Content-Length": str(size),
            **tracing.headers(),
            **(headers or {}),
        }
        return await self._ask("POST", path, lines, parts, size)

    async def get(self, path: str, *, seconds: float) -> bytes:
        """The whole body of an answer with status 200, from connect to its last byte within ``seconds``.

        Raises:
            EngineError: another status, or ``unavailable``.
        """
        try:
            async with asyncio.timeout(seconds):
                return await _whole(await self._ask("GET", path, {}, (), 0))
        except TimeoutError as exc:
            raise self.unreachable(exc) from exc

    async def ask(self, path: str, body: Body, *, seconds: float) -> bytes:
        """The same of a POST."""
        try:
            async with asyncio.timeout(seconds):
                return await _whole(await self.post(path, body))
        except TimeoutError as exc:
            raise self.unreachable(exc) from exc

    def tell(self, path: str, body: bytes) -> None:
        """Post it beside whatever goes on; how that ends concerns nobody."""
        task = self._here().loop.create_task(self._tell(path, body))
        self._tellings.add(task)
        task.add_done_callback(self._tellings.discard)

    async def _tell(self, path: str, body: bytes) -> None:
        try:
            await self.ask(path, body, seconds=SECONDS_TO_TELL)
        except EngineError as exc:
            logger.info("%s was not told: %s", self._origin + self._target(path), exc)

    async def _ask(
        self, method: str, path: str, headers: Mapping[str, str], body: Sequence[bytes | memoryview], size: int
    ) -> Connection:
        try:
            head = f"{method} {self._target(path)} HTTP/1.1\r\n{self._head}{_lines(headers)}\r\n".encode()
        except ValueError as exc:
            raise EngineError("protocol", str(exc)) from exc
        pool = self._here()
        sent_at = pool.loop.time()
        tries_left = STALE_TRIES
        while True:
            connection = pool.take() or await self._connected(pool)
            try:
                await connection.send(head, body, size)
                return connection
            except ConnectionError as exc:
                if pool.is_closed or not tries_left or pool.loop.time() - sent_at > SECONDS_STALE:
                    raise self.unreachable(exc) from exc
                tries_left -= 1

    async def _connected(self, pool: Pool) -> Connection:
        try:
            async with asyncio.timeout(self._connect_seconds):
                return await pool.connect()
        except (OSError, RuntimeError) as exc:
            # RuntimeError: what uvloop says of some sockets.
            raise self.unreachable(exc, Unreachable) from exc

    def _here(self) -> Pool:
        """The pool of the running loop. One of another loop (tests have many) is left to that loop's end."""
        loop = asyncio.get_running_loop()
        if self._pool is None or self._pool.loop is not loop:
            self._pool = self.new_pool()
            self._tellings = set()
        return self._pool

    async def aclose(self) -> None:
        """Idempotent; the next call opens a new pool."""
        pool = self._pool
        if pool is None or pool.loop is not asyncio.get_running_loop():
            self._pool = None
            return
        # Often just said: that a call has been left.
        await asyncio.gather(*self._tellings)
        self._pool = None
        await pool.aclose()

    def _target(self, path: str) -> str:
        if "://" not in path:
            path = self.base_url + path
        assert path.startswith(self._origin), "a client has one server"
        return path[len(self._origin) :]

    def unreachable(self, exc: BaseException, kind: type[EngineError] = EngineError) -> EngineError:
        """What a failure to connect is told as."""
        return kind("unavailable", f"{self.base_url} cannot be reached: {type(exc).__name__}: {exc}")


class StreamedAnswer(AbstractAsyncContextManager[AsyncIterator[list[D]]], Generic[D]):
    """One call and its answer, as `Engine` promises it: a POST of ``body``, its events told by ``reader``."""

    def __init__(
        self,
        client: HttpClient,
        path: str,
        body: Body,
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
        self._answer = answer = await self._client.post(self._path, body, self._headers)
        try:
            kind = answer.header(b"content-type").partition(";")[0].strip().lower()
            if answer.status != 200:
                raise self._reader.refusal(answer.status, await _explanation(answer), answer.headers)
            if kind in ("text/html", "application/xhtml+xml"):
                raise EngineError("protocol", "the engine answered with a web page; is BASE_URL right?", status=200)
            _check_coding(answer)
        except BaseException:
            answer.give_back()
            raise
        self._is_json = kind == "application/json"
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        self.has_ended = True
        # The last event is here, perhaps not the body's last bytes.
        self._answer.give_back(is_done=self.is_whole)

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
                if self._is_json:
                    # Asked for a stream, some servers answer in one piece all the same.
                    self._reader.feed(await self._answer.read_all(MAX_ANSWER_BYTES), deltas)
                    self._finish(deltas)
                else:
                    self._take(await self._answer.read(), deltas)
        except EngineError as exc:
            self.has_ended = True
            if not deltas:
                raise
            # What came in the same read before the fault was made, and counts.
            self._error = exc
        return deltas

    def _take(self, chunk: bytes, deltas: list[D]) -> None:
        """One read from the engine; an empty one is its end."""
        reader = self._reader
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


async def _whole(answer: Connection) -> bytes:
    try:
        if answer.status != 200:
            raise refusal(answer.status, await _explanation(answer), answer.headers)
        _check_coding(answer)
        return await answer.read_all(MAX_ANSWER_BYTES)
    finally:
        answer.give_back()


async def _explanation(answer: Connection) -> bytes:
    """What a refusal says."""
    return b"" if _coding(answer) else await answer.read_all(MAX_ERROR_BYTES)


def _coding(answer: Connection) -> str:
    """How its body is compressed; empty: not at all."""
    coding = answer.header(b"content-encoding").lower()
    return "" if coding == "identity" else coding


def _check_coding(answer: Connection) -> None:
    if coding := _coding(answer):
        raise EngineError("protocol", f"the engine compresses its answer ({coding[:20]}), asked not to", status=200)


def _host(parts: SplitResult) -> str:
    """As a header names it. Raises ValueError: it cannot be looked up."""
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host.encode("idna").decode()


def _lines(headers: Mapping[str, str]) -> str:
    """Header lines. Raises ValueError."""
    for name, value in headers.items():
        if not value.isprintable():
            raise ValueError(f"the header {name} may hold no line breaks and no control characters")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


@functools.cache
def tls() -> ssl.SSLContext:
    """Reads the system's certificates, once."""
    return ssl.create_default_context()
