"""One answer's ids → deltas, for every family that has a table."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from responses_ws.protocol.sampling import CallArguments, CallStart, Delta, FinishReason, ReasoningDelta, TextDelta
from responses_ws.rendering.base import OutputParser

from .bodies import WHITESPACE, CallBody, NotACall
from .detokenise import Detokeniser
from .families import Family
from .json_calls import JsonBody, NamedBody
from .markers import FUNCTION, Kind, markers_of
from .said import Said
from .xml_calls import XmlBody

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tools = Mapping[str, Mapping[str, Any]]
"""JSON schemas of parameters, by the name under which a tool was offered."""

_MOST_HELD = 8  # characters: templates write two line feeds, and a model that writes nothing else must be heard


class FamilyParser(OutputParser):
    """Reads ids one by one, so that how they come in batches changes nothing. Made by `build_parser`."""

    def __init__(
        self,
        family: Family,
        tokenizer: "Tokenizer",
        *,
        tail: Sequence[int] = (),
        opening: Sequence[int] = (),
        tools: Tools | None = None,
        stop_ids: Collection[int] = (),
    ) -> None:
        self._tools: Tools = tools or {}
        self._form = family.call if tools else None
        self._markers = markers_of(family, tokenizer, with_calls=self._form is not None, stop_ids=frozenset(stop_ids))
        self._has_markers = bool(self._markers.by_id or self._markers.by_text)
        self._detokeniser = Detokeniser(tokenizer)
        self._said = Said()
        self._state: Literal["text", "reasoning", "calls"] = "text"
        self._perhaps_marker = ""
        """The end of what was read: it may be the beginning of a marker."""
        self._body: CallBody | None = None
        """The call that is being read, in the state ``calls``."""
        self._gap = ""
        """What was read since the last call, or since the opener, in the state ``calls`` without a body."""
        self._opener = ""
        """That was read, and no call behind it yet."""
        self._is_tagged = False
        """The calls have had an opener: there is no doubt that calls were meant."""
        self._before_calls: Literal["text", "reasoning"] = "text"
        """What goes on if nothing behind the opener is a call."""
        self._held = ""
        """Whitespace that is scaffold if a marker follows."""
        self._is_fresh = True
        """Nothing has been said in this state yet."""
        self._is_behind_marker = False
        self._begin_with(tail, opening)

    @property
    def can_be_copied(self) -> bool:
        """Nothing but plain values tells where it stands."""
        is_between = self._markers.is_bytewise and not self._detokeniser.pending
        return is_between and self._body is None and not self._said.deltas

    def copied(self) -> "FamilyParser":
        """Another that stands where this one does, if it `can_be_copied`."""
        copy = FamilyParser.__new__(FamilyParser)
        for name, value in vars(self).items():
            # One by one: CPython reads attributes of an object faster that never had to show its dictionary.
            setattr(copy, name, value)
        copy._said, copy._detokeniser = Said(), Detokeniser(self._detokeniser.tokenizer)
        return copy

    def feed(self, ids: Sequence[int], logprobs: Sequence[dict[str, Any]] = ()) -> list[Delta]:
        if len(ids) == 1 and self._state != "calls" and not logprobs:
            word = self._markers.words.get(ids[0])
            if word is not None and word[-1] != "\n" and self._is_flowing:
                # Nearly always. What `_read` would come to.
                said = self._said
                tokens, said.ids = said.ids + 1, 0
                if self._state == "text":
                    return [TextDelta(word, tokens)]
                self.reasoning_tokens += 1
                return [ReasoningDelta(word, tokens)]
        self._read(ids, logprobs)
        self.calls = self._said.calls
        return self._said.take()

    def finish(self, reason: FinishReason) -> list[Delta]:
        self._hear(self._detokeniser.rest())
        if self._state != "calls" or self._body is not None or self._opener:
            self._let_go()
        # Else half a closer of a call that was whole.
        is_cut_off = reason in ("length", "content_filter")
        if self._body is not None and self._body.has_started and is_cut_off:
            self._body.cut_off()
        elif self._body is not None:
            self._close_body()
        if self._opener:
            self._say_as_text(self._opener + self._gap)
        if self._held and not (self._is_fresh and self._is_behind_marker):
            self._tell(self._held)
        self._held = ""
        return self._said.take()

    def _begin_with(self, tail: Sequence[int], opening: Sequence[int]) -> None:
        self._read(tail, ())
        if self._state == "text":
            self._held = self._perhaps_marker = ""
            if not self._is_fresh:
                self._is_fresh, self._is_behind_marker = True, False
        self._read(opening, ())
        self.reasoning_tokens = self._said.ids = 0
        self._said.deltas = [one for one in self._said.take() if isinstance(one, CallStart | CallArguments)]

    def _read(self, ids: Sequence[int], logprobs: Sequence[dict[str, Any]]) -> None:
        said, detokeniser, markers = self._said, self._detokeniser, self._markers
        for position, token_id in enumerate(ids):
            said.ids += 1
            if token_id in markers.stop_ids:
                continue
            if logprobs:
                said.logprobs.append(logprobs[position])
            was_reasoning = self._state == "reasoning"
            is_between = not detokeniser.pending
            word = markers.words.get(token_id) if is_between else None
            marker = markers.by_id.get(token_id) if word is None else None
            if word is not None:
                if self._perhaps_marker:
                    self._hear(word)
                else:
                    self._take(word)
            elif marker is not None:
                kind, literal = marker
                self._hear(detokeniser.feed(token_id).removesuffix(literal))
                self._let_go()
                self._mark(kind, literal)
            elif text := detokeniser.feed(token_id):
                if is_between:
                    markers.learn(token_id, text)
                self._hear(text)
            if was_reasoning and self._state == "reasoning":
                self.reasoning_tokens += 1

    @property
    def _is_flowing(self) -> bool:
        """In text or reasoning, all that was read has been said, and it was something."""
        is_held = self._held or self._perhaps_marker or self._said.logprobs or self._detokeniser.pending
        return not (self._is_fresh or is_held)

    def _hear(self, text: str) -> None:
        """Text, in which markers without an id are still to be found."""
        whole, partial = self._markers.whole, self._markers.partial
        if whole is None or partial is None:
            self._take(text)
            return
        text, self._perhaps_marker = self._perhaps_marker + text, ""
        read = 0
        for found in whole.finditer(text):
            self._take(text[read : found.start()])
            self._mark(self._markers.by_text[found[0]], found[0])
            read = found.end()
        text = text[read:]
        beginning = partial.search(text)
        if beginning is not None:
            self._perhaps_marker = beginning[0]
            text = text[: beginning.start()]
        self._take(text)

    def _let_go(self) -> None:
        """What might have become a marker has not."""
        text, self._perhaps_marker = self._perhaps_marker, ""
        self._take(text)

    def _mark(self, kind: Kind, literal: str) -> None:
        """A marker. Where it has no meaning it is text."""
        if self._body is not None and not self._body.is_within_value and kind in ("call", "call_end"):
            self._close_body()
        if self._body is not None:
            self._take(literal)
        elif kind == "call":
            if self._opener:
                self._say_as_text(self._opener + self._gap)
            # Within reasoning, too: a model that forgot to close it has closed it with this, if it is a call.
            opener, before = self._held + literal, self._state
            self._enter("calls")
            self._opener, self._is_tagged = opener, True
            self._before_calls = "reasoning" if before == "reasoning" else "text"
        elif kind == "call_end" and self._state == "calls" and not self._opener:
            self._enter("text")
        elif kind == "think" and self._state != "reasoning" and not self._opener:
            self._enter("reasoning")
        elif kind == "think_end" and self._state == "reasoning":
            self._enter("text")
        elif kind == "think" and self._is_fresh and self._state == "reasoning":
            pass  # The template has opened it already, and the model did once more.
        elif kind == "function" and self._state == "text":
            self._enter("calls")
            self._is_tagged = False
            self._take(literal)
        else:
            self._take(literal)

    def _enter(self, state: Literal["text", "reasoning", "calls"]) -> None:
        """Behind a marker: what was held before it is scaffold."""
        self._state = state
        self._opener = self._gap = self._held = ""
        self._is_fresh = self._is_behind_marker = True
        if state != "calls":
            # An opener may turn out to be text; these cannot.
            self._said.logprobs.clear()

    def _take(self, text: str) -> None:
        if not text:
            return
        if self._body is not None:
            try:
                rest = self._body.feed(text)
            except NotACall:
                self._refuse_body(self._body)
                return
            if rest is None:
                return
            self.malformed_calls += self._body.is_malformed
            self._body = None
            text = rest
        if self._state == "calls":
            self._seek_call(text)
        else:
            self._say(text)

    def _seek_call(self, text: str) -> None:
        """Text before a call, or behind one."""
        assert self._form is not None, "calls are read only where tools were offered"
        self._gap += text
        rest = self._gap.lstrip(self._form.separators)
        if not rest:
            return
        opener, gap = self._opener, self._gap
        body = self._body_of(rest, opener + gap.removesuffix(rest), is_behind_opener=bool(opener))
        if body is not None:
            self._opener = self._gap = ""
            self._body = body
            self._take(rest)
        elif opener:
            self._say_as_text(opener + gap)
        else:
            self._enter("text")
            self._say(gap.removeprefix(self._form.list_end))

    def _body_of(self, text: str, raw: str, *, is_behind_opener: bool) -> CallBody | None:
        """What reads a call that begins with ``text``; None: no call begins so."""
        assert self._form is not None, "calls are read only where tools were offered"
        form = self._form
        declared = None if self._is_tagged else self._tools.keys()
        if form.body == "xml":
            is_xml = text.startswith(FUNCTION) or FUNCTION.startswith(text)
            return XmlBody(self._said, raw, declared, self._tools) if is_xml else None
        if text.startswith("{"):
            return JsonBody(self._said, raw, declared, form.argument_keys)
        is_named = form.body == "named" and is_behind_opener
        return NamedBody(self._said, raw, declared) if is_named else None

    def _close_body(self) -> None:
        """The call has to end here."""
        body = self._body
        assert body is not None, "there is a call to close"
        if not body.has_started:
            self._refuse_body(body)
            return
        body.close()
        self.malformed_calls += body.is_malformed
        self._body = None

    def _refuse_body(self, body: CallBody) -> None:
        self._body = None
        raw = "".join(body.raw)
        if self._is_tagged:
            self._say_as_text(raw)
        else:
            self._state = "text"
            self._tell(raw)

    def _say_as_text(self, raw: str) -> None:
        """A call was meant, and none can be made of it."""
        self.malformed_calls += 1
        self._opener = self._gap = ""
        self._state = self._before_calls
        self._tell(raw)

    def _say(self, text: str) -> None:
        """Text or reasoning, without the line feeds that belong to markers."""
        if not self._has_markers:
            self._tell(text)
            return
        text = self._held + text
        if self._is_fresh:
            if self._is_behind_marker:
                text = text.lstrip("\n")
                if not text:
                    self._said.logprobs.clear()
            first = text.lstrip(WHITESPACE)
            if not first and len(text) <= _MOST_HELD:
                self._held = text
                return
            if self._form is not None and self._form.is_bare and self._state == "text" and first.startswith("{"):
                self._enter("calls")
                self._is_tagged = False
                self._seek_call(text)
                return
        said = text.rstrip("\n")
        if len(text) - len(said) > _MOST_HELD:
            said = text
        self._held = text[len(said) :]
        if said:
            self._tell(said)

    def _tell(self, text: str) -> None:
        self._is_fresh = False
        if self._state == "reasoning":
            self._said.reasoning(text)
        else:
            self._said.text(text)
