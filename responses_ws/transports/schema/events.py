"""The events of both directions, found where they are defined."""

import msgspec

from responses_ws.protocol import client_events, server_events
from responses_ws.protocol.object_shapes import Error

Event = type[msgspec.Struct]

SOCKET_ONLY = ("response.steer.", "response.done")
"""How the types of those server events begin that no SSE stream has."""


def client() -> list[Event]:
    """What a client may say on a socket, in the order of the module."""
    return [value for value in vars(client_events).values() if _is_event(value, client_events.__name__)]


def server() -> list[Event]:
    """What we may say on a socket, ``error`` last."""
    ours = [value for value in vars(server_events).values() if _is_event(value, server_events.__name__)]
    return [*(event for event in ours if not event.__subclasses__()), Error]


def streamed() -> list[Event]:
    """What we may say in an SSE stream."""
    return [event for event in server() if event is not Error and not type_of(event).startswith(SOCKET_ONLY)]


def type_of(event: Event) -> str:
    """The event's ``type`` on the wire."""
    return str(event.__struct_config__.tag)


def _is_event(value: object, module: str) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == module
        and value.__struct_config__.tag is not None
    )
