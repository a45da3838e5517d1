"""Request bodies: whole, decompressed, and never larger than the limit."""

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import InvalidRequest, PayloadTooLarge, UnsupportedEncoding

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def _zstd() -> Any:
    # Source: RFC 9659: as a content encoding, zstd has windows of at most 8 MiB.
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 23})


def _gzip() -> Any:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


_DECODERS: dict[str, Callable[[], Any]] = {"zstd": _zstd, "gzip": _gzip, "x-gzip": _gzip, "deflate": zlib.decompressobj}


async def read_body(request: HttpRequest) -> bytes:
    """The body of a request, without its encoding. Work that is done for those with a key: authenticate them first.

    Bounded by our own limit: Django's ``DATA_UPLOAD_MAX_MEMORY_SIZE`` is made for forms.

    Raises:
        PayloadTooLarge: as it was sent, or decompressed.
        UnsupportedEncoding: a ``Content-Encoding`` that is not served, or several.
        InvalidRequest: it does not decompress.
    """
    limit = app_settings.limits.max_frame_bytes
    body: bytes = request.read(limit + 1)
    if len(body) > limit:
        raise PayloadTooLarge(f"The request body is larger than {limit} bytes.")
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body
    return await asyncio.to_thread(decompressed, body, encoding, limit=limit)


def decompressed(body: bytes, encoding: str, *, limit: int) -> bytes:
    """``body`` without its encoding. Never makes more than ``limit`` + 1 bytes, whatever the body promises."""
    make = _DECODERS.get(encoding)
    if make is None:
        raise UnsupportedEncoding(
            f"The content encoding {encoding[:64]!r} is not supported; send zstd, gzip, deflate or none.",
            headers={"Accept-Encoding": "zstd, gzip, deflate"},
        )
    decoder = make()
    try:
        plain: bytes = decoder.decompress(body, limit + 1)
    except (zlib.error, zstd.ZstdError) as exc:
        raise InvalidRequest(f"The request body is not valid {encoding}.", code="invalid_encoding") from exc
    if len(plain) > limit:
        raise PayloadTooLarge(f"The decompressed request body is larger than {limit} bytes.")
    # One stream only: a body of a million empty ones would cost a pass over the rest for each.
    if not decoder.eof or decoder.unused_data:
        raise InvalidRequest(f"The request body is not one whole {encoding} stream.", code="invalid_encoding")
    return plain
