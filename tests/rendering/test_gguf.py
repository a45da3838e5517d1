"""Tokenizers out of GGUF files: read right, and the same as llama.cpp's own."""

import asyncio
import mmap
import random
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from responses_ws.engines.embedded import EmbeddedLlama, bundled_model
from responses_ws.rendering.gguf import read_metadata, token_names, tokenizer_document
from responses_ws.rendering.tokenizer import Tokenizer
from responses_ws.runtime import renderers

ROOT = Path(__file__).parents[2]
MISSING = EmbeddedLlama.available()
needs_model = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

LETTERS = [chr(one) for one in range(33, 127)] + ["Ġ", "Ċ"]
SMALL = {
    "general.architecture": "llama",
    "general.file_type": 3,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*LETTERS, "he", "<|end|>", "<tool>"],
    "tokenizer.ggml.token_type": [1] * (len(LETTERS) + 1) + [3, 4],
    "tokenizer.ggml.merges": ["h e"],
    "tokenizer.ggml.eos_token_id": len(LETTERS) + 1,
    "tokenizer.ggml.add_bos_token": False,
}


def written(metadata: dict[str, Any], *, version: int = 3) -> bytes:
    """The beginning of a GGUF file that says this."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value_of(value: Any) -> bytes:
        if isinstance(value, bool):
            return struct.pack("<I?", 7, value)
        if isinstance(value, int):
            return struct.pack("<II", 4, value)
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        if isinstance(value[0], int):
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))

    pairs = b"".join(text(key) + value_of(value) for key, value in metadata.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(metadata)) + pairs


def test_what_a_file_says_is_read_and_its_weights_are_not() -> None:
    assert read_metadata(written(SMALL) + b"\0" * 100) == SMALL


@pytest.mark.parametrize(
    "data, message",
    [
        pytest.param(b"PK\3\4", "not a GGUF file", id="another format"),
        pytest.param(written({}, version=1), "version 1 is not known", id="another version"),
        pytest.param(written(SMALL)[:-5], "cut short", id="cut short"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_metadata(data)


@pytest.mark.parametrize(
    "changed, message",
    [
        pytest.param({"tokenizer.ggml.model": "llama"}, "of the kind 'llama'", id="sentencepiece"),
        pytest.param({"tokenizer.ggml.pre": "martian"}, "cuts text as 'martian' does", id="pre-tokenizer"),
    ],
)
def test_a_tokenizer_that_cannot_be_told_says_why(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer_document(SMALL | changed)


def test_control_tokens_and_markers_are_told_apart_from_words() -> None:
    tokenizer = Tokenizer(tokenizer_document(SMALL))

    assert tokenizer.controls == {"<|end|>": len(LETTERS) + 1, "<tool>": len(LETTERS) + 2}
    assert tokenizer.raw.encode("he<|end|>").ids == [len(LETTERS), len(LETTERS) + 1]
    assert token_names(SMALL, "eos", "eot") == ["<|end|>"]


def test_a_model_file_is_all_that_a_renderer_needs(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(written(SMALL))

    renderer = renderers.load({"TOKENIZER": str(path), "TEMPLATE": "hermes"})

    assert renderer.stop_ids == (len(LETTERS) + 1,)


HARD = [
    "Hello, world! 3.14159 and 1,000,000 or 0x7f000001; 2026-11-29T22:00:00Z",
    "   leading and trailing   ",
    "\n\n\nlines\r\n\r\nof\n \n  every\t\tkind\v\f\x1c\x85\u2028\u3000.",
    "don't I'LL you've WE'RE he'd it's 'tis rock'n'roll",
    "Grüße, naïve café, Ångström, İstanbul, ﬁ ligature, e\u0301 combining",
    "日本語のテキスト、中文文本。한국어 텍스트 ภาษาไทย हिन्दी العربية עברית",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈🇳🇴 ☃︎ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 ①②③ ½ ² ٣٤٥ Ⅷ",
    "def f(x: int = 0) -> str:\n\tif x != 1:\n        return f'{x!r:>{10}}'  # comment\n\n\n",
    '{"a": [1, 2.5e-10, null], "b": "\\u003c|im_start|\\u003e\\n"}',
    "<html><body class='x'>&nbsp;</body></html> <|im_ start|> |im_end|> <tool_call>",
    "a" * 300 + " " * 70 + "-" * 90 + "\t" * 9,
    "\u200b\u200d\ufeff\u00ad\x00\x01\x7f\ufffd\U0010ffff",
    "https://example.org/a?b=c&d=%20#e C:\\Users\\x ~/.config $HOME `ls -la` @user #tag",
    "ALLCAPS camelCase snake_case kebab-case SCREAMING_SNAKE x1y2z3 v1.2.3-rc4",
]


def bundled() -> Tokenizer:
    path = bundled_model()
    assert path is not None
    with open(path, "rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return Tokenizer(tokenizer_document(read_metadata(data)))


@needs_model
async def test_ids_of_the_bundled_model_are_those_of_llama_cpp() -> None:
    ours = bundled().raw
    chance = random.Random(20)
    texts = [*HARD, *(file.read_text() for file in sorted(ROOT.glob("docs/**/*.md"))[:8])]
    texts += [file.read_text() for file in sorted(ROOT.glob("responses_ws/rendering/*.py"))[:8]]
    # Letters of every kind, thrown together: where pieces are cut depends on their neighbours.
    kinds = "aZ0 9\n\t.'-_<é日🙂\u0301\u00a0٣½"
    texts += ["".join(chance.choices(kinds, k=60)) for _ in range(150)]
    engine = EmbeddedLlama("referee", {})

    async with asyncio.timeout(120):
        try:
            theirs = [await _tokenized(engine, text) for text in texts]
        finally:
            await engine.aclose()

    for text, ids in zip(texts, theirs, strict=True):
        assert ours.encode(text, add_special_tokens=False).ids == ids, text[:200]


async def _tokenized(engine: EmbeddedLlama, text: str) -> list[int]:
    body = msgspec.json.encode({"content": text, "add_special": False, "parse_special": True})
    answer = await engine._child.ask("/tokenize", body, seconds=30)
    ids: list[int] = msgspec.json.decode(answer)["tokens"]
    return ids
