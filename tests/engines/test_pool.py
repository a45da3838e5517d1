import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from responses_ws.engines import http
from responses_ws.engines.http import HttpClient, Unreachable

from .wires import DEADLINE, OK, RawServer, always, answered, chunked, served

MIB = 1024 * 1024


@contextlib.contextmanager
def dead_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()


@contextlib.contextmanager
def silent_port():
    """Of a listener whose queue is full: what is sent to it is lost."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()


# uvloop resolves addresses, too, by the method that is replaced here.
@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("first", [dead_port, silent_port])
async def test_every_address_of_a_name_is_tried(monkeypatch, first):
    async with served(always(answered(b"hello"))) as (server, client):
        with first() as address:
            addresses = [
                (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", address[1], 0, 0)),
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", address),
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port)),
            ]

            async def resolved(*_args, **_options):
                return addresses

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)

            assert await client.ask("/x", b"{}", seconds=DEADLINE) == b"hello"


async def test_an_address_that_does_not_answer_is_given_up():
    with silent_port() as (_, port):
        client = HttpClient(f"http://127.0.0.1:{port}/v1", connect_seconds=0.1)
        with pytest.raises(Unreachable, match="TimeoutError"):
            await client.ask("/x", b"{}", seconds=DEADLINE)
        await client.aclose()


async def test_a_name_that_is_none_is_told(monkeypatch):
    async def resolved(*_args, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    client = HttpClient("http://engine.invalid/v1")

    with pytest.raises(Unreachable, match="engine.invalid"):
        await client.get("/models", seconds=DEADLINE)
    await client.aclose()


@pytest.fixture
def certified(tmp_path, monkeypatch):
    """A server's TLS context for 127.0.0.1 and ``localhost``, which this process trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "engine")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "all.pem").write_bytes(private + pem)
    (tmp_path / "trusted.pem").write_bytes(pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trusted.pem"))
    http.tls.cache_clear()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "all.pem")
    yield context
    http.tls.cache_clear()


async def test_tls_is_told_the_name_and_carries_answers_of_all_kinds(certified):
    names = []
    certified.sni_callback = lambda _socket, name, _context: names.append(name)
    size = 4 * MIB

    async def conduct(caller):
        _, body = await caller.asked()
        await caller.say(chunked(b"%d" % len(body), b" bytes"))
        await caller.asked()
        await caller.say(OK + b"\r\nthe end")

    async with RawServer(conduct, tls=certified) as server:
        client = HttpClient(server.url.replace("127.0.0.1", "localhost"))
        said = [await client.ask("/x", b"x" * size, seconds=DEADLINE), await client.ask("/x", b"{}", seconds=DEADLINE)]
        await client.aclose()

    assert said == [b"%d bytes" % size, b"the end"]
    assert (names, server.connections) == (["localhost"], 1)


async def test_a_call_that_is_left_over_tls_is_left_at_once(certified):
    left = asyncio.Event()

    async def conduct(caller):
        await caller.asked()
        await caller.say(OK + b"Content-Length: 9\r\n\r\nhello")
        await caller.left()
        left.set()

    async with served(conduct, tls=certified) as (_, client):
        answer = await client.post("/x", b"{}")
        assert await answer.read() == b"hello"
        answer.close()

        await left.wait()


async def test_a_certificate_of_nobody_is_not_taken(certified, monkeypatch, tmp_path):
    (tmp_path / "none.pem").write_bytes(b"")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    http.tls.cache_clear()

    async with served(always(answered(b"hello")), tls=certified) as (_, client):
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.ask("/x", b"{}", seconds=DEADLINE)


async def test_a_certificate_of_another_host_is_not_taken(certified, monkeypatch):
    async with RawServer(always(answered(b"hello")), tls=certified) as server:
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))

        async def resolved(*_args, **_options):
            return [address]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        client = HttpClient("https://other.test/v1")
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.ask("/x", b"{}", seconds=DEADLINE)
        await client.aclose()


async def test_a_server_without_tls_is_unreachable_over_it():
    async with RawServer(always(answered(b"hello"))) as server:
        client = HttpClient(server.url.replace("http:", "https:"), connect_seconds=0.2)
        with pytest.raises(Unreachable):
            await client.ask("/x", b"{}", seconds=DEADLINE)
        await client.aclose()
