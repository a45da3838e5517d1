"""What all HTTP endpoints share."""

import time
from collections.abc import Awaitable, Callable
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

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """What every answer says of itself: who it is, and what it took from the whole request to here.

        Of a stream that is its first event, since its headers go before all others.
        """
        began = time.perf_counter()
        request_id = new_id("req")
        logs.about(request_id=request_id)
        live.user_agent.set(request.headers.get("User-Agent", "")[: live.MOST_AGENT])
        tracing.received(request.headers)
        response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        phases = response.get("Server-Timing")
        for name, value in stamps(request_id, began).items():
            response[name] = value
        if phases:
            response["Server-Timing"] = f"{phases}, {response['Server-Timing']}"
        return response

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
