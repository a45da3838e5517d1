"""The documents and their viewer, served to everybody: schemas hold no secrets."""

from typing import Any
from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.templatetags.static import static

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import NotFound
from responses_ws.transports.exceptions import json_response
from responses_ws.transports.views import ApiView

from .asyncapi import asyncapi
from .openapi import openapi


class DocumentView(ApiView):
    """What the pages of this module share: they can be switched off."""

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not app_settings.API_DOCS:
            raise NotFound("The API's documents are switched off here.")


class OpenApiView(DocumentView):
    """``GET /v1/openapi.json``."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return json_response(openapi(base=_base(request)))


class AsyncApiView(DocumentView):
    """``GET /v1/asyncapi.json``."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return json_response(asyncapi(host=request.get_host(), base=_base(request), secure=request.is_secure()))


def _base(request: HttpRequest) -> str:
    """Where the API is mounted: beside this document."""
    return request.path.rpartition("/")[0]


class DocsView(DocumentView):
    """``GET /v1/docs``: a page that shows both. It asks nobody else for anything, and its policy says so."""

    def get(self, request: HttpRequest) -> HttpResponse:
        response = render(request, "responses_ws/docs.html")
        response["Content-Security-Policy"] = _policy()
        response["X-Content-Type-Options"] = "nosniff"
        response["Referrer-Policy"] = "no-referrer"
        return response


def _policy() -> str:
    # Static files may be on a host of their own.
    parts = urlsplit(static("responses_ws/docs.js"))
    files = f"'self' {parts.scheme}://{parts.netloc}" if parts.netloc else "'self'"
    return (
        f"default-src 'none'; script-src {files}; style-src {files}; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
