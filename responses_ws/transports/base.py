"""What all HTTP endpoints share."""

import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.views import APIView

from responses_ws.protocol.errors import ApiError
from responses_ws.runtime import live, logs, tracing
from responses_ws.runtime.drain import refuse_while_draining
from responses_ws.runtime.ids import new_id
from responses_ws.runtime.stamps import server_timing, stamps
from responses_ws.serving.admission import Principal, Ticket, enter

from .authentication import authenticator
from .exceptions import exception_handler


class IgnoreAccept(BaseContentNegotiation):
    """SDKs stream with ``Accept: application/json``: the body's ``stream`` decides, nothing else."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Any, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class ApiView(APIView):
    """Our authentication, our errors, no settings of the host project's own API."""

    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()
    content_negotiation_class = IgnoreAccept
    view_is_async = True

    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """The answer, with what every one says of itself: who it is, and what it took from the whole request to here.

        Of a stream that is its first event, since its headers go before all others.
        """
        began = time.perf_counter()
        request_id = new_id("req")
        logs.about(request_id=request_id)
        live.user_agent.set(request.headers.get("User-Agent", "")[: live.MOST_AGENT])
        tracing.received(request.headers)
        response = await self._handled(request, *args, **kwargs)
        phases = response.get("Server-Timing")
        for name, value in stamps(request_id, began).items():
            response[name] = value
        if phases:
            response["Server-Timing"] = f"{phases}, {response['Server-Timing']}"
        return response

    async def _handled(self, given: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """What `APIView.dispatch` does, for handlers that are coroutines."""
        request = self.request = self.initialize_request(given, *args, **kwargs)
        self.args, self.kwargs, self.headers = args, kwargs, self.default_response_headers
        verb = str(request.method).lower()
        try:
            self.initial(request, *args, **kwargs)
            handler: Callable[..., Any] = self.http_method_not_allowed
            if verb in self.http_method_names:
                handler = getattr(self, verb, handler)
            response = handler(request, *args, **kwargs)
            if isawaitable(response):
                response = await response
        except Exception as exc:
            response = self.handle_exception(exc)
        answer: HttpResponseBase = self.finalize_response(request, response, *args, **kwargs)
        return answer

    def get_exception_handler(self) -> Callable[..., HttpResponse]:
        return exception_handler


async def principal_of(request: HttpRequest) -> Principal:
    """Who is asking. Raises Unauthorized."""
    principal = await authenticator().authenticate({name.lower(): value for name, value in request.headers.items()})
    logs.about(project_id=principal.project_id, key_id=principal.api_key_id)
    return principal


async def within_rates(
    principal: Principal, transport: str, answer: Callable[[Ticket], Awaitable[HttpResponseBase]]
) -> HttpResponseBase:
    """The answer of a turn, with the headers that say how many more may come; ``answer`` closes the ticket.

    Raises:
        Overloaded: this process is on its way out.
        RateLimited: nothing has been asked of the database, or of anybody else.
    """
    refuse_while_draining()
    ticket = await enter(principal, transport=transport)
    try:
        response = await answer(ticket)
    except Exception as error:
        # A cancellation is not for us: a background response goes on without its client, and any other turn has
        # closed it.
        ticket.close()
        if isinstance(error, ApiError):
            error.headers = {**ticket.headers(), **error.headers}
        raise
    for name, value in ticket.headers().items():
        response[name] = value
    if ticket.phases:
        response["Server-Timing"] = server_timing(ticket.phases)
    return response
