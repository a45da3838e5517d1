"""Tokenizers out of GGUF files: what llama.cpp's model files say of them."""

import struct
from collections.abc import Mapping
from typing import Any

_STRING, _ARRAY = 8, 9
# struct's letters by GGUF's numbers of types.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_CONTROL, _USER_DEFINED = 3, 4

_GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT4 = (
    r"(?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS = r"\p{N}"


def read_metadata(data: bytes | memoryview) -> dict[str, Any]:
    """Keys and values at the beginning of a GGUF file, which may be mapped into memory: weights stay unread.

    Source: the GGUF specification in the ggml repository, versions 2 and 3.

    Raises:
        ValueError: it is no GGUF file, or one that is cut short.
    """
    reader = _Reader(memoryview(data))
    if bytes(reader.take(4)) != b"GGUF":
        raise ValueError("not a GGUF file")
    version = reader.number("I")
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version} is not known")
    reader.number("Q")  # how many tensors there are
    return {reader.string(): reader.value(reader.number("I")) for _ in range(reader.number("Q"))}


def tokenizer_document(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer as a ``tokenizer.json`` says it.

    Raises:
        ValueError: it is of a kind that cannot be said so.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise ValueError(f"its tokenizer is of the kind {model!r}; only 'gpt2', byte-level BPE, can be read from GGUF")
    kind = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind not in _KINDS:
        raise ValueError(f"its tokenizer cuts text as {kind!r} does; known are {', '.join(sorted(_KINDS))}")
    patterns, looks_up_first, normalizer = _KINDS[kind]
    try:
        tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    except KeyError as exc:
        raise ValueError(f"it has no {exc.args[0]}") from exc
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    flags = {"normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": token_id, "content": token, "special": types[token_id] == _CONTROL, **flags}
            for token_id, token in enumerate(tokens)
            if types[token_id] in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": merges,
            "ignore_merges": looks_up_first,
        },
    }


def token_names(metadata: Mapping[str, Any], *roles: str) -> list[str]:
    """Names of the tokens that have these roles: ``bos``, ``eos``, ``eot``, ``eom``; those that there are."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    ids = (metadata.get(f"tokenizer.ggml.{role}_token_id") for role in roles)
    return [tokens[token_id] for token_id in ids if token_id is not None and token_id < len(tokens)]


# By tokenizer.ggml.pre: where text is cut, one pattern within the pieces of the one before; whether whole words of the
# vocabulary are taken before anything is merged; and how text is normalised. Source: the tokenizer.json of the models
# that these are named for.
_KINDS: dict[str, tuple[list[str], bool, dict[str, str] | None]] = {
    "gpt-2": ([_GPT2], False, None),
    "smollm": ([_DIGITS, _GPT2], False, None),
    "starcoder": ([_DIGITS, _GPT2], False, None),
    "llama-bpe": ([_GPT4 % 3], True, None),
    "llama3": ([_GPT4 % 3], True, None),
    "qwen2": ([_GPT4 % 1], False, {"type": "NFC"}),
    "deepseek-r1-qwen": ([_GPT4 % 1], False, {"type": "NFC"}),
}


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, length: int) -> memoryview:
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError("the GGUF file is cut short")
        return self._data[start : self._at]

    def number(self, letter: str) -> Any:
        form = f"<{letter}"
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        return str(self.take(self.number("Q")), "utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise ValueError(f"the GGUF file has a value of the unknown type {kind}")
            return self.number(_SCALARS[kind])
        inner, length = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            form = f"<{length}{_SCALARS[inner]}"
            return list(struct.unpack(form, self.take(struct.calcsize(form))))
        return [self.value(inner) for _ in range(length)]
