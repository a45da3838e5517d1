"""What a connection asks its transport to do. Data; the transport obeys in order."""

from typing import Any

import msgspec

from responses_ws.protocol.client_events import InvalidCreate, ResponseCreate
from responses_ws.protocol.steering import Steer


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


class Append(msgspec.Struct, frozen=True):
    """Outputs for a response that waits for them."""

    input: list[dict[str, Any]]


class Tell(msgspec.Struct, frozen=True):
    """Pass a word on to the turn that runs on this lane."""

    lane: str | None
    word: Steer | Append


Command = StartTurn | Send | Tell | Close
