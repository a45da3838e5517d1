"""What model servers say when they refuse, as EngineError. No IO."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .base import EngineError, ErrorKind

MAX_HINTS = 16
MAX_HINT_CHARACTERS = 128

_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
# vLLM, SGLang, llama.cpp, OpenAI and LiteLLM each word it differently; all are 400s.
_CONTEXT_PHRASES = (
    "context length",
    "context window",
    "context size",
    "maximum context",
    "maximum model length",
    "max_model_len",
)
_CODES: dict[str, ErrorKind] = {
    "rate_limit_exceeded": "rate_limited",
    "rate_limit_error": "rate_limited",
    "too_many_requests": "rate_limited",
    "slow_down": "rate_limited",
    "insufficient_quota": "rate_limited",
    "overloaded": "overloaded",
    "overloaded_error": "overloaded",
    "server_is_overloaded": "overloaded",
    "service_unavailable": "overloaded",
    # llama.cpp, while it loads its model.
    "unavailable_error": "unavailable",
    "timeout": "timeout",
    "timeout_error": "timeout",
    "invalid_request_error": "bad_request",
    "invalid_prompt": "bad_request",
    "badrequesterror": "bad_request",
    "authentication_error": "auth",
    "invalid_api_key": "auth",
    "permission_error": "auth",
}


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> EngineError:
    """The error for an HTTP answer that is not a 2xx."""
    message, codes = _explained(body)
    is_quote = bool(message)
    message = message or f"the engine answered {status}"
    kind = _kind(status, message, codes)
    return EngineError(kind, message, status=status, headers=retry_hints(headers.items()), is_quote=is_quote)


def error_in_stream(error: Any, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> EngineError:
    """The error for an error object in a stream that had begun well; ``status``: where one is told beside it."""
    message, codes = _of(error)
    if status is None:
        status = next((int(code) for code in codes if code.isdecimal() and 400 <= int(code) < 600), None)
    is_quote = bool(message)
    message = message or "the engine reported an error in its stream"
    kind = _kind(status, message, codes)
    hints = retry_hints((headers or {}).items())
    when = _TRY_AGAIN.search(message) if kind in ("rate_limited", "overloaded") and not hints else None
    if when is not None:
        seconds = float(when[1]) / (1000 if when[2] == "ms" else 1)
        hints["retry-after"] = str(math.ceil(seconds))
    return EngineError(kind, message, status=status, headers=hints, is_quote=is_quote)


# Source: what OpenAI writes where it cannot send a header, and clients read.
_TRY_AGAIN = re.compile(r"try again in (\d{1,6}(?:\.\d{1,6})?)(ms|s)\b")


def retry_hints(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers that tell when to come back, lower-cased."""
    hints: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        is_hint = name in ("retry-after", "retry-after-ms") or name.startswith("x-ratelimit-")
        if is_hint and len(hints) < MAX_HINTS and len(value) <= MAX_HINT_CHARACTERS:
            hints[name] = value
    return hints


def _kind(status: int | None, message: str, codes: list[str]) -> ErrorKind:
    if status is None or status in (400, 413, 422, 500):
        # Some servers wrap an overlong prompt in a 500, or report it after a 200.
        lowered = message.lower()
        if _CONTEXT_CODES.intersection(codes) or any(phrase in lowered for phrase in _CONTEXT_PHRASES):
            return "context_length"
    if status is None:
        return next((_CODES[code] for code in codes if code in _CODES), "engine")
    if status in (401, 403):
        return "auth"
    if status in (408, 504):
        return "timeout"
    if status == 429:
        return "rate_limited"
    # 502 is what a proxy says of a server that is not there.
    if status == 502 or "unavailable_error" in codes:
        return "unavailable"
    # 529 is what Anthropic-style gateways say for 503.
    if status in (503, 529):
        return "overloaded"
    if status >= 500:
        return "engine"
    return "bad_request" if status >= 400 else "protocol"


def _explained(body: bytes) -> tuple[str, list[str]]:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace").strip()
        # A proxy's page explains nothing to our client.
        return ("" if text.startswith("<") else text[:500]), []
    if isinstance(decoded, list) and decoded:
        decoded = decoded[0]
    if isinstance(decoded, dict):
        return _of(decoded.get("error") or decoded)
    return (decoded[:500] if isinstance(decoded, str) else ""), []


def _of(error: Any) -> tuple[str, list[str]]:
    """(message, lower-cased codes, types and statuses) of an error object, or of a bare string."""
    if not isinstance(error, dict):
        return (error[:500] if isinstance(error, str) else ""), []
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    codes = [str(error[key]).lower() for key in ("code", "type", "status") if error.get(key) is not None]
    return message[:500], codes
