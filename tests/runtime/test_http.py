"""URLs of somebody else's lead to the open internet, or nowhere."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from responses_ws.runtime.http import FetchFailed, Gate, Refused, fetch, is_public, origin_of

# Every one of them has been a way past somebody's check.
SPELLINGS = [
    "https://127.0.0.1/",
    "https://127.1/",
    "https://127.0.1/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0x7f.1/",
    "https://2130706433/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://0177.1/",
    "https://00000177.1/",
    "https://127.0.0.1./",
    "https://127.0.0.0x1/",
    "https://1.2.3.4.5/",
    "https://0/",
    "https://0.0.0.0/",
    "https://0x0/",
    "https://localhost/",
    "https://localhost./",
    "https://LOCALHOST/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.0.1/",
    "https://100.64.0.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://192.0.0.192/",
    "https://192.88.99.1/",
    "https://198.18.0.1/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://[::1]/",
    "https://[::]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::ffff:8.8.8.8]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::127.0.0.1]/",
    "https://[64:ff9b:1::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:7f00:1::]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
    "https://[::1/",
    "https://ok.example@127.0.0.1/",
    "https://ok.example:443@127.0.0.1/",
    "https://ok.example\\@127.0.0.1/",
    "https://127.0.0.1\\@ok.example/",
    "https://127.0.0.1#@ok.example/",
    "https://127.0.0.1?@ok.example/",
    "https://127。0。0。1/",
    "https://①②⑦.⓪.⓪.①/",
    "https://１２７.0.0.1/",
    "https://ⓛocalhost/",
    "https://ok.example\t.localhost/",
    "https://ok.example\r\nHost: localhost/",
    "https:// 127.0.0.1/",
    "https://127.0.0.1%2f@ok.example/",
    "https://%31%32%37.0.0.1/",
    "https:///127.0.0.1/",
    "https:127.0.0.1",
    "//127.0.0.1/",
    "127.0.0.1",
    "http://ok.example/",
    "https://ok.example:22/",
    "https://ok.example:99999/",
    "https://ok.example:８443/",
    "https://ok_example/",
    "https://-ok.example/",
    "https://ok..example/",
    "ftp://ok.example/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "unix:///run/docker.sock",
    "javascript:alert(1)",
    "",
]


async def _loopback(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


@pytest.mark.parametrize("url", SPELLINGS)
async def test_no_spelling_leads_inside(url: str) -> None:
    gate = Gate(resolve=_loopback)

    with pytest.raises(Refused):
        await gate.addresses(gate.target(url))


@pytest.mark.parametrize(
    ("url", "spelling"),
    [
        ("https://ok.example", "https://ok.example:443/"),
        ("HTTPS://OK.example:443/a?b=c#d", "https://ok.example:443/a?b=c"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example:443/"),
        ("https://93.184.216.34/", "https://93.184.216.34:443/"),
        ("https://[2606:2800:220:1::1]/", "https://[2606:2800:220:1::1]:443/"),
        ("https://a.b/x%2fy", "https://a.b:443/x%2fy"),
    ],
)
def test_what_leads_outside_has_one_spelling(url: str, spelling: str) -> None:
    assert Gate().target(url).url == spelling


async def test_a_name_with_a_private_address_among_public_ones_is_refused() -> None:
    async def both(_host: str, _port: int) -> list[str]:
        return ["93.184.216.34", "10.0.0.1"]

    gate = Gate(resolve=both)

    with pytest.raises(Refused):
        await gate.addresses(gate.target("https://rebound.example/"))


@pytest.mark.parametrize("address", ["not an address", "1.2.3", "::ffff:1.2.3.4", "1.2.3.4%1"])
def test_what_is_no_plain_address_is_not_public(address: str) -> None:
    assert not is_public(address)


@contextlib.asynccontextmanager
async def serving(handler: object) -> AsyncIterator[int]:
    """A server on loopback that answers everything with ``handler``; yields its port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def trusting(port: int, **fields: object) -> Gate:
    return Gate(trusted=frozenset({origin_of(f"http://server.test:{port}")}), **fields)  # type: ignore[arg-type]


async def test_the_address_is_asked_for_once_and_the_answer_is_what_is_used() -> None:
    asked: list[str] = []

    async def changing(host: str, _port: int) -> list[str]:
        asked.append(host)
        # A second question would be answered with an address where nobody listens.
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text=f"to {request.host}")

    async with serving(hello) as port:
        gate = trusting(port, resolve=changing)
        body = await fetch(f"http://server.test:{port}/", gate, max_bytes=100, seconds=5)

    assert body == f"to server.test:{port}".encode()
    assert asked == ["server.test"]


@pytest.mark.parametrize(
    "elsewhere", ["http://127.0.0.1:{trap}/", "https://127.0.0.1/", "https://rebound.example/", "//localhost:{trap}/"]
)
async def test_a_redirect_inside_is_not_followed(elsewhere: str) -> None:
    caught: list[str] = []

    async def trap(request: web.Request) -> web.Response:
        caught.append(request.path)
        return web.Response()

    async with serving(trap) as trap_port:

        async def redirect(_request: web.Request) -> web.Response:
            return web.Response(status=302, headers={"Location": elsewhere.format(trap=trap_port)})

        async with serving(redirect) as port:
            with pytest.raises(Refused):
                await fetch(f"http://server.test:{port}/", trusting(port, resolve=_loopback), max_bytes=100, seconds=5)

    assert caught == []


async def test_headers_stay_with_their_origin() -> None:
    seen: list[str | None] = []

    async def second(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text="there")

    async with serving(second) as second_port:

        async def first(request: web.Request) -> web.Response:
            seen.append(request.headers.get("Authorization"))
            return web.Response(status=307, headers={"Location": f"http://other.test:{second_port}/"})

        async with serving(first) as port:
            trusted = frozenset({f"http://server.test:{port}", f"http://other.test:{second_port}"})
            gate = Gate(trusted=trusted, resolve=_loopback)
            await fetch(
                f"http://server.test:{port}/", gate, max_bytes=100, seconds=5, headers={"Authorization": "Bearer x"}
            )

    assert seen == ["Bearer x", None]


async def test_a_body_is_read_up_to_its_limit_whatever_its_length_is_said_to_be() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await answer.write(b"x" * 10_000)
        return answer

    async with serving(endless) as port:
        with pytest.raises(FetchFailed, match="more than 50000 bytes"):
            await fetch(f"http://server.test:{port}/", trusting(port, resolve=_loopback), max_bytes=50_000, seconds=5)


async def test_redirects_come_to_an_end() -> None:
    async def around(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": request.path})

    async with serving(around) as port:
        with pytest.raises(FetchFailed, match="redirects"):
            await fetch(f"http://server.test:{port}/", trusting(port, resolve=_loopback), max_bytes=100, seconds=5)


async def test_a_failure_does_not_tell_the_path() -> None:
    async def gone(_request: web.Request) -> web.Response:
        return web.Response(status=500)

    async with serving(gone) as port:
        with pytest.raises(FetchFailed) as failure:
            await fetch(
                f"http://server.test:{port}/secret", trusting(port, resolve=_loopback), max_bytes=100, seconds=5
            )

    assert "secret" not in str(failure.value)
