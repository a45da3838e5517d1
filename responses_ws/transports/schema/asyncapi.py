"""WebSocket mode as an AsyncAPI 3.0 document.

Source: https://www.asyncapi.com/docs/reference/specification/v3.0.0
"""

from collections.abc import Sequence
from typing import Any

import responses_ws

from . import events
from .components import components, reference, text_of
from .events import Event, type_of

ABOUT = (
    "WebSocket mode of the Responses API: one JSON object per text frame, both ways. Responses of one lane run in "
    "order, lanes beside each other. The server says nothing before the first request."
)
_HANDSHAKE = {
    "type": "object",
    "properties": {
        "Authorization": {"type": "string", "description": "`Bearer` and an API key."},
        "OpenAI-Beta": {
            "type": "string",
            "description": "`responses_rollout=v1` opts in to `response.done` and `response.append`. Else ignored.",
        },
    },
    "required": ["Authorization"],
}


def asyncapi(*, host: str = "127.0.0.1:8000", base: str = "/v1", secure: bool = False) -> dict[str, Any]:
    """The document. ``host`` may have a port; ``base`` is the path that the API is mounted at.

    ``secure``: the socket's scheme is ``wss``.
    """
    said, heard = events.server(), events.client()
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Responses API, WebSocket mode", "version": responses_ws.__version__, "description": ABOUT},
        "defaultContentType": "application/json",
        "servers": {
            "this": {
                "host": host,
                "pathname": base or "/",
                "protocol": "wss" if secure else "ws",
                "security": [{"$ref": "#/components/securitySchemes/key"}],
            }
        },
        "channels": {
            "responses": {
                "address": "/responses",
                "title": "Responses",
                "description": "One socket.",
                "messages": {type_of(event): {"$ref": _message_place(event)} for event in [*heard, *said]},
                "bindings": {"ws": {"method": "GET", "headers": _HANDSHAKE, "bindingVersion": "0.1.0"}},
            }
        },
        # Named from where the server stands: it receives what clients send.
        "operations": {
            "receiveClientEvent": _operation("receive", "What a client may say.", heard),
            "sendServerEvent": _operation("send", "What the server says.", said),
        },
        "components": {
            "messages": {type_of(event): _message(event) for event in [*heard, *said]},
            "schemas": components([*heard, *said]),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}},
        },
    }


def _message_place(event: Event) -> str:
    return f"#/components/messages/{type_of(event)}"


def _message(event: Event) -> dict[str, Any]:
    text = text_of(event).partition("\n")[0]
    return {"name": type_of(event), "title": type_of(event), "summary": text, "payload": reference(event)}


def _operation(action: str, summary: str, listed: Sequence[Event]) -> dict[str, Any]:
    return {
        "action": action,
        "summary": summary,
        "channel": {"$ref": "#/channels/responses"},
        "messages": [{"$ref": f"#/channels/responses/messages/{type_of(event)}"} for event in listed],
    }
