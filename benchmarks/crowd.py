"""Many WebSocket turns at once, heard by one thread: when each had its first and its last token."""

import selectors
import socket
import time
from dataclasses import dataclass

from .stack import Server
from .ways import Peer, dumps
from .wire import BenchmarkError, frame, upgrade

DELTA = b'"type":"response.output_text.delta"'
COMPLETED = b'"type":"response.completed"'
WRONG = (b'"type":"response.failed"', b'"type":"response.incomplete"', b'"type":"error"')


@dataclass(slots=True)
class Stream:
    """One turn as it was heard. Times are ``time.perf_counter`` seconds."""

    started_at: float
    first_at: float = 0.0
    last_at: float = 0.0
    deltas: int = 0
    has_ended: bool = False
    tail: bytes = b""
    """The end of what was read: a mark may be cut in two."""

    @property
    def rate(self) -> float:
        """Tokens a second behind the first."""
        return (self.deltas - 1) / max(self.last_at - self.first_at, 1e-9)

    def hear(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self.tail + data
        deltas = data.count(DELTA)
        if deltas:
            self.first_at = self.first_at or now
            self.last_at = now
            self.deltas += deltas
        # Shorter than the mark that is counted, and as long as the others but for a byte.
        self.tail = data[-(len(DELTA) - 1) :]
        self.has_ended = self.has_ended or COMPLETED in data
        if any(mark in data for mark in WRONG):
            raise BenchmarkError(f"a turn failed: {data[-500:]!r}")


def opened(server: Server, sockets: int, *, timeout: float) -> list[socket.socket]:
    """Sockets that have shaken hands; whoever opens them closes them."""
    peer = Peer(server.url, server.key, "", timeout)
    headers = {"Authorization": f"Bearer {server.key}"}
    found: list[socket.socket] = []
    try:
        for _ in range(sockets):
            found.append(peer.connect())
            upgrade(found[-1], f"{peer.parts.path}/responses", peer.parts.netloc, headers)
    except BaseException:
        for sock in found:
            sock.close()
        raise
    return found


def create(model: str, text: str = "Go on.") -> bytes:
    """The frame that asks for a turn which is not stored."""
    return frame(dumps({"type": "response.create", "model": model, "store": False, "input": text}))


class Crowd:
    """So many sockets; a context manager, which closes them."""

    def __init__(self, server: Server, sockets: int, *, timeout: float = 60.0) -> None:
        self.server = server
        self.number = sockets
        self.timeout = timeout
        """Seconds of one turn."""

    def __enter__(self) -> "Crowd":
        self.sockets = opened(self.server, self.number, timeout=self.timeout)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for sock in self.sockets:
            sock.close()

    def turn(self, model: str, tokens: int) -> list[Stream]:
        """One turn on each, all at the same time.

        Raises:
            BenchmarkError: a turn failed, lost a token, or had no end in time.
        """
        message = create(model)
        streams = []
        with selectors.DefaultSelector() as selector:
            for sock in self.sockets:
                sock.settimeout(self.timeout)
                streams.append(Stream(time.perf_counter()))
                sock.sendall(message)
                selector.register(sock, selectors.EVENT_READ, (sock, streams[-1]))
            deadline = time.perf_counter() + self.timeout
            while running := len(selector.get_map()):
                if time.perf_counter() > deadline:
                    raise BenchmarkError(f"{running} of {self.number} turns had no end within {self.timeout:.0f} s")
                for key, _ in selector.select(timeout=1.0):
                    sock, stream = key.data
                    data = sock.recv(262144)
                    if not data:
                        raise BenchmarkError(f"the socket closed after {stream.tail!r}")
                    stream.hear(data)
                    if stream.has_ended:
                        selector.unregister(sock)
        if wrong := [stream.deltas for stream in streams if stream.deltas != tokens]:
            raise BenchmarkError(f"{tokens} tokens were due in each turn, and {wrong[0]} came")
        return streams
