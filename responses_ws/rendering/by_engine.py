"""Prompts that the engine renders itself, for models whose chat template is not at hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .base import Ask, Draft, EngineDraft, Opening, OutputParser, Renderer
from .chat import ChatPrompt
from .openings import opening_for
from .parsing import FAMILIES, Parsers
from .template_options import read_model
from .tokenizer import Tokenizer
from .tokens import TokenLog


class ByEngineOptions(msgspec.Struct, frozen=True, kw_only=True, rename="upper", forbid_unknown_fields=True):
    """Options of `ByEngine`, each by its name in capitals."""

    tokenizer: Any
    """Path of a ``tokenizer.json``, of the folder it is in, or of a GGUF file."""
    parser: str = "plain"
    """Family of models whose way of writing reasoning and calls it has."""
    stop_tokens: list[str] = []
    """Names of control tokens that end an answer, beside those that the model's files name."""


class ByEngine(Renderer):
    """Lets the engine make the ids of every prompt, and parses what it samples.

    A fallback: each turn costs the length of its conversation, an answer goes back as the template writes it, and
    whether text can become a control token is the engine's affair. For engines that tell it: vLLM and llama.cpp.
    """

    file_options = frozenset({"TOKENIZER"})

    def __init__(self, tokenizer: Tokenizer, *, family: str, stop_tokens: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._family = family
        self.stop_ids = tuple(tokenizer.controls[name] for name in stop_tokens)
        self._parsers = Parsers(family, tokenizer.raw, self.stop_ids)

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "ByEngine":
        read = _read(options)
        try:
            model = read_model(read.tokenizer)
            tokenizer = Tokenizer(model.document)
        except ValueError as exc:
            raise ValueError(f"TOKENIZER: {exc}") from exc
        unknown = [name for name in read.stop_tokens if name not in tokenizer.controls]
        if unknown:
            raise ValueError(f"STOP_TOKENS: the tokenizer has no control token {', '.join(unknown)}")
        stops = [name for name in [*model.stop_tokens, *read.stop_tokens] if name in tokenizer.controls]
        return cls(tokenizer, family=read.parser, stop_tokens=list(dict.fromkeys(stops)))

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        _read(options)

    @property
    def notes(self) -> list[str]:
        return ["its engine renders every prompt whole: a turn costs the length of its conversation"]

    def draft(self, prompt: ChatPrompt, ask: Ask) -> Draft:
        return EngineDraft(len(prompt.log), self.stop_ids)

    def opening(self, ask: Ask) -> Opening:
        return opening_for(FAMILIES[self._family], self._tokenizer, ask, behind="")

    def parser(self, log: TokenLog, ask: Ask) -> OutputParser:
        return self._parsers.parser(log, ask.tools)


def _read(options: Mapping[str, Any]) -> ByEngineOptions:
    """Raises ValueError: an unknown, missing or mistyped key; the message begins with it."""
    try:
        read = msgspec.convert(dict(options), ByEngineOptions)
    except msgspec.ValidationError as exc:
        raise ValueError(str(exc)) from exc
    if read.parser not in FAMILIES:
        raise ValueError(f"PARSER: there is no family {read.parser!r}; there are {', '.join(sorted(FAMILIES))}")
    return read
