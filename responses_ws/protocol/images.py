"""Images: data URLs of four types. Looked at once, when they come; afterwards they are text like any other."""

import binascii

from .errors import InvalidRequest

_TYPES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
_NAMES = "PNG, JPEG, GIF or WebP"
# The first 24 characters of base64 are 18 bytes: more than any of these needs.
_HEAD = 24


def check_image(url: str, param: str) -> None:
    """A data URL, already known to be one. Raises InvalidRequest.

    Costs nothing for its contents: what it begins and ends with is decoded, and its length has to be that of base64.
    What it really is counts, not what it says: clients name their pictures carelessly, and decoders look for
    themselves.

    Source: OpenAI's codes for images.
    """
    head, comma, data = url.partition(",")
    kind, *attributes = head.removeprefix("data:").lower().split(";")
    if kind not in _TYPES:
        raise InvalidRequest(
            f"Images of the type {kind[:40]!r} are not accepted: send {_NAMES}.",
            code="unsupported_image_media_type",
            param=param,
        )
    if not comma or "base64" not in attributes:
        raise InvalidRequest("The image is not a base64 data URL.", code="invalid_base64_image", param=param)
    if not data:
        raise InvalidRequest("The image is empty.", code="empty_image_file", param=param)
    try:
        # A padded end: its length may be anything there, but has to be whole.
        beginning = binascii.a2b_base64(data[:_HEAD], strict_mode=True)
        binascii.a2b_base64(data[-(len(data) % 4 or 4) :], strict_mode=True)
    except ValueError as exc:
        raise InvalidRequest("The image is not valid base64.", code="invalid_base64_image", param=param) from exc
    if not _is_image(beginning):
        raise InvalidRequest(f"The image is none: send {_NAMES}.", code="invalid_image_format", param=param)


def _is_image(beginning: bytes) -> bool:
    """Source: the signatures in the specifications of the four formats."""
    if beginning.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")):
        return True
    return beginning.startswith(b"RIFF") and beginning[8:12] == b"WEBP"
