"""Errors that a client may see, and how they are spelled on the two doors."""

from typing import Any

import msgspec


class ApiError(Exception):
    """A refusal or failure that the client is told about.

    Raise a subclass where the fault is known. ``message`` is shown to the client: it names the offending value
    and never quotes an unknown exception.

    Source: the error objects of the OpenAI API; the nested WebSocket envelope with its integer ``status``.
    """

    status = 500
    type = "server_error"
    code: str | None = "server_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = headers or {}
        if code is not None:
            self.code = code

    def body(self) -> dict[str, Any]:
        """The error object: ``{message, type, param, code}``, all four keys always present."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


class InvalidRequest(ApiError):
    """400: the request can never succeed as it stands."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class PreviousResponseNotFound(InvalidRequest):
    """400: unknown, foreign, deleted, evicted or still running: all get the same bytes.

    Source: 400 and this code, not 404, in OpenAI's WebSocket guide.
    """

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", param="previous_response_id")


class InvalidEncryptedContent(InvalidRequest):
    """400: a sealed item that does not open: changed, of somebody else, too old. Why, nobody is told."""

    code = "invalid_encrypted_content"

    def __init__(self, param: str) -> None:
        super().__init__("The encrypted content could not be verified, or has expired.", param=param)


class ConversationLocked(InvalidRequest):
    """400: another response is writing this conversation. Worth another try when that has ended.

    Source: status, code and param of the OpenAI API.
    """

    code = "conversation_locked"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"Another response is being written to conversation '{conversation_id}'. Please try again later.",
            param="conversation",
        )


class Unauthorized(ApiError):
    """401: no key, or one that is not good."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class PermissionDenied(ApiError):
    """403: the key is good, but not for this."""

    status = 403
    type = "invalid_request_error"
    code = "permission_denied"


class NotFound(ApiError):
    """404: no such object for this owner."""

    status = 404
    type = "invalid_request_error"
    code: str | None = "not_found"


class ModelNotFound(NotFound):
    """404 (400 on a socket is not used: clients read the code): the model is not served to this key."""

    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model '{model}' does not exist or you do not have access to it.", param="model")


class Conflict(ApiError):
    """409: something else is under way, or was before. ``x-should-retry`` tells the SDKs whether to ask again."""

    status = 409
    type = "conflict"

    def __init__(self, message: str, *, code: str, is_passing: bool = False) -> None:
        super().__init__(message, code=code, headers={"x-should-retry": "true" if is_passing else "false"})


class ConversationNotFound(NotFound):
    """404: unknown, foreign and deleted look the same."""

    code = None

    def __init__(self, conversation_id: str) -> None:
        super().__init__(f"Conversation with id '{conversation_id}' not found.", param="conversation")


class PromptNotFound(NotFound):
    """404: no such template for this project, or no such published version."""

    code = "prompt_not_found"

    def __init__(self, prompt_id: str, version: str | None) -> None:
        which = f" and version '{version}'" if version is not None else ""
        super().__init__(f"Prompt with id '{prompt_id}'{which} not found.", param="prompt")


class PayloadTooLarge(ApiError):
    """413: more bytes than the limit."""

    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class UnsupportedEncoding(ApiError):
    """415: a content encoding that is not served."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_encoding"


class WebSocketOff(ApiError):
    """426: no WebSocket mode here. Of all refusals the one after which Codex goes to HTTP at once."""

    status = 426
    type = "invalid_request_error"
    code = "websocket_off"


class RateLimited(ApiError):
    """429: worth another try later; ``headers`` say when."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class InsufficientQuota(ApiError):
    """429: a budget, or prepaid credit, does not cover it. Not worth another try before somebody has paid.

    Source: type and codes of the OpenAI API. ``x-should-retry`` keeps its SDKs from trying all the same.
    """

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code, headers={"x-should-retry": "false"})


class ServerError(ApiError):
    """500: our fault or the engine's."""


class Interrupted(ServerError):
    """500: the server ends before the turn does. What was made is billed as that of a server that died."""

    def __init__(self) -> None:
        super().__init__("The server was restarted before this response was finished.")


class EngineFault(ServerError):
    """500: the engine did what it was asked not to do; the message says what."""


class Overloaded(ApiError):
    """503: worth another try."""

    status = 503
    type = "service_unavailable_error"
    code = "server_is_overloaded"


# Source: the codes that `response.failed` may carry in the official types, as far as we can produce them.
_RESPONSE_ERROR_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt"})


def response_error(error: ApiError) -> dict[str, Any]:
    """The ``error`` of a failed Response: ``{code, message}`` with a code that the official types know."""
    code = error.code if error.code in _RESPONSE_ERROR_CODES else None
    if code is None:
        code = "invalid_prompt" if error.status == 400 else "server_error"
    return {"code": code, "message": error.message}


def failure_of(error: dict[str, Any]) -> ApiError:
    """The other way round: what went wrong, given the ``error`` of a failed Response."""
    kinds = {"rate_limit_exceeded": RateLimited, "invalid_prompt": InvalidRequest}
    kind = kinds.get(error["code"], ServerError)
    return kind(error["message"], code=error["code"])


def websocket_error(error: ApiError, *, stream_id: str | None = None, sequence_number: int = 0) -> str:
    """One ``error`` frame.

    Nested, with an integer ``status``: without it Codex ignores the frame and waits for minutes. ``code`` is
    always a string and ``sequence_number`` always present, because strict clients refuse the event otherwise.
    """
    event: dict[str, Any] = {"type": "error", "sequence_number": sequence_number, "status": error.status}
    body = error.body()
    body["code"] = body["code"] or "invalid_request_error"
    if error.headers:
        body["headers"] = error.headers
        event["headers"] = error.headers
    event["error"] = body
    if stream_id is not None:
        event["stream_id"] = stream_id
    return msgspec.json.encode(event).decode()
