"""Ambiguous requests, to our server without a proxy."""

from typing import Any

import pytest

from .echo import echoing
from .raw import Raw
from .smuggling import BYTES, CORPUS, answers, with_byte


class Witness:
    """An application that remembers what it was asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.headers: set[bytes] = set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        self.headers |= {name for name, _ in scope["headers"]}
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
            return
        message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def impatient(settings: Any) -> None:
    """Who waits for the rest of a body waits for nothing here."""
    limits = {"head_seconds": 0.5, "body_seconds": 0.5, "http_keep_alive_seconds": 1}
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}


async def test_nothing_is_answered_as_two(impatient: None) -> None:
    witness = Witness()
    async with echoing(witness) as port:
        for what, sent in CORPUS.items():
            with Raw(port) as client:
                await client.send(sent)
                said = await client.rest()

            assert answers(said) <= 1, f"{what}: {said!r}"
            assert "/smuggled" not in witness.paths, what


@pytest.mark.parametrize("byte", BYTES.values(), ids=BYTES)
async def test_no_byte_ends_a_header_but_a_line_break(impatient: None, byte: bytes) -> None:
    witness = Witness()
    async with echoing(witness) as port:
        with Raw(port) as client:
            await client.send(with_byte(byte))
            said = await client.rest()

    # 0x85 is a letter of Latin-1, and stays one.
    assert said.startswith(b"HTTP/1.1 400" if byte != b"\x85" else b"HTTP/1.1 200")
    assert b"x-smuggled" not in witness.headers
