"""The clients of the benchmarks, on blocking sockets: what they cost is small and the same for every way.

While a turn runs they only collect bytes and look for two marks, the first token and the terminal event. Everything is
decoded after the clock has stopped.
"""

import base64
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
LAST_CHUNK = b"\r\n0\r\n\r\n"
MARK_BYTES = 64  # longer than any mark, which two reads may cut in half
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class BenchmarkError(Exception):
    """The other side did not do its work: the figures of this run would mean nothing."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer as received. Times are ``time.perf_counter`` seconds; ``first_at`` is the first token's."""

    data: bytearray
    first_at: float
    ended_at: float


def connect(host: str, port: int, *, timeout: float) -> socket.socket:
    """A connection without Nagle's delay."""
    sock = socket.create_connection((host, port), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def hear(sock: socket.socket, *, first: re.Pattern, ended: Callable[[bytearray], bool], timeout: float) -> Heard:
    """Read until ``ended(data)`` or the other side closes.

    Raises:
        BenchmarkError: nothing came, or no end, within ``timeout`` seconds.
    """
    data = bytearray()
    first_at = 0.0
    deadline = time.perf_counter() + timeout
    sock.settimeout(timeout)
    while True:
        try:
            more = sock.recv(262144)
        except TimeoutError:
            raise BenchmarkError(f"silence for {timeout} s after {bytes(data[-300:])!r}") from None
        now = time.perf_counter()
        scanned = len(data)
        data += more
        if not first_at and first.search(data, max(0, scanned - MARK_BYTES)):
            first_at = now
        if not more or ended(data):
            return Heard(data, first_at, now)
        if now > deadline:
            raise BenchmarkError(f"no end of the turn within {timeout} s; last bytes {bytes(data[-300:])!r}")


def request_head(method: str, path: str, host: str, headers: dict[str, str]) -> bytes:
    """A request's head without its ``Content-Length``."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n").encode()


def http_ended(data: bytearray) -> bool:
    """Whether an answer is whole: its last chunk, or its stated length, has come."""
    if data.endswith(LAST_CHUNK):
        return True
    head_bytes = data.find(b"\r\n\r\n", 0, 8192) + 4
    length = LENGTH.search(data, 0, head_bytes) if head_bytes > 3 else None
    return bool(length) and len(data) >= head_bytes + int(length[1])


def http_body(data: bytearray) -> bytes:
    """The body of an answer, out of its chunks.

    Raises:
        BenchmarkError: the status is not 200.
    """
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        pieces, at = [], 0
        while (line := body.find(b"\r\n", at)) >= 0 and (size := int(body[at:line], 16)):
            pieces.append(body[line + 2 : line + 2 + size])
            at = line + 2 + size + 2
        body = b"".join(pieces)
    if not head.startswith(b"HTTP/1.1 200"):
        raise BenchmarkError(f"answered {head[:40]!r}: {body[:500]!r}")
    return body


def sse_events(data: bytearray) -> list[dict[str, Any]]:
    """The JSON objects of an SSE answer, in order, ``[DONE]`` left out."""
    lines = (line[5:].strip() for line in http_body(data).splitlines() if line.startswith(b"data:"))
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def upgrade(sock: socket.socket, path: str, host: str, headers: dict[str, str]) -> None:
    """Turn a fresh connection into a WebSocket; no extensions are offered.

    Raises:
        BenchmarkError: the server did not answer 101.
    """
    key = base64.b64encode(os.urandom(16)).decode()
    wanted = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
    sock.sendall(request_head("GET", path, host, headers | wanted) + b"\r\n")
    data = bytearray()
    # The server says nothing before the client's first event, so what comes is the head of the answer alone.
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            break
        data += more
    if not data.startswith(b"HTTP/1.1 101"):
        raise BenchmarkError(f"no WebSocket at {path}: {bytes(data[:500])!r}")


def frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """A client's frame with a mask of zeros, which leaves the payload as it is. Source: RFC 6455 §5.2, §5.3."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 65536:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    return head + b"\0\0\0\0" + payload


def frames(data: bytearray) -> Iterator[tuple[int, int, int]]:
    """The whole frames of a server's bytes: (opcode, start, end) of each payload. A cut one at the end is left out."""
    at, whole = 0, len(data)
    while at + 2 <= whole:
        opcode, size, start = data[at] & 15, data[at + 1] & 127, at + 2
        if size == 126:
            size, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
        elif size == 127:
            size, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
        at = start + size
        if at > whole:
            return
        yield opcode, start, at


def turn_ended(last: re.Pattern) -> Callable[[bytearray], bool]:
    """Whether the bytes of a WebSocket turn end with a whole terminal event: one in which ``last`` is found."""
    scanned = 0

    def ended(data: bytearray) -> bool:
        nonlocal scanned
        mark = last.search(data, max(0, scanned - MARK_BYTES))
        scanned = len(data) if mark is None else mark.start()
        if mark is None:
            return data[0:1] == b"\x88"
        return any(start <= mark.start() < end for _, start, end in frames(data))

    return ended


def frame_events(sock: socket.socket, data: bytearray) -> list[dict[str, Any]]:
    """The JSON objects of a turn's frames; pings among them are answered.

    Raises:
        BenchmarkError: the server closed, or sent something other than text.
    """
    events = []
    for opcode, start, end in frames(data):
        payload = bytes(data[start:end])
        if opcode == TEXT:
            events.append(json.loads(payload))
        elif opcode == PING:
            sock.sendall(frame(payload, PONG))
        else:
            raise BenchmarkError(f"frame with opcode {opcode} in a turn: {payload[:200]!r}")
    return events
