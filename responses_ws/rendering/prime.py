"""Renderers of Prime Intellect's package ``renderers``, written by hand for a family each."""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import renderers
from pydantic import TypeAdapter, ValidationError

from responses_ws.protocol.errors import InvalidRequest

from .base import Ask, Draft, Opening, OutputParser, Renderer
from .chat import ChatPrompt
from .conversation import Manners, Message, adapted
from .openings import opening_for
from .parsing import FAMILIES, Parsers
from .template_options import read_model
from .tokenizer import Hidden, Tokenizer
from .tokens import TokenLog

_decode = msgspec.json.decode


class RenderersRenderer(Renderer):
    """One of the package's renderers, by its ``NAME`` there (``qwen3``, ``glm-4.5``), with the model's ``TOKENIZER``.

    ``PARSER`` is how the model writes, as for `TemplateRenderer`; ``KWARGS`` are fields of the package's own
    configuration. Appending is the package's bridge to the next turn; where it builds none, all is rendered.
    """

    file_options = frozenset({"TOKENIZER"})

    def __init__(self, tokenizer: Tokenizer, name: str, *, family: str, fields: Mapping[str, Any]) -> None:
        if family not in FAMILIES:
            raise ValueError(f"PARSER: there is no family {family!r}; there are {', '.join(sorted(FAMILIES))}")
        self.tokenizer = tokenizer
        self._family = family
        self._lent = _Lent(tokenizer)
        try:
            config = TypeAdapter(renderers.RendererConfig).validate_python({"name": name, **fields})
            self._renderer: Any = renderers.create_renderer(self._lent, config)
        except (ValidationError, ValueError) as exc:
            raise ValueError(f"NAME or KWARGS: {exc}") from exc
        self.stop_ids = tuple(self._renderer.get_stop_token_ids())
        self._parsers = Parsers(family, tokenizer.raw, self.stop_ids)
        self._identity = repr((tokenizer.digest, name, sorted(fields.items()))).encode()
        question: list[Message] = [{"role": "user", "content": "x"}]
        closed, opened = self._whole(question, None, opens=False), self._whole(question, None, opens=True)
        self.ids_of_opening = opened[len(closed) :] if opened[: len(closed)] == closed else []

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "RenderersRenderer":
        cls.check_options(options)
        tokenizer = Tokenizer(read_model(options["TOKENIZER"]).document)
        return cls(tokenizer, options["NAME"], family=options.get("PARSER", "plain"), fields=options.get("KWARGS", {}))

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        for key in options.keys() - {"TOKENIZER", "NAME", "PARSER", "KWARGS"}:
            raise ValueError(f"{key} is not an option; there are TOKENIZER, NAME, PARSER, KWARGS")
        for key in {"TOKENIZER", "NAME"} - options.keys():
            raise ValueError(f"{key} is missing")

    def draft(self, prompt: ChatPrompt, ask: Ask) -> Draft:
        parts = (self._identity, ask.tools or b"", prompt.instructions)
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return _PrimeDraft(self, prompt, ask, digest.digest())

    def opening(self, ask: Ask) -> Opening:
        behind = self.tokenizer.raw.decode(list(self.ids_of_opening), skip_special_tokens=False)
        return opening_for(FAMILIES[self._family], self.tokenizer, ask, behind=behind)

    def parser(self, log: TokenLog, ask: Ask) -> OutputParser:
        return self._parsers.parser(log, ask.tools)

    def whole(self, messages: Sequence[Message], tools: bytes | None) -> list[int]:
        """Ids of all of these. Raises InvalidRequest: the renderer refuses them."""
        try:
            return self._whole(messages, tools, opens=True)
        except (ValueError, TypeError, KeyError) as exc:
            raise InvalidRequest("This model's renderer refuses the conversation.", param="input") from exc

    def bridged(
        self, prompt: Sequence[int], said: Sequence[int], new: Sequence[Message], tools: bytes | None
    ) -> list[int] | None:
        """The ids that follow these two, and the end of the answer where it has none; None: there is no bridge."""
        with self._lent.to(hidden := Hidden(self.tokenizer)):
            made = self._renderer.bridge_to_next_turn(
                list(prompt), list(said), self._covered(new, hidden), tools=self._tools(tools, hidden)
            )
        before = [*prompt, *said]
        if made is None or list(made.token_ids[: len(before)]) != before:
            return None
        return list(made.token_ids[len(before) :])

    def _whole(self, messages: Sequence[Message], tools: bytes | None, *, opens: bool) -> list[int]:
        with self._lent.to(hidden := Hidden(self.tokenizer)):
            covered = self._covered(messages, hidden)
            made = self._renderer.render_ids(covered, tools=self._tools(tools, hidden), add_generation_prompt=opens)
        return list(made)

    def _covered(self, messages: Sequence[Message], hidden: Hidden) -> list[Message]:
        return [
            {key: value if key == "role" else hidden.cover(value) for key, value in message.items()}
            for message in adapted(messages, Manners())
        ]

    def _tools(self, encoded: bytes | None, hidden: Hidden) -> list[Message] | None:
        tools: list[Message] | None = hidden.cover(_decode(encoded)) if encoded else None
        for tool in tools or ():
            tool["function"].pop("strict", None)
        return tools


class _PrimeDraft(Draft):
    def __init__(self, renderer: RenderersRenderer, prompt: ChatPrompt, ask: Ask, fingerprint: bytes) -> None:
        self._renderer, self._prompt, self._ask = renderer, prompt, ask
        self._base = TokenLog(fingerprint)
        self._ids: list[int] = []
        log = prompt.tokens
        fits = log is not None and log.fingerprint == fingerprint and log.messages < len(prompt.log)
        self._past = log if fits and log is not None and len(log) and log.spans.last.kind == "sampled" else None
        self.path = "full" if self._past is None else "append"
        self.kept_tokens = 0 if self._past is None else len(self._past)
        self._messages = prompt.log.since(0 if self._past is None else self._past.messages)
        self.size = sum(map(len, self._messages))

    def make(self) -> None:
        messages: list[Message] = _decode(b"[%s]" % b",".join(self._messages))
        if self._past is not None:
            spans = self._past.spans
            # No more than the last turn is looked at.
            start = spans[len(spans) - 2].end if len(spans) > 1 else 0
            before = spans[len(spans) - 3].end if len(spans) > 2 else 0
            made = self._renderer.bridged(
                self._past.since(before)[: start - before], self._past.since(start), messages, self._ask.tools
            )
            if made is not None:
                self._base, self._ids = self._past, made
                return
            self.path, self.kept_tokens = "full", 0
            messages = _decode(b"[%s]" % b",".join(self._prompt.log))
        front: list[Message] = _decode(b"[%s]" % self._prompt.instructions)
        self._ids = self._renderer.whole([*front, *messages], self._ask.tools)

    def log(self) -> TokenLog:
        opening = self._renderer.ids_of_opening
        held = len(self._prompt.log)
        is_apart = bool(opening) and self._ids[-len(opening) :] == opening
        if not is_apart:
            return self._base.extended(self._ids, "opening", messages=held)
        log = self._base.extended(self._ids[: -len(opening)], "rendered", messages=held)
        return log.extended(opening, "opening", messages=held)


class _Lent:
    """Our tokenizer as the package wants one. Marks of hidden texts come out as these texts, never as controls."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._thread = threading.local()
        self.name_or_path = ""
        self.unk_token_id: int | None = None

    def to(self, hidden: Hidden) -> "_Lending":
        """Lend it for one rendering, in this thread."""
        return _Lending(self._thread, hidden)

    def encode(self, text: str, add_special_tokens: bool = False, **_options: Any) -> list[int]:
        hidden = getattr(self._thread, "hidden", None) or Hidden(self._tokenizer)
        return list(self._tokenizer.encode(text, hidden))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **_options: Any) -> str:
        return str(self._tokenizer.raw.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.raw.token_to_id(tokens)
        return [self._tokenizer.raw.token_to_id(token) for token in tokens]


class _Lending:
    def __init__(self, thread: threading.local, hidden: Hidden) -> None:
        self._thread, self._hidden = thread, hidden

    def __enter__(self) -> None:
        self._thread.hidden = self._hidden

    def __exit__(self, *_exc: object) -> None:
        self._thread.hidden = None
