"""A llama of random weights in a GGUF file, made on the spot: a real engine to llama.cpp, under a megabyte.

``python -m tests.fakes.tiny_gguf tiny.gguf``. Its vocabulary is byte-level BPE trained on a few sentences, with the
control tokens of ChatML and Hermes. It never ends an answer by itself, only where a grammar or a limit ends it: so a
test decides how long an answer is.
"""

import random
import struct
import sys
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 4, 128, 32768
MERGES = 100
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
FIRST_BYTE = len(CONTROL) + len(MARKERS)
"""The id of the byte 0; the others follow."""
END = CONTROL.index("<|im_end|>")

_CORPUS = """the quick brown fox jumps over the lazy dog and then it tells a long story about the weather in Paris
system user assistant You are a helpful assistant hello world name arguments city get_weather { " : " , " } 1 2 3"""

# Source: the GGUF specification, version 3.
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _INT32 = 4, 6, 7, 8, 9, 5
_ALIGNMENT = 32
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4


def write_tiny(path: Path, *, seed: int = 1) -> None:
    """The same file for the same seed."""
    tokens, types, merges = _vocabulary()
    metadata: dict[str, tuple[int, Any]] = {
        "general.architecture": (_STRING, "llama"),
        "general.name": (_STRING, "tiny random"),
        "llama.block_count": (_UINT32, LAYERS),
        "llama.context_length": (_UINT32, CONTEXT),
        "llama.embedding_length": (_UINT32, WIDTH),
        "llama.feed_forward_length": (_UINT32, INNER),
        "llama.attention.head_count": (_UINT32, HEADS),
        "llama.attention.layer_norm_rms_epsilon": (_FLOAT32, 1e-5),
        "llama.vocab_size": (_UINT32, len(tokens)),
        "tokenizer.ggml.model": (_STRING, "gpt2"),
        "tokenizer.ggml.pre": (_STRING, "smollm"),
        "tokenizer.ggml.tokens": (_STRING, tokens),
        "tokenizer.ggml.token_type": (_INT32, types),
        "tokenizer.ggml.merges": (_STRING, merges),
        "tokenizer.ggml.bos_token_id": (_UINT32, 1),
        "tokenizer.ggml.eos_token_id": (_UINT32, END),
        "tokenizer.ggml.add_bos_token": (_BOOL, False),
    }
    tensors = _weights(len(tokens), random.Random(seed))
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))]
    head += [_string(key) + _value(kind, value) for key, (kind, value) in metadata.items()]
    offset = 0
    for name, (shape, data) in tensors.items():
        # The shape begins with the innermost dimension; type 0 is 32-bit float.
        head.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset))
        offset += len(data) * data.itemsize
    whole = b"".join(head)
    padding = b"\0" * (-len(whole) % _ALIGNMENT)
    path.write_bytes(whole + padding + b"".join(data.tobytes() for _, data in tensors.values()))


def text_of(ids: Iterable[int]) -> str:
    """What ids of text spell."""
    tokens, _, _ = _vocabulary()
    bytes_by_spelling = {spelling: byte for byte, spelling in _spelled_bytes().items()}
    return bytes(bytes_by_spelling[character] for one in ids for character in tokens[one]).decode()


def _weights(vocabulary: int, rng: random.Random) -> dict[str, tuple[tuple[int, ...], "array[float]"]]:
    def matrix(inner: int, outer: int) -> tuple[tuple[int, ...], "array[float]"]:
        scale = 1.7 / inner**0.5
        return (inner, outer), array("f", [rng.uniform(-scale, scale) for _ in range(inner * outer)])

    def ones() -> tuple[tuple[int, ...], "array[float]"]:
        return (WIDTH,), array("f", [1.0] * WIDTH)

    tensors = {"token_embd.weight": matrix(WIDTH, vocabulary)}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        tensors |= {f"{block}attn_{name}.weight": matrix(WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        tensors |= {f"{block}ffn_{name}.weight": matrix(WIDTH, INNER) for name in ("gate", "up")}
        tensors |= {f"{block}ffn_down.weight": matrix(INNER, WIDTH)}
        tensors |= {f"{block}{name}.weight": ones() for name in ("attn_norm", "ffn_norm")}
    tensors |= {"output_norm.weight": ones(), "output.weight": matrix(WIDTH, vocabulary)}
    # One dimension is large for every token, and says what is sampled: ASCII; no control token, but END rather than
    # another where a grammar leaves nothing else.
    for token in range(vocabulary):
        is_text = FIRST_BYTE <= token < FIRST_BYTE + 128 or token >= FIRST_BYTE + 256
        tensors["token_embd.weight"][1][token * WIDTH] = 8.0
        tensors["output.weight"][1][token * WIDTH] = 0.0 if is_text else -10.0 if token == END else -20.0
    return tensors


def _vocabulary() -> tuple[list[str], list[int], list[str]]:
    """(tokens, their types, merges). Control tokens come first, so that their ids do not depend on the rest."""
    spelled = _spelled_bytes()
    words = Counter(tuple(spelled[byte] for byte in f" {word}".encode()) for word in _CORPUS.split())
    merges: list[str] = []
    pieces = [spelled[byte] for byte in range(256)]
    while len(merges) < MERGES:
        pairs = Counter[tuple[str, str]]()
        for word, count in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += count
        (left, right), _ = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        merges.append(f"{left} {right}")
        pieces.append(left + right)
        words = Counter({_merged(word, left, right): count for word, count in words.items()})
    tokens = [*CONTROL, *MARKERS, *pieces]
    types = [_CONTROL] * len(CONTROL) + [_USER_DEFINED] * len(MARKERS) + [_NORMAL] * len(pieces)
    return tokens, types, merges


def _merged(word: tuple[str, ...], left: str, right: str) -> tuple[str, ...]:
    merged: list[str] = []
    for piece in word:
        if merged and merged[-1] == left and piece == right:
            merged[-1] = left + right
        else:
            merged.append(piece)
    return tuple(merged)


def _spelled_bytes() -> dict[int, str]:
    """How byte-level BPE writes each byte: itself where it is printable, else a character from 256 on.

    Source: the ``bytes_to_unicode`` table of GPT-2.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    spelled = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in spelled:
            spelled[byte] = chr(256 + len(spelled) - len(printable))
    return spelled


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Any) -> bytes:
    if isinstance(value, list):
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_bare(kind, one) for one in value)
    return struct.pack("<I", kind) + _bare(kind, value)


def _bare(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _string(value)
    return struct.pack({_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}[kind], value)


if __name__ == "__main__":
    write_tiny(Path(sys.argv[1]))
