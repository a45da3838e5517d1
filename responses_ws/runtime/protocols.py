"""uvicorn's protocols, less patient: what a peer may do to a connection below the level of messages.

uvicorn waits for ever on whoever stops reading, stops sending, or sends what never becomes a message. None of that
reaches an application, so it is bounded here. The bounds are `Limits`.
"""

import asyncio
import struct
import time
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode, apply_mask
from websockets.protocol import State
from websockets.server import ServerProtocol

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import ApiError, Overloaded, PayloadTooLarge

from . import connections, metrics
from .ids import new_id
from .inbox import Inbox, Latch
from .stamps import encoded, stamps

# A reader that takes less than this in `unread_seconds` counts as one that has stopped: half a kilobyte a second.
LEAST_READ = 16 * 1024
# All frames, empty ones and pings too, for each message that a client may send. Those in fragments of 16 KiB pass.
FRAMES_A_MESSAGE = 10
# A connection that is one too many may not stay for longer without a request.
SECONDS_TO_ASK = 1.0
# Of a body that was refused so many times the limit is thrown away, so that its sender comes to read the answer.
DISCARDED = 4
# And of a socket's frames for so many times so long, as long as they come: a peer that is still sending would be told
# of nothing but a reset.
LINGER_TIMES = 10
LINGER_SECONDS = 0.1
LINGERING = (1008, 1009, 1013)
TEXTS = "responses_ws.texts"
"""An extension of ASGI: ``websocket.send`` may hold ``texts``, several messages. What is sent within one turn of the
event loop leaves in one write."""
MOST_AT_ONCE = 64 * 1024
"""Bytes that are not kept back for what follows them; so much at most is made ready for a reader that has stopped."""
_MEDIUM_SIZE, _LARGE_SIZE = struct.Struct("!H").unpack_from, struct.Struct("!Q").unpack_from
_MEDIUM_HEAD, _LARGE_HEAD = struct.Struct("!BBH").pack, struct.Struct("!BBQ").pack
_NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Held:
    """Bytes that clients have sent to this process and that are neither whole messages nor answered yet."""

    def __init__(self) -> None:
        self.total = 0

    def has_room(self, more: int = 0) -> bool:
        return self.total + more <= app_settings.limits.held_bytes


held = Held()


class _Patience:
    """Cuts a peer that no longer reads, so that what is made for it is made no longer."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _unread: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        if self._unread is None:
            self._watch()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)  # type: ignore[misc]

    def _watch(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(app_settings.limits.unread_seconds, self._look, unread)

    def _look(self, unread: int) -> None:
        # Nothing is added meanwhile: whoever writes waits. One large frame may take long on a slow line.
        if unread - self.transport.get_write_buffer_size() >= LEAST_READ:
            self._watch()
            return
        metrics.peers_cut.add(("unread",))
        # Not a Close, which would wait behind all the rest.
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class Frames(ServerProtocol):
    """RFC 6455, with an end to fragments and to frames."""

    fragments = 0
    """Of the message that is under way."""
    frames_left = 0.0
    counted_at = 0.0

    def recv_frame(self, frame: Frame) -> None:
        self.frames_left -= 1
        if self.frames_left < 0:
            self.refuse(1008, "too many frames")
        if frame.opcode is Opcode.CLOSE:
            # A control frame may stand between fragments, and a Close there ends a connection like any other.
            self.cur_size = None
        elif frame.opcode is Opcode.CONT:
            self.fragments += 1
            if self.fragments >= app_settings.limits.message_fragments:
                self.refuse(1008, "too many fragments")
        elif frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            self.fragments = 1
        super().recv_frame(frame)

    def refuse(self, code: int, reason: str) -> None:
        """Fail the connection; to be called while a frame is parsed."""
        self.fail(code, reason)
        # The parser ends by this; its own code comes too late.
        raise ProtocolError(reason)


class SocketProtocol(_Patience, WebSocketsSansIOProtocol):
    """One WebSocket."""

    conn: Frames
    _heard = 0
    """How often something has come."""
    _held = 0
    _unfinished: asyncio.TimerHandle | None = None
    """Runs while a message in fragments is under way."""
    _leaving_bytes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue, self.writable = Inbox(), Latch()  # type: ignore[assignment]
        plain = self.conn
        self.conn = Frames(extensions=plain.available_extensions, max_size=plain.max_size, logger=plain.logger)
        self._leaving: list[bytes] = []
        """Frames that leave together, a moment later."""

    def start_keepalive(self) -> None:
        super().start_keepalive()
        # It is open, so nobody asks any more how that came about. The parser goes on holding the request.
        self.request.headers.clear()
        del self.request, self.response

    async def run_asgi(self) -> None:
        if not self.conn.extensions:
            # What is compressed, uvicorn sends.
            self.scope["extensions"][TEXTS] = {}
        await super().run_asgi()

    async def send(self, message: Any) -> None:
        texts = message.get("texts")
        if texts is None:
            self._leave()
            await super().send(message)
            return
        leaving = self._leaving
        for text in texts:
            if not leaving:
                await self.writable.wait()
                if self.disconnected or self.conn.state is not State.OPEN:
                    raise ClientDisconnected()
                self.loop.call_soon(self._leave)
            payload = text.encode()
            leaving += _text_frame(payload)
            self._leaving_bytes += len(payload)
            if self._leaving_bytes >= MOST_AT_ONCE:
                self._leave()

    def _leave(self) -> None:
        leaving = self._leaving
        # Nothing follows a Close.
        if leaving and not self.disconnected and self.conn.state is State.OPEN:
            self.transport.write(b"".join(leaving))
        leaving.clear()
        self._leaving_bytes = 0

    def data_received(self, data: bytes) -> None:
        limits, conn, now = app_settings.limits, self.conn, self.loop.time()
        # As in `connection/flow.py`, but for all frames and without a word.
        rate, most = FRAMES_A_MESSAGE * limits.frames_per_second, FRAMES_A_MESSAGE * limits.frames_at_once
        conn.frames_left = min(most, conn.frames_left + (now - conn.counted_at) * rate)
        conn.counted_at = now
        self._heard += 1
        payload = self._whole_text(data)
        if payload is not None:
            conn.frames_left -= 1
            self.curr_msg_data_type, self.frames = "text", [payload]
            self.send_receive_event_to_app()
            return
        super().data_received(data)
        if conn.handshake_exc is not None and not self.handshake_initiated:
            # An upgrade by POST, for one: uvicorn says nothing, and waits for ever.
            self.transport.write(_NO_HANDSHAKE)
            self.transport.close()
        self._hold(len(conn.reader.buffer) + (conn.cur_size or 0))
        if self._held and not held.has_room():
            self._give_up(1013, "too much is being received")

    def _whole_text(self, data: bytes) -> bytes | None:
        """The payload of a text message in one frame, where ``data`` is that and no more, as it mostly is.

        Everything else is for the parser, which takes a hundred times as many steps. Source: RFC 6455, section 5.2.
        """
        conn = self.conn
        is_between = conn.state is State.OPEN and not conn.reader.buffer and conn.cur_size is None
        if not is_between or conn.extensions or conn.frames_left < 1 or len(data) < 6 or data[0] != 0x81:
            return None
        size, start = data[1] - 0x80, 2
        if size == 126:
            (size,), start = _MEDIUM_SIZE(data, 2), 4
        elif size == 127 and len(data) >= 10:
            (size,), start = _LARGE_SIZE(data, 2), 10
        most = conn.max_size
        if len(data) != start + 4 + size or (most is not None and size > most):
            return None
        return apply_mask(data[start + 4 :], data[start : start + 4])

    def handle_text(self, event: Frame) -> None:
        super().handle_text(event)
        self._took(event)

    def handle_bytes(self, event: Frame) -> None:
        super().handle_bytes(event)
        self._took(event)

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        event.data = b""

    def _took(self, event: Frame) -> None:
        # The parser holds its last frame until there is another, and what is small comes past it.
        event.data = b""
        if not event.fin:
            self._expect_the_rest()

    def send_receive_event_to_app(self) -> None:
        self._expect_nothing()
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        if self.close_timer is not None:
            # The parser throws away what still comes.
            return
        close = self.conn.close_sent
        if close is None or close.code not in LINGERING:
            super().handle_parser_exception()
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self._linger(LINGER_TIMES, None)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def _linger(self, times: int, heard: int | None) -> None:
        if times and heard != self._heard:
            self.close_timer = self.loop.call_later(LINGER_SECONDS, self._linger, times - 1, self._heard)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._hold(0)
        super().connection_lost(exc)

    def _hold(self, size: int) -> None:
        held.total += size - self._held
        self._held = size

    def _expect_the_rest(self) -> None:
        seconds = app_settings.limits.message_seconds
        self._unfinished = self.loop.call_later(seconds, self._give_up, 1008, "the message takes too long")

    def _expect_nothing(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None

    def _give_up(self, code: int, reason: str) -> None:
        if not self.transport.is_closing() and not self.close_sent:
            metrics.peers_cut.add((reason.replace(" ", "_"),))
            self.conn.fail(code, reason)
            self.handle_parser_exception()


def _text_frame(payload: bytes) -> tuple[bytes, bytes]:
    """A whole text message of a server, uncompressed and unmasked: head and payload. Source: RFC 6455, section 5.2."""
    size = len(payload)
    if size < 126:
        return bytes((0x81, size)), payload
    if size < 65536:
        return _MEDIUM_HEAD(0x81, 126, size), payload
    return _LARGE_HEAD(0x81, 127, size), payload


class HttpProtocol(_Patience, HttpToolsProtocol):
    """One HTTP connection, until it becomes a WebSocket."""

    _held = 0
    _received = 0
    """Bytes of the body that is under way."""
    _refused: RequestResponseCycle | None = None
    """Its body is thrown away."""
    _unfinished: asyncio.TimerHandle | None = None
    """Runs while a request is under way, and before the first."""
    _is_one_too_many = False
    """The process has no files left for it: it is answered, and closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        room = connections.room_for(len(self.connections))
        self._is_one_too_many = room is not connections.Room.PLENTY
        if room is connections.Room.NONE:
            transport.abort()
            return
        self._expect_the_rest(SECONDS_TO_ASK if self._is_one_too_many else app_settings.limits.head_seconds)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is None:
            # Bytes that begin no request: uvicorn has stopped its own timer.
            self._expect_the_rest(app_settings.limits.head_seconds)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._received = 0
        self._expect_the_rest(app_settings.limits.head_seconds)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._expect_nothing()
        self._expect_the_rest(app_settings.limits.body_seconds)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._received += len(body)
        limit = app_settings.limits.max_frame_bytes
        if self.cycle is self._refused or self.cycle.response_complete:
            if self._received > DISCARDED * limit:
                self.transport.abort()
            return
        held.total += len(body)
        self._held += len(body)
        # Of bodies with a length this was seen before.
        if self._received > limit or not held.has_room():
            self._refuse_midway()

    def on_message_complete(self) -> None:
        self._expect_nothing()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._let_go()
        super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        self._expect_nothing()
        if self._is_one_too_many:
            self.transport.write(_written(_too_many()))
            self.transport.close()
            return
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._let_go()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        length = next((int(value) for name, value in cycle.scope["headers"] if name == b"content-length"), 0)
        refusal = _too_many() if self._is_one_too_many else _refusal(length)
        if self._is_one_too_many:
            cycle.keep_alive = False
        if refusal is not None:
            self._refused, app = cycle, _answer(refusal)
        super()._start_asgi_task(cycle, app)

    def _refuse_midway(self) -> None:
        """The application is reading the body: for it the client has gone."""
        cycle = self.cycle
        refusal = _refusal(self._received)
        if refusal is not None and not cycle.response_started and not self.pipeline:
            self.transport.write(_written(refusal))
        cycle.disconnected = True
        cycle.message_event.set()
        self.transport.close()

    def _let_go(self) -> None:
        held.total -= self._held
        self._held = 0

    def _expect_the_rest(self, seconds: float) -> None:
        if self._unfinished is None:
            self._unfinished = self.loop.call_later(seconds, self._late, seconds, self._received)

    def _expect_nothing(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None

    def _late(self, seconds: float, received: int) -> None:
        self._unfinished = None
        # A body may take long if it comes; and if we are not reading, that is no fault of its sender.
        if self._received > received or self.flow.read_paused:
            self._expect_the_rest(seconds)
        else:
            metrics.peers_cut.add(("request",))
            self.transport.abort()


def _refusal(length: int) -> ApiError | None:
    """Why a body of so many bytes is not read."""
    limit = app_settings.limits.max_frame_bytes
    if length > limit:
        return PayloadTooLarge(f"The request body is larger than {limit} bytes.")
    if not held.has_room(length):
        return Overloaded("The server is receiving too much at once. Please try again.", headers={"retry-after": "1"})
    return None


def _too_many() -> ApiError:
    return Overloaded("Too many connections are open here. Please try again.", headers={"retry-after": "1"})


def _written(error: ApiError) -> bytes:
    """The whole answer, past uvicorn; the connection ends with it."""
    head, body = _head(error)
    lines = [b"HTTP/1.1 %d \r\n" % error.status, *(b"%b: %b\r\n" % line for line in head)]
    return b"".join([*lines, b"connection: close\r\n\r\n", body])


def _head(error: ApiError) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of an error's answer."""
    body = msgspec.json.encode({"error": error.body()})
    head = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    # Refused before it was read: nothing was done for it.
    head |= stamps(new_id("req"), time.perf_counter())
    return encoded(head), body


def _answer(error: ApiError) -> Any:
    """An application that says nothing else."""

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        head, body = _head(error)
        await send({"type": "http.response.start", "status": error.status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return application
