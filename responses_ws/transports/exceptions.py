"""Errors as HTTP answers."""

import logging
from typing import Any

import msgspec
from django.http import Http404, HttpResponse
from rest_framework.exceptions import APIException, MethodNotAllowed

from responses_ws.protocol.errors import ApiError, ServerError

logger = logging.getLogger(__name__)


def json_response(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    """A JSON answer. Never cached: it belongs to one key."""
    response = HttpResponse(msgspec.json.encode(content), content_type="application/json", status=status)
    response["Cache-Control"] = "no-store"
    for name, value in (headers or {}).items():
        response[name] = value
    return response


def error_response(error: ApiError) -> HttpResponse:
    """``{"error": {message, type, param, code}}`` with the error's status and retry hints."""
    headers = dict(error.headers)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response({"error": error.body()}, status=error.status, headers=headers)


def exception_handler(exc: Exception, context: dict[str, Any]) -> HttpResponse:
    """DRF's hook, for our views only: everything becomes an error object."""
    if isinstance(exc, ApiError):
        return error_response(exc)
    if isinstance(exc, Http404 | APIException):
        error = ApiError(str(exc) or "Not found.", code="invalid_request_error")
        error.status = getattr(exc, "status_code", 404)
        error.type = "invalid_request_error"
        response = error_response(error)
        if isinstance(exc, MethodNotAllowed):
            response["Allow"] = ", ".join(context["view"].allowed_methods)
        return response
    logger.error("A view broke", exc_info=exc)
    return error_response(ServerError("The server had an error while processing your request."))
