"""One short visit to an MCP server that somebody else has named, through the official SDK."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx2
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from responses_ws.runtime.http import Gate, Refused, Target

T = TypeVar("T")
Use = Callable[[Client], Awaitable[T]]

# What these say of a request is its URL, whose path may be a secret, and at DEBUG its content.
for _name, _level in (("httpx2", logging.WARNING), ("httpcore2", logging.WARNING), ("mcp", logging.CRITICAL)):
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(_level)

# A server of the older kind has nothing where the newer protocol looks. Source: the MCP specification's transports.
_NOTHING_THERE = (404, 405)
_STAND_INS = frozenset({"Server returned an error response", "Not Found", "Session terminated"})
"""What the SDK says in place of a server that has said nothing in the protocol."""


class Unreachable(Exception):
    """The server cannot be reached, or answers with this HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def visit(
    target: Target, gate: Gate, use: Use[T], *, headers: Mapping[str, str], seconds: float, max_bytes: int
) -> T:
    """What ``use`` makes of the server. Every connection of it goes through ``gate``.

    Raises:
        Unreachable: over HTTP.
        MCPError: in the protocol.
    """
    transport = _Guarded(gate, max_bytes)

    def http(*_args: Any, **_options: Any) -> httpx2.AsyncClient:
        # Proxies of the environment would be a way around the gate.
        timeout = httpx2.Timeout(seconds)
        return httpx2.AsyncClient(transport=transport, headers=dict(headers), timeout=timeout, trust_env=False)

    is_old = target.path.partition("?")[0].endswith("/sse")
    try:
        if not is_old:
            try:
                async with http() as client, Client(streamable_http_client(target.url, http_client=client)) as server:
                    transport.is_there = True
                    return await use(server)
            except Exception:
                if transport.is_there or transport.status not in _NOTHING_THERE:
                    raise
        async with Client(sse_client(target.url, httpx_client_factory=http), mode="legacy") as server:
            return await use(server)
    except Exception as exc:
        raise _cause(exc, transport) from None


def _cause(exc: BaseException, transport: "_Guarded") -> BaseException:
    """What is behind an exception of the SDK's, in words without the URL."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if transport.refusal is not None:
        return Unreachable(f"The MCP server must not be reached: {transport.refusal}.", 502)
    if isinstance(exc, MCPError) and str(exc) in _STAND_INS and transport.status >= 400:
        return Unreachable(f"The MCP server answered with the status {transport.status}.", transport.status)
    if isinstance(exc, httpx2.HTTPStatusError):
        status = exc.response.status_code
        return Unreachable(f"The MCP server answered with the status {status}.", status)
    if isinstance(exc, httpx2.TimeoutException):
        return Unreachable("The MCP server did not answer in time.", 504)
    if isinstance(exc, httpx2.HTTPError | OSError):
        return Unreachable("The MCP server could not be reached.", 502)
    return exc


class _Guarded(httpx2.AsyncHTTPTransport):
    """Connects to the address that was checked, whatever the name stands for a moment later."""

    def __init__(self, gate: Gate, max_bytes: int) -> None:
        super().__init__(trust_env=False)
        self._gate = gate
        self._max_bytes = max_bytes
        self.status = 0
        """Of the newest answer."""
        self.is_there = False
        """The server has been spoken to in the newer protocol."""
        self.refusal: Refused | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            target = self._gate.target(str(request.url))
            address = (await self._gate.addresses(target))[0]
        except Refused as exc:
            self.refusal = exc
            raise httpx2.ConnectError("refused") from exc
        except OSError as exc:
            raise httpx2.ConnectError("no such host") from exc
        pinned = httpx2.Request(
            method=request.method,
            url=request.url.copy_with(host=address),
            # The name stays in the Host header, and TLS asks for it.
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": target.host},
        )
        response = await super().handle_async_request(pinned)
        self.status = response.status_code
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, self._max_bytes)
        return response


class _Counted(httpx2.AsyncByteStream):
    """A body that ends with an error where it gets too long."""

    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self._stream = stream
        self._left = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._left -= len(piece)
            if self._left < 0:
                raise httpx2.ReadError("the answer is too long")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
