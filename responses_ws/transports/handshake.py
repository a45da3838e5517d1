"""The WebSocket handshake: who may open a socket, and how a refusal looks."""

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import msgspec

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import ApiError, NotFound, PermissionDenied, WebSocketOff, websocket_error
from responses_ws.runtime import metrics
from responses_ws.runtime.ids import new_id
from responses_ws.serving.admission import enter_socket

from .authentication import authenticator, scope_headers
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
        headers = scope_headers(scope)
        project = ""
        try:
            if not app_settings.WEBSOCKET:
                raise _websocket_off()
            _check_origin(headers)
            principal = await authenticator().authenticate(headers)
            project = str(principal.project_id)
            if not await shares.admit(principal.project_id, headers.get("authorization", "")):
                raise _websocket_off()
            ticket = await enter_socket(principal)
        except ApiError as error:
            metrics.handshakes_refused.add((error.code or error.type, project))
            await _refuse(error, scope, receive, send)
            return
        with closing(ticket):
            await self._app({**scope, "principal": principal, "request_headers": headers}, receive, send)


def _websocket_off() -> ApiError:
    return WebSocketOff('WebSocket mode is switched off here. Use POST with "stream": true.')


def _check_origin(headers: dict[str, str]) -> None:
    """Programs send no Origin. A browser page does, and must be of an allowed site."""
    origin = headers.get("origin")
    if origin is not None and origin not in app_settings.ALLOWED_ORIGINS:
        raise PermissionDenied("This origin may not open a socket here.", code="origin_not_allowed")


async def no_such_path(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """ASGI application for every other path: 404.

    Where no route matches, Channels raises: anybody who mistypes a base URL would get a 500 and leave a traceback.
    """
    await _refuse(
        NotFound("There is no WebSocket at this path; that of the Responses API ends in /responses."),
        scope,
        receive,
        send,
    )


async def _refuse(error: ApiError, scope: dict[str, Any], receive: Receive, send: Send) -> None:
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        body = msgspec.json.encode({"error": error.body()})
        response_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", new_id("req").encode()),
        ]
        if error.status == 401:
            response_headers.append((b"www-authenticate", b"Bearer"))
        response_headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
        await send({"type": "websocket.http.response.start", "status": error.status, "headers": response_headers})
        await send({"type": "websocket.http.response.body", "body": body})
        return
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": websocket_error(error)})
    await send({"type": "websocket.close", "code": 1008})
