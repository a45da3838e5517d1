"""Bytes to a server, and what comes back: for clients that no library would be."""

import asyncio
import os
import socket
from typing import Self

from websockets.frames import Frame, Opcode

from .echo import SECONDS

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def promise(size: int) -> bytes:
    """The head of a text frame of so many bytes, which do not follow."""
    return b"\x81\xff" + size.to_bytes(8, "big") + os.urandom(4)


class Raw:
    """One TCP connection."""

    def __init__(self, port: int, *, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.socket.close()

    async def send(self, data: bytes) -> None:
        """Raises OSError where the server has ended it."""
        async with asyncio.timeout(SECONDS):
            await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self, size: int = 65536) -> bytes:
        """Some bytes; none at the end."""
        async with asyncio.timeout(SECONDS):
            return await asyncio.get_running_loop().sock_recv(self.socket, size)

    async def until(self, end: bytes) -> bytes:
        said = b""
        while end not in said:
            more = await self.receive()
            assert more, f"the server has ended it after {said!r}"
            said += more
        return said

    async def rest(self) -> bytes:
        """What comes until the server ends the connection, in whichever way."""
        said = b""
        try:
            while more := await self.receive():
                said += more
        except ConnectionError:
            pass
        return said

    async def upgrade(self) -> None:
        await self.send(UPGRADE)
        assert (await self.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")

    async def close_code(self) -> int | None:
        """Of the Close frame at the end; None where there is none."""
        said = await self.rest()
        # A Close of ours has a reason, and is the last that is said.
        position = said.rfind(b"\x88")
        return int.from_bytes(said[position + 2 : position + 4], "big") if position >= 0 else None
