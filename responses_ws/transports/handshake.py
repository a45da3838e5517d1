"""The WebSocket handshake: who may open a socket, and how a refusal looks."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import (
    ApiError,
    NotFound,
    Overloaded,
    PermissionDenied,
    WebSocketOff,
    websocket_error,
)
from responses_ws.runtime import connections, logs, metrics, tracing
from responses_ws.runtime.drain import refuse_while_draining
from responses_ws.runtime.ids import new_id
from responses_ws.runtime.stamps import encoded, stamps
from responses_ws.serving.admission import enter_socket

from .addresses import addresses
from .authentication import authenticator, scope_headers
from .browsers import may_open, with_subprotocols
from .shares import shares

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Handshake:
    """ASGI middleware around the consumer: authenticates before accepting.

    A refusal is an HTTP answer with the usual JSON error body where the server can give one (uvicorn can). Daphne
    cannot: there the socket is accepted, told the error, and closed with 1008.

    It does not wrap ``send``: that would cost every frame.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        request_id = new_id("req")
        logs.about(connection_id=request_id)
        headers = scope_headers(scope)
        tracing.received(headers)
        project = ""
        try:
            refuse_while_draining()
            if not app_settings.WEBSOCKET:
                raise _websocket_off()
            addresses.check(scope.get("client"), now=time.monotonic())
            _check_room()
            _check_origin(headers)
            headers = with_subprotocols(headers, scope.get("subprotocols", ()))
            principal = await authenticator().authenticate(headers)
            project = str(principal.project_id)
            logs.about(project_id=principal.project_id, key_id=principal.api_key_id)
            if not await shares.admit(principal.project_id, headers.get("authorization", "")):
                raise _websocket_off()
            ticket = await enter_socket(principal)
        except ApiError as error:
            metrics.handshakes_refused.add((error.code or error.type, project))
            await _refuse(error, scope, receive, send, encoded(stamps(request_id, began)))
            return
        # What stands here stays for as long as the socket does. The router's scope is ours alone.
        scope |= {"principal": principal, "request_headers": headers, "connection_id": request_id, "asked_at": began}
        if logs.access.isEnabledFor(logging.INFO):
            logs.came_to_pass("socket opened", {})
        try:
            await self._app(scope, receive, send)
        finally:
            ticket.close()
            if logs.access.isEnabledFor(logging.INFO):
                logs.came_to_pass("socket closed", {"seconds": round(time.perf_counter() - began, 1)})


def _websocket_off() -> ApiError:
    return WebSocketOff('WebSocket mode is switched off here. Use POST with "stream": true.')


def _check_room() -> None:
    """A process has files for so many sockets, and memory. Before anything is asked about who it is."""
    if connections.live_sockets() >= connections.most_sockets():
        raise Overloaded("Too many connections are open here. Please try again.", headers={"retry-after": "1"})


def _check_origin(headers: dict[str, str]) -> None:
    """Programs send no Origin. A browser page does, and must be of an allowed site."""
    origin = headers.get("origin")
    if origin is not None and not may_open(origin, headers.get("host", "")):
        raise PermissionDenied("This origin may not open a socket here.", code="origin_not_allowed")


async def no_such_path(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """ASGI application for every other path: 404.

    Where no route matches, Channels raises: anybody who mistypes a base URL would get a 500 and leave a traceback.
    """
    error = NotFound("There is no WebSocket at this path; that of the Responses API ends in /responses.")
    await _refuse(error, scope, receive, send, encoded(stamps(new_id("req"), time.perf_counter())))


async def _refuse(
    error: ApiError, scope: dict[str, Any], receive: Receive, send: Send, stamped: list[tuple[bytes, bytes]]
) -> None:
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        body = msgspec.json.encode({"error": error.body()})
        response_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if error.status == 401:
            response_headers.append((b"www-authenticate", b"Bearer"))
        response_headers += [*stamped, *encoded(error.headers)]
        await send({"type": "websocket.http.response.start", "status": error.status, "headers": response_headers})
        await send({"type": "websocket.http.response.body", "body": body})
        return
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": websocket_error(error)})
    await send({"type": "websocket.close", "code": 1008})
