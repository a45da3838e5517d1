"""What a peer may do to a connection below the level of messages, at each limit and beyond it."""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import websockets
from websockets.frames import Opcode
from websockets.protocol import State

from responses_ws.runtime import metrics
from responses_ws.runtime.protocols import FRAMES_A_MESSAGE, TEXTS, Frames, held

from .echo import SECONDS, echoing
from .raw import UPGRADE, Raw, frame, promise

MIB = 1024 * 1024
Figure = Callable[..., None]
EMPTY = frame(b"", Opcode.CONT, fin=False)


@pytest.fixture(autouse=True)
def nothing_is_held_in_the_end() -> Iterator[None]:
    yield
    assert held.total == 0


@pytest.fixture
def limit(settings: Any) -> Any:
    """Sets single limits."""

    def set_limits(**limits: float) -> None:
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}

    return set_limits


async def gone(reason: str) -> None:
    """Wait until a peer has been cut for this."""
    async with asyncio.timeout(SECONDS):
        while not metrics.peers_cut.value(reason):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def is_alive(port: int) -> bool:
    async with websockets.connect(f"ws://127.0.0.1:{port}") as client:
        await client.send("hello")
        return await client.recv() == "hello"


SIZES = (0, 1, 125, 126, 127, 65_535, 65_536, 100_000)


async def test_messages_that_leave_in_one_write_are_messages_of_their_own() -> None:
    texts = [*("x" * size for size in SIZES), "üñîcødé" * 20]
    written: list[int] = []

    async def speaking(scope: Any, receive: Any, send: Any) -> None:
        assert TEXTS in scope["extensions"]
        await receive()
        await send({"type": "websocket.accept"})
        protocol = receive.__self__
        transport, protocol.transport = protocol.transport, Counted(protocol.transport, written)
        await send({"type": "websocket.send", "texts": texts})
        protocol.transport = transport
        await receive()

    async with echoing(speaking) as port:
        async with websockets.connect(f"ws://127.0.0.1:{port}") as client:
            assert [await client.recv() for _ in texts] == texts

    # What is small leaves with the large one that it stands before; those wait for nothing.
    assert len(written) == 3


async def test_what_is_sent_within_one_turn_of_the_loop_leaves_together_and_in_order() -> None:
    written: list[int] = []

    async def speaking(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        protocol = receive.__self__
        protocol.transport = Counted(protocol.transport, written)
        await send({"type": "websocket.send", "texts": ["1"]})
        await send({"type": "websocket.send", "texts": ["2", "3"]})
        assert written == []
        await asyncio.sleep(0)
        assert len(written) == 1
        await send({"type": "websocket.send", "texts": ["4"]})
        # One that is sent alone waits for nothing, and what was said before it goes first.
        await send({"type": "websocket.send", "text": "5"})
        await send({"type": "websocket.send", "texts": ["6"]})
        await send({"type": "websocket.close", "code": 1000})

    async with echoing(speaking) as port:
        async with websockets.connect(f"ws://127.0.0.1:{port}") as client:
            assert [message async for message in client] == ["1", "2", "3", "4", "5", "6"]

    assert len(written) == 5


class Counted:
    """A transport that notes the size of each write."""

    def __init__(self, transport: Any, written: list[int]) -> None:
        self._transport, self._written = transport, written

    def write(self, data: bytes) -> None:
        self._written.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.mark.parametrize("cut", ["whole", "within its head", "within its text", "with half of the next"])
async def test_a_message_is_the_same_however_it_comes(cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that comes whole and alone is read without the parser."""
    parsed: list[int] = []

    def receive_data(self: Frames, data: bytes) -> None:
        parsed.append(len(data))
        super(Frames, self).receive_data(data)

    heard: list[str] = []
    came = asyncio.Event()

    async def hearing(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            heard.append(message["text"])
            came.set()

    monkeypatch.setattr(Frames, "receive_data", receive_data)
    texts = [*("x" * size for size in SIZES), "üñîcødé" * 20]
    async with echoing(hearing) as port:
        with Raw(port) as peer:
            await peer.send(UPGRADE)
            await peer.until(b"\r\n\r\n")
            for text in texts:
                came.clear()
                parsed.clear()
                data = frame(text.encode())
                at = {"whole": len(data), "within its head": 1, "within its text": len(data) - len(data) // 2}.get(cut)
                following = frame(b"next")
                parts = [data[:at], data[at:]] if at else [data + following[:3], following[3:]]
                for number, part in enumerate(filter(None, parts)):
                    if number:
                        # Not in one read with what came before.
                        async with asyncio.timeout(SECONDS):
                            while not parsed:  # noqa: ASYNC110
                                await asyncio.sleep(0.001)
                    await peer.send(part)
                async with asyncio.timeout(SECONDS):
                    await came.wait()
                    while at is None and heard[-1] != "next":  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                # A large one comes in several reads.
                assert cut != "whole" or len(data) > 1000 or not parsed

    said = [text for text in heard if text != "next"]
    assert said == texts


async def test_who_has_closed_is_told_nothing_more() -> None:
    told = asyncio.Event()

    async def speaking(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        with pytest.raises(OSError):
            await send({"type": "websocket.send", "texts": ["too", "late"]})
        told.set()

    async with echoing(speaking) as port:
        async with websockets.connect(f"ws://127.0.0.1:{port}"):
            pass
        async with asyncio.timeout(SECONDS):
            await told.wait()


async def test_compressed_sockets_take_one_message_at_a_time() -> None:
    seen: list[Any] = []

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["extensions"])
        await receive()
        await send({"type": "websocket.accept"})
        await receive()

    async with echoing(listening, ws_per_message_deflate=True) as port, websockets.connect(f"ws://127.0.0.1:{port}"):
        pass

    assert TEXTS not in seen[0]


async def test_so_many_fragments_are_a_message_and_one_more_is_not(limit: Any) -> None:
    limit(message_fragments=50)
    middle = frame(b"x", Opcode.CONT, fin=False)
    first, last = frame(b"x", fin=False), frame(b"x", Opcode.CONT)
    async with echoing() as port:
        with Raw(port) as within, Raw(port) as beyond:
            await within.upgrade()
            await beyond.upgrade()

            await within.send(first + 47 * middle + last)
            await beyond.send(first + 48 * middle + last)

            assert (await within.until(b"x" * 49)).endswith(b"x" * 49)
            assert await beyond.close_code() == 1008


async def test_endless_empty_fragments_end_soon() -> None:
    async with echoing() as port:
        with Raw(port) as client:
            await client.upgrade()
            with contextlib.suppress(ConnectionError):
                await client.send(frame(b"x", fin=False) + 100_000 * EMPTY)

            assert await client.close_code() == 1008
        assert await is_alive(port)


async def test_a_message_in_fragments_has_a_time(limit: Any) -> None:
    limit(message_seconds=0.2)
    async with echoing() as port:
        with Raw(port) as client:
            await client.upgrade()
            await client.send(frame(b"x", fin=False) + frame(b"", Opcode.PING))

            assert await client.close_code() == 1008
        assert metrics.peers_cut.value("the_message_takes_too_long") == 1


async def test_a_close_between_fragments_is_a_close() -> None:
    async with echoing() as port:
        with Raw(port) as client:
            await client.upgrade()
            await client.send(frame(b"x", fin=False) + frame(b"\x03\xe8", Opcode.CLOSE))

            assert await client.close_code() == 1000


@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.PONG, Opcode.TEXT], ids=["pings", "pongs", "messages"])
async def test_more_frames_than_anybody_needs_close_the_socket(limit: Any, opcode: Opcode) -> None:
    limit(frames_at_once=20, frames_per_second=1)
    most = 20 * FRAMES_A_MESSAGE
    async with echoing() as port:
        with Raw(port) as within, Raw(port) as beyond:
            await within.upgrade()
            await beyond.upgrade()
            # The handshake has counted for nothing.
            await within.send((most - 1) * frame(b"", opcode) + frame(b"last"))
            assert (await within.until(b"last")).endswith(b"last")

            await beyond.send((most + 1) * frame(b"", opcode))

            assert await beyond.close_code() == 1008


@pytest.mark.parametrize("size", [33 * MIB, 2**62, 2**63 - 1], ids=["over", "2^62", "2^63-1"])
async def test_a_frame_that_is_too_large_is_refused_by_its_head(size: int) -> None:
    async with echoing() as port:
        with Raw(port) as client:
            await client.upgrade()
            await client.send(promise(size))

            assert await client.close_code() == 1009


async def test_a_length_that_is_none_is_a_protocol_error() -> None:
    async with echoing() as port:
        with Raw(port) as client:
            await client.upgrade()
            await client.send(promise(2**64 - 1))

            assert await client.close_code() in (1002, 1009)


async def test_an_upgrade_that_is_none_is_answered() -> None:
    async with echoing() as port:
        with Raw(port) as client:
            await client.send(UPGRADE.replace(b"GET", b"POST"))

            assert (await client.rest()).startswith(b"HTTP/1.1 400")


async def test_reserved_bits_without_an_extension_are_refused() -> None:
    """A zip bomb does not even begin to be unpacked."""
    async with echoing() as port:
        with Raw(port) as client:
            await client.upgrade()
            await client.send(b"\xc1\x85\0\0\0\0\x00\x00\x00\xff\xff")

            assert await client.close_code() == 1002


async def test_a_process_holds_so_much_of_unfinished_messages(limit: Any) -> None:
    limit(held_bytes=3 * MIB)
    async with echoing() as port:
        with Raw(port) as first, Raw(port) as second, Raw(port) as third:
            for client in (first, second):
                await client.upgrade()
                await client.send(promise(2 * MIB) + bytes(MIB))
            await third.upgrade()
            with contextlib.suppress(ConnectionError):
                await third.send(promise(2 * MIB) + bytes(2 * MIB - 1))

            assert await third.close_code() == 1013
            assert await is_alive(port)
            assert 0 < held.total <= 3 * MIB


async def test_who_stops_reading_a_socket_is_cut_and_neighbours_are_not(limit: Any) -> None:
    limit(unread_seconds=0.3)
    async with echoing() as port:
        with Raw(port, receive_buffer=4096) as deaf:
            await deaf.upgrade()
            await deaf.send(frame(b"flood"))
            await gone("unread")

            assert await is_alive(port)
            assert metrics.peers_cut.value("unread") == 1


async def test_who_stops_reading_a_stream_is_cut(limit: Any) -> None:
    limit(unread_seconds=0.3)
    async with echoing() as port:
        with Raw(port, receive_buffer=4096) as deaf:
            await deaf.send(b"GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await gone("unread")


async def test_who_reads_slowly_but_steadily_is_not_cut(limit: Any) -> None:
    """One large frame, which is under way for several times as long as a reader may stop."""
    limit(unread_seconds=0.3)
    size = 12 * MIB
    async with echoing() as port:
        with Raw(port) as slow:
            await slow.upgrade()
            await slow.send(frame(b"x" * size))
            read = 0
            while read < size:
                said = await slow.receive(65536)
                assert said, "it was cut"
                read += len(said)
                await asyncio.sleep(0.005)

        assert metrics.peers_cut.value("unread") == 0


@pytest.mark.parametrize(
    "bytes_sent",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: local", b"\r\n\r\n"],
    ids=["nothing", "a line", "a header", "blank lines"],
)
async def test_a_request_whose_head_does_not_come_is_cut(limit: Any, bytes_sent: bytes) -> None:
    limit(head_seconds=0.2)
    async with echoing() as port:
        with Raw(port) as client:
            await client.send(bytes_sent)

            assert await client.rest() == b""


@pytest.mark.parametrize("rest", [b"\r\n", b"GET / HT"], ids=["blank line", "half a line"])
async def test_a_second_request_whose_head_does_not_come_is_cut(limit: Any, rest: bytes) -> None:
    limit(head_seconds=0.2)
    async with echoing() as port:
        with Raw(port) as client:
            await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await client.until(b"\r\n0\r\n\r\n")

            await client.send(rest)

            assert await client.rest() == b""


async def test_a_body_that_stops_coming_is_cut(limit: Any) -> None:
    limit(body_seconds=0.2)
    async with echoing() as port:
        with Raw(port) as client:
            await client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhello")

            assert await client.rest() == b""
            assert metrics.peers_cut.value("request") == 1


async def test_a_body_that_comes_slowly_is_not_cut(limit: Any) -> None:
    limit(body_seconds=0.4)
    async with echoing() as port:
        with Raw(port) as client:
            await client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n")
            for _ in range(12):
                await asyncio.sleep(0.1)
                await client.send(b"x")

            assert (await client.until(b"\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200")


def post(length: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length


async def test_a_body_as_large_as_the_limit_is_read_and_one_byte_more_is_not(limit: Any) -> None:
    limit(max_frame_bytes=MIB)
    async with echoing() as port:
        with Raw(port) as client:
            await client.send(post(MIB) + bytes(MIB))
            within = await client.until(b"\r\n0\r\n\r\n")
            await client.send(post(MIB + 1) + bytes(MIB + 1))
            beyond = await client.until(b"}}")
            # The connection is good for more.
            await client.send(post(1) + b"x")
            after = await client.until(b"\r\n0\r\n\r\n")

    assert within.startswith(b"HTTP/1.1 200") and b"1048576" in within
    assert beyond.startswith(b"HTTP/1.1 413")
    assert json.loads(beyond.split(b"\r\n\r\n")[1])["error"]["code"] == "payload_too_large"
    assert after.startswith(b"HTTP/1.1 200")


async def test_a_body_of_no_told_length_is_stopped_at_the_limit(limit: Any) -> None:
    """Django would put all of it on the disk before a view could say no."""
    limit(max_frame_bytes=MIB)
    heard: list[int] = []

    async def application(_scope: Any, receive: Any, _send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            heard.append(len(message["body"]))

    async with echoing(application) as port:
        with Raw(port) as client:
            await client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    await client.send(b"10000\r\n" + bytes(65536) + b"\r\n")

            await client.rest()

    assert sum(heard) <= MIB + 65536


async def test_a_refused_body_without_end_is_cut(limit: Any) -> None:
    limit(max_frame_bytes=MIB)
    async with echoing() as port:
        with Raw(port) as client:
            await client.send(post(1000 * MIB))
            refusal = await client.until(b"}}")
            with pytest.raises(ConnectionError):
                for _ in range(1000):
                    await client.send(bytes(MIB))

    assert refusal.startswith(b"HTTP/1.1 413")


async def test_a_process_holds_so_much_of_unanswered_bodies(limit: Any) -> None:
    limit(max_frame_bytes=MIB, held_bytes=MIB + 1000)
    async with echoing() as port:
        with Raw(port) as first, Raw(port) as second:
            await first.send(post(MIB) + bytes(MIB - 1))
            async with asyncio.timeout(SECONDS):
                while held.total < MIB - 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

            await second.send(post(2000) + bytes(2000))
            refused = await second.until(b"}}")
            await first.send(b"x")
            whole = await first.until(b"\r\n0\r\n\r\n")
            await second.send(post(2000) + bytes(2000))
            later = await second.until(b"\r\n0\r\n\r\n")

    assert refused.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in refused
    assert whole.startswith(b"HTTP/1.1 200")
    assert later.startswith(b"HTTP/1.1 200")


async def test_text_that_is_not_utf8_costs_the_log_a_line(caplog: Any, figure: Figure) -> None:
    async with echoing() as port:
        before = sum(len(record.getMessage()) for record in caplog.records)
        for _ in range(20):
            with Raw(port) as client:
                await client.upgrade()
                await client.send(frame(b"\xff" * 10_000))
                assert await client.close_code() == 1007
        records = caplog.records
    logged = sum(len(record.getMessage()) + len(record.exc_text or "") for record in records) - before
    figure(36, "log bytes for a frame that is not UTF-8", target="<= 300", measured=logged / 20)
    assert logged / 20 <= 300
    assert not any(record.exc_info for record in records)


def test_bytes_by_chance_never_break_the_parser(caplog: Any) -> None:
    chance = random.Random(20261130)
    codes: set[int] = set()
    for _ in range(5000):
        frames = Frames(state=State.OPEN, max_size=MIB)
        frames.frames_left = 100
        for _ in range(chance.randrange(1, 4)):
            # Masked and unreserved, as chance alone would seldom have it.
            head = bytes([chance.choice((0x81, 0x01, 0x80, 0x82, 0x88, 0x89, chance.randrange(256)))])
            frames.receive_data(head + bytes([0x80 | chance.randrange(128)]) + chance.randbytes(chance.randrange(200)))
            if frames.parser_exc is not None:
                break
        if frames.close_sent is not None:
            codes.add(frames.close_sent.code)

    # A Close by chance is answered by its own code.
    assert codes >= {1002, 1009}
    assert 1011 not in codes
    assert caplog.records == []
