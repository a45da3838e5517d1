"""What every answer says of itself, at every door."""

import time
from collections.abc import Mapping


def stamps(request_id: str, began: float) -> dict[str, str]:
    """Who it is, and what it took from ``began`` (by `time.perf_counter`) to here.

    Source: the headers of OpenAI's answers; Server-Timing as in W3C's document of that name.
    """
    milliseconds = (time.perf_counter() - began) * 1000
    return {
        "x-request-id": request_id,
        "openai-processing-ms": str(round(milliseconds)),
        "Server-Timing": server_timing({"total": milliseconds}),
    }


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """As ASGI wants them."""
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def server_timing(phases: Mapping[str, float]) -> str:
    """Milliseconds, by name of what has taken them."""
    return ", ".join(f"{name};dur={milliseconds:.1f}" for name, milliseconds in phases.items())
