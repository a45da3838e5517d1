"""The proxy spoils connections as it says: otherwise tests behind it would try nothing."""

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.live import until
from tests.proxy import Proxy


class Echo(socketserver.BaseRequestHandler):
    """Says what it hears; at the client's end, ``bye``, and ends."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65_536):
                self.request.sendall(data)
            self.request.sendall(b"bye")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: str) -> Iterator[Proxy]:
    with Proxy(echo) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with connected(proxy) as client:
        yield client


def connected(proxy: Proxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    client.settimeout(10)
    return client


def heard(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := client.recv(65_536)):
        data += more
    return data


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.1)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)
    return False


def test_it_passes_what_is_said_and_how_it_ends(proxy: Proxy, client: socket.socket) -> None:
    said = bytes(range(256)) * 4_000

    threading.Thread(target=client.sendall, args=(said,)).start()

    assert heard(client, len(said)) == said
    client.shutdown(socket.SHUT_WR)
    assert heard(client, 4) == b"bye"
    assert (proxy.up.passed, proxy.down.passed, proxy.opened) == (len(said), len(said) + 3, 1)
    until(lambda: not proxy.connections, "the connection to be gone")


def test_an_url_is_the_same_through_it(proxy: Proxy) -> None:
    with Proxy("redis://user:secret@127.0.0.1:6379/3") as named:
        assert named.url == f"redis://user:secret@127.0.0.1:{named.port}/3"


def test_a_delay_is_added_on_each_way_and_keeps_the_order(proxy: Proxy, client: socket.socket) -> None:
    proxy.delay(0.05)
    began = time.monotonic()

    client.sendall(b"one")
    client.sendall(b"two")

    assert heard(client, 6) == b"onetwo"
    assert time.monotonic() - began >= 0.1


def test_a_limited_rate_takes_its_time(proxy: Proxy, client: socket.socket) -> None:
    proxy.limit(10_000)
    began = time.monotonic()

    client.sendall(b"x" * 1_000)

    assert len(heard(client, 1_000)) == 1_000
    assert time.monotonic() - began >= 0.09


def test_a_black_hole_keeps_the_connection_and_what_was_said(proxy: Proxy, client: socket.socket) -> None:
    proxy.black_hole()
    client.sendall(b"lost?")

    assert is_silent(client)
    with connected(proxy) as late:
        assert is_silent(late)
        proxy.heal()
        assert heard(client, 5) == b"lost?"
        late.sendall(b"me too")
        assert heard(late, 6) == b"me too"


def test_a_cut_resets_what_is_open_and_nothing_else(proxy: Proxy, client: socket.socket) -> None:
    client.sendall(b"one")
    assert heard(client, 3) == b"one"

    proxy.cut()

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with connected(proxy) as late:
        late.sendall(b"two")
        assert heard(late, 3) == b"two"


def test_it_is_cut_after_so_many_bytes(proxy: Proxy, client: socket.socket) -> None:
    proxy.cut_after(4)

    client.sendall(b"0123456789")

    assert heard(client, 4) == b"0123"
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_half_a_connection_is_closed(proxy: Proxy, client: socket.socket) -> None:
    client.sendall(b"one")
    assert heard(client, 3) == b"one"

    proxy.half_close()

    assert client.recv(1) == b""
    passed = proxy.up.passed
    client.sendall(b"still heard")
    until(lambda: proxy.up.passed == passed + 11, "the other way to go on")


def test_it_refuses_and_accepts_again(proxy: Proxy, client: socket.socket) -> None:
    client.sendall(b"one")
    assert heard(client, 3) == b"one"

    proxy.refuse()

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    proxy.accept()
    with connected(proxy) as late:
        late.sendall(b"two")
        assert heard(late, 3) == b"two"
