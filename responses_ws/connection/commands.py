"""What a connection asks its transport to do. Data; the transport obeys in order."""

import msgspec

from responses_ws.protocol.client_events import InvalidCreate, ResponseCreate


class StartTurn(msgspec.Struct, frozen=True):
    """Run this create now, and tell the connection when it has ended."""

    lane: str | None
    create: ResponseCreate | InvalidCreate


class Send(msgspec.Struct, frozen=True):
    """Write one frame."""

    frame: str


class Close(msgspec.Struct, frozen=True):
    """Close the socket."""

    code: int
    reason: str = ""


Command = StartTurn | Send | Close
