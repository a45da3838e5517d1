"""What a hostile client can make the server write down."""

import asyncio
import base64
import os
import struct
import time
from collections.abc import Callable

import pytest

from tests.live import Server

from .raw import Door

pytestmark = pytest.mark.conformance

SOCKETS = 60
BYTES_PER_FRAME = 300
LINES, SECONDS = 20, 10
"""What the brake lets through."""


def masked(payload: bytes, *, opcode: int = 1) -> bytes:
    """One whole frame as a client sends it; any bytes may be its text.

    Source: RFC 6455, section 5.2.
    """
    key = os.urandom(4)
    head = struct.pack("!BB", 0x80 | opcode, 0x80 | len(payload))
    return head + key + bytes(byte ^ key[index % 4] for index, byte in enumerate(payload))


async def send_raw(server: Server, key: str, frame: bytes) -> None:
    """Open a socket, send this, and wait until the server has closed it or answered."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [
        f"GET /v1/responses?secret=canary-{key} HTTP/1.1",
        f"Host: {host}:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        f"Authorization: Bearer {key}",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(20):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame)
        await reader.read(1)
    writer.close()


@pytest.mark.parametrize(
    ("kind", "frame"),
    [
        pytest.param("not UTF-8", masked(b"\xff\xfe\xfd"), id="not utf-8"),
        pytest.param("not JSON", masked(b'{"type": canary-frame'), id="not json"),
        pytest.param("binary", masked(b"canary-frame", opcode=2), id="binary"),
        pytest.param("an opcode that there is not", masked(b"canary-frame", opcode=3), id="opcode"),
    ],
)
async def test_hostile_frames_leave_little_in_the_log(
    server: Server, key: str, kind: str, frame: bytes, figure: Callable[..., None]
) -> None:
    before, began = len(server.output()), time.monotonic()

    for _ in range(SOCKETS):
        await send_raw(server, key, frame)
    # What comes behind them has been written behind what they caused.
    await Door(server, key).post(input="Hello")

    written = server.output()[before:]
    per_frame = len(written.encode()) / SOCKETS
    figure(36, f"log bytes per frame that is {kind}", target=BYTES_PER_FRAME, measured=round(per_frame, 1))
    assert per_frame <= BYTES_PER_FRAME
    # Counted from the first line of a kind on, so a slow machine sees one more beginning.
    beginnings = 2 + (time.monotonic() - began) // SECONDS
    assert written.count("\n") <= LINES * beginnings
    assert "canary" not in written and key not in written
