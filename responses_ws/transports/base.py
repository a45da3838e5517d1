"""What all HTTP endpoints share."""

import time
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.views import APIView

from responses_ws.runtime.ids import new_id
from responses_ws.serving.admission import Principal

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
        response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        milliseconds = (time.perf_counter() - began) * 1000
        response["x-request-id"] = new_id("req")
        response["openai-processing-ms"] = str(round(milliseconds))
        response["Server-Timing"] = f"total;dur={milliseconds:.1f}"
        return response

    def get_exception_handler(self) -> Callable[..., HttpResponse]:
        return exception_handler


async def principal_of(request: HttpRequest) -> Principal:
    """Who is asking. Raises Unauthorized."""
    return await authenticator().authenticate({name.lower(): value for name, value in request.headers.items()})
