"""The socket of the office's live view: for members of staff who are logged in, and for pages of this site."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from channels.auth import AuthMiddlewareStack
from django.conf import settings
from django.contrib import auth
from django.db import DatabaseError
from django.http import HttpRequest
from django.http.request import is_same_domain, split_domain_port, validate_host

from responses_ws.protocol.errors import ApiError
from responses_ws.runtime import dbpool, drain, logs
from responses_ws.runtime.watching import watching

from .authentication import scope_headers

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

PERMISSION = "responses_ws.view_usagerecord"
SECONDS_BETWEEN_CHECKS = 2.0
"""Who has logged out, or may not look any more, sees nothing new after this."""
NOT_ALLOWED = 4403
"""Closes the socket of who is not, or no longer, allowed to look: the page does not come back by itself."""
_PORTS = {"http": "80", "https": "443"}


class SameSite:
    """ASGI middleware: only pages of this site may open a socket. Browsers send its cookies from any other, too.

    The Origin has to be the host that was asked, which is one of ``ALLOWED_HOSTS``, or one of
    ``CSRF_TRUSTED_ORIGINS``. Stricter than the validator of Channels, to which ``ALLOWED_HOSTS = ["*"]`` allows all.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        headers = scope_headers(scope)
        if is_of_this_site(headers.get("origin", ""), headers):
            await self._app(scope, receive, send)
            return
        await receive()
        # Before it is accepted: the answer to the handshake is 403.
        await send({"type": "websocket.close"})


def is_of_this_site(origin: str, headers: dict[str, str]) -> bool:
    """Whether a page of this Origin may act for its visitor here."""
    try:
        parts = urlsplit(origin)
        netloc = parts.netloc.lower()
    except ValueError:
        return False
    if not netloc or parts.scheme not in _PORTS:
        return False
    host = headers.get("host", "")
    if settings.USE_X_FORWARDED_HOST:
        host = headers.get("x-forwarded-host", host)
    host, port = host.lower(), _PORTS[parts.scheme]
    allowed = settings.ALLOWED_HOSTS or ([".localhost", "127.0.0.1", "[::1]"] if settings.DEBUG else [])
    if netloc.removesuffix(f":{port}") == host.removesuffix(f":{port}"):
        return bool(validate_host(split_domain_port(host)[0], allowed))
    return any(_matches(origin.lower(), netloc, parts.scheme, trusted) for trusted in settings.CSRF_TRUSTED_ORIGINS)


def _matches(origin: str, netloc: str, scheme: str, trusted: str) -> bool:
    """As Django's CSRF protection reads ``CSRF_TRUSTED_ORIGINS``."""
    if "*" not in trusted:
        return origin == trusted.lower()
    pattern = urlsplit(trusted.lower())
    return pattern.scheme == scheme and is_same_domain(netloc, pattern.netloc.lstrip("*"))


async def watch(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """ASGI application behind `AuthMiddlewareStack`: a picture a second (`runtime.watching.Picture`), in JSON.

    What is done about what is seen is posted to pages of the admin; nothing that is sent here is read.
    """
    logs.about(connection_id="live view")
    await receive()
    await send({"type": "websocket.accept"})
    showing = asyncio.ensure_future(_show(scope["session"].session_key, send))
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({showing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            return
        code, reason = showing.result()
        with contextlib.suppress(OSError):
            await send({"type": "websocket.close", "code": code, "reason": reason})
    finally:
        for task in (showing, leaving):
            task.cancel()
        await asyncio.gather(showing, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def _show(session_key: str | None, send: Send) -> tuple[int, str]:
    """Show pictures, until there is a reason not to: gives code and reason of the close."""
    number = 0
    checked_at = float("-inf")
    async with contextlib.AsyncExitStack() as stack:
        while True:
            if time.monotonic() - checked_at >= SECONDS_BETWEEN_CHECKS:
                try:
                    is_allowed = await dbpool.run(may_watch, session_key)
                except (ApiError, DatabaseError):
                    return 1013, "the database does not answer"
                if not is_allowed:
                    return NOT_ALLOWED, "not allowed"
                if checked_at < 0:
                    await stack.enter_async_context(watching.watch())
                checked_at = time.monotonic()
            if drain.is_draining():
                return 1012, "the server restarts"
            number, frame = await watching.next(number)
            try:
                await send({"type": "websocket.send", "text": frame})
            except OSError:
                return 1006, ""


def may_watch(session_key: str | None) -> bool:
    """Whether this session is that of a member of staff who may see usage: now, whatever it was before."""
    if not session_key:
        return False
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = auth.get_user(request)
    return bool(user.is_active and user.is_staff and user.has_perm(PERMISSION))


live_application = SameSite(AuthMiddlewareStack(watch))
