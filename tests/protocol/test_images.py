from base64 import b64encode

import pytest

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.images import check_image

REST = b"and so on" * 100
KINDS = {
    "png": b"\x89PNG\r\n\x1a\n",
    "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "gif": b"GIF89a",
    "old gif": b"GIF87a",
    "webp": b"RIFF\x24\x00\x00\x00WEBPVP8 ",
}


def url(data: bytes, kind: str = "image/png", head: str = ";base64") -> str:
    return f"data:{kind}{head},{b64encode(data).decode()}"


@pytest.mark.parametrize("size", range(3))
@pytest.mark.parametrize("beginning", KINDS.values(), ids=KINDS)
def test_what_the_four_formats_begin_with_passes(beginning: bytes, size: int) -> None:
    check_image(url(beginning + REST + b"x" * size), "p")


@pytest.mark.parametrize("kind", ["image/jpeg", "image/jpg", "image/gif", "image/webp", "IMAGE/PNG"])
def test_an_image_that_is_called_something_else_passes(kind: str) -> None:
    check_image(url(KINDS["png"], kind), "p")


def test_attributes_pass() -> None:
    check_image(url(KINDS["png"], head=";charset=utf-8;base64"), "p")


PNG = b64encode(KINDS["png"] + REST).decode()
REFUSED = {
    "another type": ("data:image/svg+xml;base64,AAAA", "unsupported_image_media_type"),
    "no type": ("data:;base64,AAAA", "unsupported_image_media_type"),
    "no base64": (f"data:image/png,{PNG}", "invalid_base64_image"),
    "no comma": ("data:image/png;base64", "invalid_base64_image"),
    "empty": ("data:image/png;base64,", "empty_image_file"),
    "not base64 at its beginning": (f"data:image/png;base64,*{PNG}", "invalid_base64_image"),
    "not base64 at its end": (f"data:image/png;base64,{PNG}===", "invalid_base64_image"),
    "a character short": (f"data:image/png;base64,{PNG.rstrip('=')[:-1]}", "invalid_base64_image"),
    "no ASCII": (f"data:image/png;base64,é{PNG[1:]}", "invalid_base64_image"),
    "text": (url(b"hello, I am a picture"), "invalid_image_format"),
    "a web page": (url(b"<html>"), "invalid_image_format"),
    "an SVG in disguise": (url(b"<svg xmlns='http://www.w3.org/2000/svg'>"), "invalid_image_format"),
    "another RIFF": (url(b"RIFF\x24\x00\x00\x00WAVEfmt "), "invalid_image_format"),
    "half a signature": (url(b"\x89PN"), "invalid_image_format"),
}


@pytest.mark.parametrize(("given", "code"), REFUSED.values(), ids=REFUSED)
def test_everything_else_is_refused(given: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_image(given, "input[0].content[1].image_url")

    assert (caught.value.code, caught.value.param) == (code, "input[0].content[1].image_url")
