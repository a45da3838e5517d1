import gzip
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from django.test import AsyncClient

from responses_ws.models import ApiKey
from responses_ws.protocol.errors import ApiError
from responses_ws.transports.bodies import decompressed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BODY = b'{"model": "scripted", "input": "Hello"}'
LIMIT = 1000
ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstd.compress,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
}


def wide(body: bytes) -> bytes:
    """A zstd frame that wants a window of 128 MiB."""
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(body) + compressor.flush()


async def post(api_key: ApiKey, body: bytes, encoding: str) -> Any:
    headers = {"Authorization": f"Bearer {api_key.secret}", "Content-Encoding": encoding}
    return await AsyncClient().post("/v1/responses", body, content_type="application/json", headers=headers)


@pytest.mark.parametrize("encoding", ENCODERS)
async def test_a_compressed_body_is_read_like_a_plain_one(api_key: ApiKey, encoding: str) -> None:
    answer = await post(api_key, ENCODERS[encoding](BODY), encoding.upper())

    assert answer.json()["output"][0]["content"][0]["text"] == 'You said: "Hello"'


async def test_identity_is_no_encoding(api_key: ApiKey) -> None:
    assert (await post(api_key, BODY, "identity")).status_code == 200


async def test_nothing_is_decompressed_for_those_without_a_key(api_key: ApiKey) -> None:
    api_key.secret = "sk-proj-unknown"

    for body, encoding in ((b"no zstd", "zstd"), (BODY, "br")):
        assert (await post(api_key, body, encoding)).status_code == 401


async def test_an_encoding_that_is_not_served_is_415_and_says_what_is(api_key: ApiKey) -> None:
    answer = await post(api_key, BODY, "br")

    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")
    assert answer["Accept-Encoding"] == "zstd, gzip, deflate"


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize(
    ("size", "status"),
    [pytest.param(LIMIT, None, id="at the limit"), pytest.param(LIMIT + 1, 413, id="over it")],
)
def test_the_limit_is_for_what_comes_out(encoding: str, size: int, status: int | None) -> None:
    body = ENCODERS[encoding](b"x" * size)

    if status is None:
        assert decompressed(body, encoding, limit=LIMIT) == b"x" * size
        return
    with pytest.raises(ApiError) as caught:
        decompressed(body, encoding, limit=LIMIT)
    assert caught.value.status == status


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_bomb_is_stopped_while_it_unfolds(encoding: str) -> None:
    bomb = ENCODERS[encoding](bytes(200 * 1024 * 1024))
    tracemalloc.start()

    with pytest.raises(ApiError) as caught:
        decompressed(bomb, encoding, limit=LIMIT)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.status == 413
    assert peak < 1024 * 1024


@pytest.mark.parametrize(
    ("spoil", "encoding"),
    [
        pytest.param(lambda body: BODY, encoding, id=f"plain as {encoding}") for encoding in ENCODERS
    ]
    + [pytest.param(lambda body: body[:-3], encoding, id=f"{encoding} cut") for encoding in ENCODERS]
    + [pytest.param(lambda body: b"", encoding, id=f"{encoding} of nothing") for encoding in ENCODERS]
    + [pytest.param(lambda body: body + body, encoding, id=f"{encoding} twice") for encoding in ENCODERS]
    + [pytest.param(lambda body: wide(BODY), "zstd", id="a window for giants")],
)  # fmt: skip
def test_what_does_not_decompress_is_400(spoil: Callable[[bytes], bytes], encoding: str) -> None:
    body = spoil(ENCODERS[encoding](BODY))

    with pytest.raises(ApiError) as caught:
        decompressed(body, encoding, limit=LIMIT)

    assert (caught.value.status, caught.value.code) == (400, "invalid_encoding")


@pytest.mark.parametrize("encoding", ["br", "gzip, zstd", "x" * 1000, "zstd;q=1"])
def test_only_one_known_encoding_is_taken(encoding: str) -> None:
    with pytest.raises(ApiError) as caught:
        decompressed(BODY, encoding, limit=LIMIT)

    assert caught.value.status == 415
    assert len(caught.value.message) < 200
