"""Requests that two readers may take for different ones: what one calls a body, another may call a second request."""

SECOND = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


def request(*headers: bytes, body: bytes = b"", line: bytes = b"POST /first HTTP/1.1") -> bytes:
    return b"\r\n".join([line, b"Host: localhost", *headers, b"", body])


def lengths(*values: bytes, name: bytes = b"Content-Length:") -> list[bytes]:
    return [name + b" " + value for value in values]


ALL = b"%d" % len(b"0\r\n\r\n" + SECOND)
CHUNKED = b"Transfer-Encoding: chunked"
END = b"0\r\n\r\n" + SECOND
UPGRADE = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")

CORPUS: dict[str, bytes] = {
    "a length and chunks": request(*lengths(ALL), CHUNKED, body=END),
    "chunks and a length": request(CHUNKED, *lengths(ALL), body=END),
    "chunks and a short length": request(CHUNKED, *lengths(b"4"), body=b"5c\r\n" + SECOND + b"\r\n0\r\n\r\n"),
    "two lengths": request(*lengths(b"0", ALL), body=SECOND),
    "two lengths in one": request(*lengths(b"0, " + ALL), body=SECOND),
    "a blank before the colon": request(b"Content-Length : " + ALL, body=END),
    "chunked, a blank before the colon": request(b"Transfer-Encoding : chunked", *lengths(ALL), body=END),
    "a folded line": request(b"X: a\r\n Content-Length: " + ALL, body=SECOND),
    "a folded encoding": request(b"Transfer-Encoding:\r\n chunked", *lengths(ALL), body=END),
    "a line feed alone": b"POST /first HTTP/1.1\nHost: localhost\nContent-Length: %b\n\n" % ALL + END,
    "a carriage return alone": request(b"X: a\rContent-Length: " + ALL, body=SECOND),
    "an encoding with a prefix": request(b"Transfer-Encoding: xchunked", *lengths(ALL), body=END),
    "chunked and more": request(b"Transfer-Encoding: chunked, identity", body=END),
    "chunked twice": request(CHUNKED, b"Transfer-Encoding: identity", *lengths(ALL), body=END),
    "chunked behind a tab": request(b"Transfer-Encoding:\x0bchunked", *lengths(ALL), body=END),
    "chunked in quotes": request(b'Transfer-Encoding: "chunked"', *lengths(ALL), body=END),
    "a length with a sign": request(*lengths(b"+" + ALL), body=END),
    "a length below zero": request(*lengths(b"-1"), body=SECOND),
    "a length in hexadecimal": request(*lengths(b"0x20"), body=END),
    "a length with a blank": request(*lengths(b"0 5"), body=SECOND),
    "a length beyond all": request(*lengths(b"9" * 40), body=SECOND),
    "a chunk in hexadecimal": request(CHUNKED, body=b"0x0\r\n\r\n" + SECOND),
    "a chunk with a sign": request(CHUNKED, body=b"+0\r\n\r\n" + SECOND),
    "a chunk beyond all": request(CHUNKED, body=b"f" * 17 + b"\r\n" + SECOND),
    "a chunk below zero": request(CHUNKED, body=b"-1\r\n" + SECOND),
    "a chunk's line feed": request(CHUNKED, body=b"1\nx\n0\n\n" + SECOND),
    "a chunk that is longer": request(CHUNKED, body=b"1\r\nxx\r\n" + END),
    "another version of WebSockets": request(
        *UPGRADE, b"Sec-WebSocket-Version: 12", body=SECOND, line=b"GET /v1/responses HTTP/1.1"
    ),
    "an upgrade with a length": request(
        *UPGRADE, b"Sec-WebSocket-Version: 13", *lengths(b"0"), body=SECOND, line=b"POST /v1/responses HTTP/1.1"
    ),
    "an upgrade to nothing": request(b"Connection: Upgrade", b"Upgrade: h2c", *lengths(b"5"), body=b"hello" + b"\0"),
    "a nul in a name": request(b"Content\0-Length: " + ALL, body=SECOND),
    "a nul in a value": request(b"X: \0", *lengths(b"0"), body=b"\0"),
    "no version": b"GET /first\r\n" + b"\0",
}
"""None of these may be answered as two requests, whoever is in front."""

BYTES = {f"{byte:#04x}": bytes([byte]) for byte in (0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x85, 0x00, 0x0D)}
"""Where some readers see the end of a line."""


def with_byte(byte: bytes) -> bytes:
    return request(b"X-First: a" + byte + b"X-Smuggled: b", *lengths(b"0"))


def answers(said: bytes) -> int:
    """How many there are."""
    return said.count(b"HTTP/1.1 ") + said.count(b"HTTP/1.0 ")
