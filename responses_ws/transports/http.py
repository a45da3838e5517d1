"""The HTTP endpoints as an application of their own, past the host project's middleware."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.http import HttpRequest, HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.urls import Resolver404, ResolverMatch, URLResolver, set_script_prefix
from django.urls.resolvers import RoutePattern

from responses_ws.protocol.errors import ServerError

from .exceptions import error_response

logger = logging.getLogger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]


class HttpRouter(ASGIHandler):
    """Serves what matches our URLs below one of the prefixes; all else goes to ``application``.

    Django's own way costs a request a thread, four hops between threads and each of the project's middleware: more than
    the rest of a turn. Here are none of these, and no ``request_started`` either: our views ask the database elsewhere.
    """

    def __init__(self, application: Application, prefixes: Sequence[str]) -> None:
        self._application = application
        self._resolvers = [URLResolver(RoutePattern(f"/{prefix}"), "responses_ws.urls") for prefix in prefixes]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match = self._resolved(scope) if scope["type"] == "http" else None
        if match is None:
            await self._application(scope, receive, send)
            return
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with body:
            set_script_prefix(get_script_prefix(scope))
            request, answer = self.create_request(scope, body)
            async with _Client(receive):
                if request is not None:
                    answer = await _answered(request, match)
                await self.send_response(answer, send)

    def _resolved(self, scope: Any) -> ResolverMatch | None:
        path = scope["path"].removeprefix(get_script_prefix(scope))
        for resolver in self._resolvers:
            try:
                return resolver.resolve(path)
            except Resolver404:
                continue
        return None


async def _answered(request: HttpRequest, match: ResolverMatch) -> HttpResponseBase:
    request.resolver_match = match
    try:
        answer: HttpResponseBase = await match.func(request, *match.args, **match.kwargs)
        if isinstance(answer, SimpleTemplateResponse):
            # DRF's own answers: to OPTIONS.
            answer.render()
    except Exception:
        logger.exception("A request broke outside of its view's error handling")
        answer = error_response(ServerError("The server had an error while processing your request."))
    return answer


class _Client:
    """The time in which the client may leave: what is done for it is then cancelled."""

    def __init__(self, receive: Any) -> None:
        self._receive = receive
        self._has_left = False

    async def __aenter__(self) -> None:
        self._working = asyncio.current_task()
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def __aexit__(self, kind: type[BaseException] | None, *_exc_info: object) -> bool:
        self._listening.cancel()
        if not self._has_left or self._working is None:
            return False
        self._working.uncancel()
        return kind is asyncio.CancelledError

    async def _listen(self) -> None:
        # After the body nothing else is told.
        await self._receive()
        self._has_left = True
        if self._working is not None:
            self._working.cancel()
