"""What a client is told when a turn fails."""

import logging

from responses_ws.engines.base import EngineError
from responses_ws.protocol.errors import ApiError, EngineFault, InvalidRequest, Overloaded, RateLimited, ServerError
from responses_ws.runtime.dbpool import unavailable
from responses_ws.runtime.sql import UNAVAILABLE

logger = logging.getLogger(__name__)


def told(exc: Exception, response_id: str) -> ApiError:
    """What the client is told of a failure. An unknown exception is logged and never quoted."""
    if isinstance(exc, EngineFault):
        # Without the words, which are the model's.
        logger.warning("Response %s: the engine did not keep to its request", response_id)
    if isinstance(exc, ApiError):
        return exc
    if isinstance(exc, UNAVAILABLE):
        return unavailable(type(exc).__name__)
    if not isinstance(exc, EngineError):
        logger.error("Response %s failed", response_id, exc_info=exc)
        return ServerError("The server had an error while processing your request.")
    if exc.kind == "context_length":
        return InvalidRequest(exc.message, code="context_length_exceeded", param="input")
    if exc.kind == "bad_request":
        return InvalidRequest(exc.message, code="invalid_request_error")
    logger.warning("Response %s: the engine failed (%s): %s", response_id, exc.kind, exc)
    if exc.kind == "rate_limited":
        return RateLimited("The engine is at its rate limit. Please try again later.", headers=exc.headers)
    if exc.kind in ("overloaded", "unavailable"):
        return Overloaded(
            "The engine is currently overloaded or unavailable. Please try again later.", headers=exc.headers
        )
    return ServerError("The engine failed to answer.")
