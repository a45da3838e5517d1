"""What all HTTP endpoints share."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.views import APIView

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

    def get_exception_handler(self) -> Callable[..., HttpResponse]:
        return exception_handler


async def principal_of(request: HttpRequest) -> Principal:
    """Who is asking. Raises Unauthorized."""
    return await authenticator().authenticate({name.lower(): value for name, value in request.headers.items()})
