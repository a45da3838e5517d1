"""Going where a URL of somebody else's leads, and never into our own network."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) → its addresses, as text."""

MOST_REDIRECTS = 3
_READ_BYTES = 64 * 1024


class Refused(Exception):
    """This URL must not be gone to, or leads somewhere that must not be. Says nothing about what is there."""


class FetchFailed(Exception):
    """Nothing usable came from there. For our log, and without the URL: its path may be a secret."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of ``host`` as the system knows them. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[4][0]) for address in found]


class Target(msgspec.Struct, frozen=True):
    """Where a URL leads, in its one unambiguous spelling."""

    scheme: str
    host: str
    port: int
    path: str
    """With the query."""

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def url(self) -> str:
        return self.origin + self.path


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """Where one may go. The operator's own origins are ``trusted``: they may be anywhere, on any port."""

    schemes: frozenset[str] = frozenset({"https"})
    ports: frozenset[int] = frozenset({443})
    trusted: frozenset[str] = frozenset()
    """As `origin_of` writes them."""
    resolve: Resolve = resolve

    def target(self, url: str) -> Target:
        """Where ``url`` leads, if its spelling alone tells nothing against it. Raises Refused."""
        target = _parsed(url)
        if target.origin in self.trusted:
            return target
        if target.scheme not in self.schemes:
            raise Refused(f"the scheme {target.scheme!r} is not allowed")
        if target.port not in self.ports:
            raise Refused(f"the port {target.port} is not allowed")
        if _is_address(target.host) and not is_public(target.host):
            raise Refused("the address is not a public one")
        return target

    async def addresses(self, target: Target) -> list[str]:
        """Where to connect to, IPv4 first: resolved once, so that what was checked is what is used.

        Raises:
            Refused: one of them is not public. A name that has both kinds is up to something.
            OSError: there is no such name.
        """
        found = [target.host] if _is_address(target.host) else await self.resolve(target.host, target.port)
        if target.origin not in self.trusted and not all(map(is_public, found)):
            raise Refused("the address is not a public one")
        return sorted(set(found), key=lambda address: ":" in address)


def origin_of(url: str) -> str:
    """``scheme://host:port`` of a URL of the operator's. Raises ValueError."""
    try:
        return _parsed(url).origin
    except Refused as exc:
        raise ValueError(f"{url!r}: {exc}") from exc


# A name of letters, digits and hyphens. What only looks like one, in other scripts, has another spelling: punycode.
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\Z")
# Source: the URL standard's "ends in a number": 127.1, 0x7f.1, 2130706433 are addresses to some parsers.
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\Z")
_PRINTABLE = re.compile(r"[!-\[\]-~]+\Z")  # ASCII without spaces, controls and the backslash
_DEFAULT_PORTS = {"https": 443, "http": 80}


def _parsed(url: str) -> Target:
    if not _PRINTABLE.match(url):
        raise Refused("it holds characters that URLs do not have")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise Refused("it is not a URL") from exc
    scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
    if scheme not in _DEFAULT_PORTS:
        raise Refused(f"the scheme {scheme[:20]!r} is not allowed")
    if "@" in parts.netloc:
        raise Refused("it holds a user name")
    if not _is_address(host) and (not _NAME.match(host) or _NUMERIC.match(host)):
        raise Refused("the host is not a plain name")
    query = f"?{parts.query}" if parts.query else ""
    return Target(scheme, host, _DEFAULT_PORTS[scheme] if port is None else port, (parts.path or "/") + query)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


_UNICAST = ipaddress.IPv6Network("2000::/3")
# Public by their number, and yet not: relays into IPv4, benchmarking, documentation.
_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")
]


def is_public(address: str) -> bool:
    """Whether an address is one of the open internet, and not of ours, nor a way to write one of ours.

    Of IPv6 only ordinary unicast is: that leaves out mapped and NAT64 addresses, whatever they stand for.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and (ip.scope_id is not None or ip not in _UNICAST):
        return False
    is_special = ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback or ip.is_link_local
    in_list = any(ip in network for network in _NOT_PUBLIC if network.version == ip.version)
    return ip.is_global and not is_special and not in_list


class _Pinned(AbstractResolver):
    """Knows one host, by the addresses that were checked."""

    def __init__(self, target: Target, addresses: list[str]) -> None:
        self._target = target
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if host != self._target.host:
            raise OSError(f"only {self._target.host!r} is known here")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


async def fetch(
    url: str, gate: Gate, *, max_bytes: int, seconds: float, headers: Mapping[str, str] | None = None
) -> bytes:
    """The body at ``url``, redirects followed, each of them checked as the first was; headers stay with their origin.

    Raises:
        Refused: the URL, or one that it redirects to.
        FetchFailed: no answer in time, one that is not 200, or more than ``max_bytes`` of it.
    """
    try:
        async with asyncio.timeout(seconds):
            target = gate.target(url)
            first = target.origin
            for _ in range(MOST_REDIRECTS + 1):
                answer = await _get(target, gate, headers if target.origin == first else None, max_bytes)
                if isinstance(answer, bytes):
                    return answer
                target = gate.target(urljoin(target.url, answer))
            raise FetchFailed(f"more than {MOST_REDIRECTS} redirects")
    except TimeoutError as exc:
        raise FetchFailed(f"no answer within {seconds:g} s") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise FetchFailed(type(exc).__name__) from exc


class Answer(msgspec.Struct, frozen=True):
    """What was said to a POST."""

    status: int
    body: bytes
    """Its beginning."""

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300


class Poster:
    """Tells one URL many things, over connections that are kept. A context manager of one event loop.

    Its name is resolved once, and what was checked is what is used.
    """

    def __init__(self, url: str, gate: Gate, *, seconds: float) -> None:
        self._url = url
        self._gate = gate
        self._seconds = seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Poster":
        """Raises Refused, and FetchFailed: there is no such name."""
        with _failures(self._seconds):
            async with asyncio.timeout(self._seconds):
                self._target = self._gate.target(self._url)
                self._session = await _session(self._target, self._gate)
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """What is said to it, whatever the status; redirects are not followed. Raises FetchFailed: no answer."""
        assert self._session is not None, "a poster is used within its block"
        url = URL(self._target.url, encoded=True)
        with _failures(self._seconds):
            async with (
                asyncio.timeout(self._seconds),
                self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                said = bytearray()
                async for piece in answer.content.iter_chunked(_READ_BYTES):
                    said += piece
                    if len(said) >= _READ_BYTES:
                        break
                return Answer(answer.status, bytes(said[:_READ_BYTES]))


async def post(url: str, gate: Gate, body: bytes, *, headers: Mapping[str, str], seconds: float) -> None:
    """Tell ``url`` something.

    Raises:
        Refused: the URL.
        FetchFailed: no answer in time, or one that is not 2xx.
    """
    async with Poster(url, gate, seconds=seconds) as poster:
        answer = await poster.post(body, headers)
    if not answer.is_ok:
        raise FetchFailed(f"the status is {answer.status}")


@contextmanager
def _failures(seconds: float) -> Iterator[None]:
    """What goes wrong on the way, in our words."""
    try:
        yield
    except TimeoutError as exc:
        raise FetchFailed(f"no answer within {seconds:g} s") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise FetchFailed(type(exc).__name__) from exc


async def _session(target: Target, gate: Gate) -> aiohttp.ClientSession:
    """For this one target. Raises as `Gate.addresses` does."""
    connector = aiohttp.TCPConnector(resolver=_Pinned(target, await gate.addresses(target)), use_dns_cache=False)
    return aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())


async def _get(target: Target, gate: Gate, headers: Mapping[str, str] | None, max_bytes: int) -> bytes | str:
    """The body, or where it redirects to."""
    async with (
        await _session(target, gate) as session,
        session.get(URL(target.url, encoded=True), headers=headers, allow_redirects=False) as answer,
    ):
        if answer.status in (301, 302, 303, 307, 308) and "Location" in answer.headers:
            return str(answer.headers["Location"])
        if answer.status != 200:
            raise FetchFailed(f"the status is {answer.status}")
        body = bytearray()
        # Counted while it is read, and as it is unpacked: what a header says of its length may be anything.
        async for piece in answer.content.iter_chunked(_READ_BYTES):
            body += piece
            if len(body) > max_bytes:
                raise FetchFailed(f"more than {max_bytes} bytes")
        return bytes(body)
