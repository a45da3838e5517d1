"""The renderer for models that bring a tokenizer and a Jinja chat template along."""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

import msgspec

from . import facts as made
from .base import Ask, Draft, Opening, OutputParser, Renderer
from .chat import ChatPrompt
from .chat_template import ChatTemplate, TemplateFault, values_for
from .conversation import Message, adapted
from .draft import FullDraft, NextDraft
from .facts import TOOL, probe
from .forms import Forms
from .openings import opening_for
from .parsing import FAMILIES, Parsers
from .seams import Anchor, Kind, Seam, Seams, Setting, outline_of
from .template_options import read_model, read_options, template_of
from .tokenizer import Hidden, Tokenizer
from .tokens import Span, TokenLog

_decode = msgspec.json.decode
_MOST_STEPS_BACK = 32
_MOST_REMEMBERED = 32
_CHARACTERS_AT_LEAST = 1 << 20
_CHARACTERS_A_BYTE = 8

Thinking = Literal["template", "keep"]


class TemplateRenderer(Renderer):
    """Renders by a model's chat template, as ``apply_chat_template`` of transformers would.

    Of a conversation that goes on only what is new is rendered. Where the template writes earlier messages otherwise
    once others follow, the log is cut back to the last place from which on it does not, and rendered anew from there.

    What a template does is found out when the renderer is made, by small conversations; nothing is known of families.

    Args:
        tokenizer: of the model.
        template: Jinja source.
        family: how it writes reasoning and calls; a name of ``rendering.parsing.FAMILIES``.
        thinking: ``template``: reasoning is forgotten where the template leaves it out, at the cost of rendering the
            turns since the last user message again. ``keep``: nothing that was sampled is ever forgotten.
        values: further variables of the template. They win over what a request says of them.
        stop_tokens: names of control tokens that end an answer, beside those that the template writes there.
        now: what the template's clock tells.

    Raises:
        ValueError: the template is none, or cannot render a question and its answer.
    """

    file_options = frozenset({"TOKENIZER", "TEMPLATE"})

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        *,
        family: str = "plain",
        thinking: Thinking = "template",
        values: Mapping[str, Any] | None = None,
        stop_tokens: Collection[str] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if family not in FAMILIES:
            raise ValueError(f"there is no family {family!r}; there are {', '.join(sorted(FAMILIES))}")
        self.tokenizer = tokenizer
        self.family = family
        self._values = dict(values or {})
        self._template = ChatTemplate(template, nonce=tokenizer.nonce, now=now)
        self.facts = probe(self._render_as_is)
        stops = set(stop_tokens)
        unknown = stops - tokenizer.controls.keys()
        if unknown:
            raise ValueError(f"the tokenizer has no control token {', '.join(sorted(unknown))}")
        first = next((name for name in _in_order(tokenizer, self.facts.closing)), None)
        stops |= {first} if first else set()
        self.stop_ids = tuple(
            tokenizer.controls[name]
            for name in sorted(stops, key=lambda name: (name != first, tokenizer.controls[name]))
        )
        self.stop_names = frozenset(stops)
        self._parsers = Parsers(family, tokenizer.raw, self.stop_ids)
        self.mark = f"mark{tokenizer.nonce}"
        self.forgets_at_user = thinking == "template" and self.facts.forgets_at_user
        self.forgets_at_once = thinking == "template" and self.facts.forgets_at_once
        self.seams = Seams(self._render_adapted, self.mark, _any_of(stops))
        self.forms = Forms(template, nonce=tokenizer.nonce, mark=self.mark, facts=self.facts, values=self._values)
        self._hides_endings = any(map(tokenizer.begins_control, self.facts.scaffolds))
        self._identity = hashlib.blake2b(
            repr([tokenizer.digest, template, sorted(self._values.items()), thinking, sorted(stops)]).encode(),
            digest_size=16,
        ).digest()
        self.ids_of_opening = lru_cache(maxsize=_MOST_REMEMBERED)(self._ids_of_opening)
        self._openings: dict[tuple[Any, ...], tuple[Any, Opening]] = {}
        self._heads: dict[str | None, bytes] = {}
        self._decoded_tools: dict[bytes, list[Message]] = {}

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "TemplateRenderer":
        """See `TemplateOptions`."""
        read = read_options(options)
        try:
            model = read_model(read.tokenizer)
            tokenizer = Tokenizer(model.document)
        except ValueError as exc:
            raise ValueError(f"TOKENIZER: {exc}") from exc
        source = template_of(read.template, model)
        stops = {name for name in model.stop_tokens if name in tokenizer.controls}
        unknown = [name for name in read.stop_tokens if name not in tokenizer.controls]
        if unknown:
            raise ValueError(f"STOP_TOKENS: the tokenizer has no control token {', '.join(unknown)}")
        try:
            return cls(
                tokenizer,
                source,
                family=read.parser,
                thinking=read.thinking,
                values={**model.variables, **read.kwargs},
                stop_tokens=stops | set(read.stop_tokens),
            )
        except ValueError as exc:
            raise ValueError(f"TEMPLATE: {exc}") from exc

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        read_options(options)

    def draft(self, prompt: ChatPrompt, ask: Ask) -> Draft:
        fingerprint = self._fingerprint(prompt, ask)
        log = prompt.tokens
        if log is not None and log.messages and log.fingerprint == fingerprint and log.messages <= len(prompt.log):
            found = self._place(prompt, ask, log)
            if found is not None:
                kept, seam = found
                return NextDraft(self, prompt, ask, log, kept=kept, seam=seam)
        return FullDraft(self, prompt, ask, TokenLog(fingerprint))

    @property
    def notes(self) -> list[str]:
        return [] if self.facts.shows_tools else ["the chat template tells nothing of tools: none will be called"]

    def opening(self, ask: Ask) -> Opening:
        if ask.schema is not None or isinstance(ask.tool_choice, Mapping):
            return self._opening(ask)
        # Along a chain these are the same objects. The schemas are remembered, so that no others get their number.
        asked = (ask.tools, ask.tool_choice, ask.parallel_tool_calls, ask.reasoning_effort, ask.constraints)
        key = (*asked, id(ask.schemas) if ask.schemas else None)
        known = self._openings.get(key)
        if known is None:
            if len(self._openings) >= _MOST_REMEMBERED:
                self._openings.clear()
            known = self._openings[key] = (ask.schemas, self._opening(ask))
        return known[1]

    def _opening(self, ask: Ask) -> Opening:
        behind = self.seams.opening("u", Setting(bool(ask.tools), has_front=False, effort=ask.reasoning_effort))
        return opening_for(FAMILIES[self.family], self.tokenizer, ask, behind=behind or "")

    def parser(self, log: TokenLog, ask: Ask) -> OutputParser:
        return self._parsers.parser(log, ask.tools)

    def render(
        self, messages: Sequence[Message], ask: Ask, hidden: Hidden, *, size: int, stands_in: bool = False
    ) -> str:
        """Text of chat messages of this ``size`` in bytes, and where the answer begins. ``stands_in``: one tool stands
        for all that there are."""
        tools = self._tools(ask.tools)
        covered = [
            {key: value if key == "role" else hidden.cover(value) for key, value in message.items()}
            for message in adapted(messages, self.facts.manners)
        ]
        return self._template.render(
            covered,
            tools=([TOOL] if tools else None) if stands_in else hidden.cover(tools),
            opens_answer=True,
            most_characters=_CHARACTERS_AT_LEAST + _CHARACTERS_A_BYTE * (size + len(ask.tools or b"")),
            values={**values_for(ask.reasoning_effort), **self._values},
        )

    def hidden(self) -> Hidden:
        """What keeps texts apart in one rendering."""
        return Hidden(self.tokenizer, hides_endings=self._hides_endings)

    def _ids_of_opening(self, text: str, behind: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, Hidden(self.tokenizer), behind=behind))

    def setting(self, prompt: ChatPrompt, ask: Ask) -> Setting:
        has_front = bool(self.facts.has_late_head and self.front(prompt))
        return Setting(bool(ask.tools), has_front, ask.reasoning_effort)

    def front(self, prompt: ChatPrompt) -> list[Message]:
        """The system messages at the beginning."""
        front: list[Message] = _decode(b"[%s]" % prompt.instructions)
        if len(prompt.log) and outline_of(prompt.log[0]).role == "system":
            front.append(_decode(prompt.log[0]))
        return front

    def _render_as_is(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        opens_answer: bool = False,
        effort: str | None = None,
    ) -> str:
        return self._template.render(
            messages,
            tools=tools,
            opens_answer=opens_answer,
            most_characters=_CHARACTERS_AT_LEAST,
            values={**values_for(effort), **self._values},
        )

    def _render_adapted(
        self,
        messages: Sequence[Message],
        setting: Setting,
        *,
        opens_answer: bool = False,
    ) -> str:
        front = [made.system()] if setting.has_front else []
        given = adapted([*front, *messages], self.facts.manners)
        tools = [TOOL] if setting.has_tools else None
        return self._render_as_is(given, tools=tools, opens_answer=opens_answer, effort=setting.effort)

    def _place(self, prompt: ChatPrompt, ask: Ask, log: TokenLog) -> tuple[int, Seam] | None:
        """The last place to go on from: how many spans are kept, and what is to be written there."""
        spans = log.spans
        outlines = [outline_of(message) for message in prompt.log.since(log.messages)]
        new: list[Kind] = [outline.kind for outline in outlines]
        kept = _without_openings(spans, len(spans))
        kept = self._before_forgotten(prompt, log, kept, new)
        setting = self.setting(prompt, ask)
        old: list[Kind] = []
        at = log.messages
        for _step in range(_MOST_STEPS_BACK):
            if not kept:
                return None
            span = spans[kept - 1]
            if span.messages < at:
                again = [outline_of(message).kind for message in prompt.log.since(span.messages)[: at - span.messages]]
                old, new, at = [*again, *old], [*again, *new], span.messages
            anchor = self._anchor(prompt, span, new)
            seam = None if anchor is None else self.seams.find(anchor, old, new, setting)
            if seam is not None:
                return kept, seam
            kept = _without_openings(spans, kept - 1)
        return None

    def _anchor(self, prompt: ChatPrompt, span: Span, new: Sequence[Kind]) -> Anchor | None:
        if span.kind == "sampled":
            return Anchor("c" if new and new[0] == "t" else "a", is_sampled=True)
        if not span.messages:
            return None
        kind = outline_of(prompt.log[span.messages - 1]).kind
        return Anchor(kind, is_sampled=False)

    def _before_forgotten(self, prompt: ChatPrompt, log: TokenLog, kept: int, new: Sequence[Kind]) -> int:
        """How many spans to keep so that no reasoning is among them that the template will not render any more."""
        spans = log.spans
        if self.forgets_at_once:
            # Of turns before the last one it was forgotten when they ended.
            while kept and spans[kept - 1].kind != "rendered" and spans[kept - 1].has_reasoning:
                kept = _without_openings(spans, kept - 1)
            return kept
        if not self.forgets_at_user or "u" not in new:
            return kept
        since = log.messages
        while since and outline_of(prompt.log[since - 1]).role != "user":
            since -= 1
        first = kept
        for index in range(kept - 1, -1, -1):
            if spans[index].messages <= since:
                break
            if spans[index].has_reasoning:
                first = _without_openings(spans, index)
        return first

    def _fingerprint(self, prompt: ChatPrompt, ask: Ask) -> bytes:
        digest = hashlib.blake2b(self._identity, digest_size=16)
        for part in (ask.tools or b"", prompt.instructions, self._head(ask)):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def _head(self, ask: Ask) -> bytes:
        """What the effort changes in the text of a question."""
        effort = ask.reasoning_effort
        head = self._heads.get(effort)
        if head is None:
            try:
                text = self._render_as_is([made.user()], effort=effort)
            except TemplateFault:
                text = f"fault {effort}"
            head = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if len(self._heads) < _MOST_REMEMBERED:
                self._heads[effort] = head
        return head

    def _tools(self, encoded: bytes | None) -> list[Message] | None:
        if encoded is None:
            return None
        tools = self._decoded_tools.get(encoded)
        if tools is None:
            tools = _decode(encoded)
            for tool in tools:
                # Said to us, not to the model.
                tool["function"].pop("strict", None)
            if len(self._decoded_tools) >= _MOST_REMEMBERED:
                self._decoded_tools.clear()
            self._decoded_tools[encoded] = tools
        return tools


def _without_openings(spans: Any, kept: int) -> int:
    while kept and spans[kept - 1].kind == "opening":
        kept -= 1
    return kept


def _any_of(names: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def _in_order(tokenizer: Tokenizer, text: str) -> list[str]:
    """The control tokens in a template's text."""
    ids = tokenizer.raw.encode(text, add_special_tokens=False).ids
    return [name for name in map(tokenizer.name_of, ids) if name is not None]
