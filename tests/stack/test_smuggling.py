"""Ambiguous requests through the proxy of docker-compose.yml: it and our server never disagree about where one ends."""

import asyncio
from urllib.parse import urlsplit

import pytest

from tests.runtime.raw import Raw
from tests.runtime.smuggling import BYTES, CORPUS, answers, with_byte

from .stack import Stack

ASKED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

pytestmark = pytest.mark.stack


@pytest.fixture
def port(stack: Stack) -> int:
    if "proxy" not in stack:
        pytest.skip("nginx is not installed here")
    found = urlsplit(stack.url("proxy")).port
    assert found is not None
    return found


async def said_to(port: int, sent: bytes) -> bytes:
    """What is answered within a moment; who waits for the rest of a body has nothing to say."""
    said = b""
    with Raw(port) as client:
        await client.send(sent)
        try:
            async with asyncio.timeout(2):
                while more := await client.receive():
                    said += more
        except (TimeoutError, ConnectionError):
            pass
    return said


async def test_nobody_gets_the_answer_to_what_somebody_else_has_smuggled(port: int) -> None:
    """nginx may take some of these for two requests; then they are two for everybody behind it, on its own connections
    to us, which all clients share."""
    for _ in range(2):
        asked = [said_to(port, sent) for sent in CORPUS.values()]
        innocent = [said_to(port, ASKED) for _ in range(len(asked))]
        mixed = [one for pair in zip(asked, innocent, strict=True) for one in pair]
        answered = (await asyncio.gather(*mixed))[1::2]

        assert {(answers(said), said[:15]) for said in answered} == {(1, b"HTTP/1.1 200 OK")}


async def test_no_byte_ends_a_header_but_a_line_break(port: int) -> None:
    everything = await asyncio.gather(*(said_to(port, with_byte(byte)) for byte in BYTES.values()))

    assert all(answers(said) == 1 for said in everything)
