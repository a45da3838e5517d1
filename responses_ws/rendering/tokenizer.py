"""A model's tokenizer that keeps text and control tokens apart."""

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import tokenizers

from .byte_pairs import BytePairs, some_words
from .probes import probes

logger = logging.getLogger(__name__)

LONG_TEXT = 16_384
"""Characters from which on a text is encoded with the interpreter lock given free: above 2 ms or so."""

_WORDS_PROBED = 4_000


class Tokenizer:
    """Text → ids, twice: with control tokens where a *template* has written them, and without any for all else.

    ``document`` is the content of a ``tokenizer.json``. *Control tokens* are its added tokens, but for those that text
    becomes anyway: white space for indentation, and words that the vocabulary merges letters into. A second tokenizer
    is made of the same document without their names: to it these are text like any other.

    Thread-safe. Raises ValueError: the document is not a tokenizer's.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.nonce = secrets.token_hex(16)
        """What no client can know, for marks that must not be met in a text."""
        controls = _controls(document)
        encoded = json.dumps(document)
        self.digest = hashlib.blake2b(encoded.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        """Of the document."""
        self.raw = _built(encoded)
        """The tokenizer as the model's makers meant it."""
        ids = {token["content"]: self.raw.token_to_id(token["content"]) for token in controls}
        self.controls = {name: token_id for name, token_id in ids.items() if token_id is not None}
        """Ids of the control tokens by name."""
        self._control_ids = frozenset(self.controls.values())
        unsayable = {name: f"<{self.nonce}:{token_id}>" for name, token_id in self.controls.items()}
        self._a_control = next(iter(unsayable.values()), "")
        self._plain = _built(json.dumps(_renamed(document, unsayable)))
        self._names = any_of(self.controls)
        self._first_letters = tuple({name[0] for name in self.controls})
        self._starts = any_of(token["content"] for token in controls if not token.get("lstrip"))
        self._ends = tuple(token["content"] for token in controls if not token.get("rstrip"))
        self._is_matched_normalized = any(token.get("normalized") for token in controls)
        self._beginnings = {name[:end] for name in self.controls for end in range(1, len(name))}
        self._endings = {name[start:] for name in self.controls for start in range(1, len(name))}
        self._longest = max(map(len, self.controls), default=0)
        self._control = re.compile(f"({self._names.pattern})")
        self._pairs = self._agreeing(document)

    @property
    def is_quick(self) -> bool:
        """Whether texts are encoded without counting offsets, which takes a sixth of the time."""
        return self._pairs is not None

    def name_of(self, token_id: int) -> str | None:
        """The name of a control token; None for others."""
        return self.raw.id_to_token(token_id) if token_id in self._control_ids else None

    def could_say_control(self, text: str) -> bool:
        """Whether a control token would be read in ``text``, or may be in it and what a template writes behind it.

        One that is cut in two over several texts has its beginning at the end of one of them.
        """
        if self._is_in(text):
            return True
        if not self._is_matched_normalized or self.raw.normalizer is None:
            return False
        # As fullwidth letters that NFKC makes narrow.
        normalized = self.raw.normalizer.normalize_str(text)
        return normalized != text and self._is_in(normalized)

    def _is_in(self, text: str) -> bool:
        # Most texts have none of the letters that they begin with.
        return any(letter in text for letter in self._first_letters) and bool(
            self._names.search(text) or self.begins_control(text) or self.begins_control(text.rstrip())
        )

    def begins_control(self, text: str) -> bool:
        """Whether a control token might go on behind ``text``."""
        return any(text[-length:] in self._beginnings for length in range(1, min(self._longest, len(text) + 1)))

    def continues_control(self, text: str) -> bool:
        """Whether one might have begun before ``text``."""
        text = text.lstrip()
        ends = any(text[:length] in self._endings for length in range(1, min(self._longest, len(text) + 1)))
        return ends or (len(text) <= self._longest and any(text in name for name in self.controls))

    def is_seam(self, before: str, after: str) -> bool:
        """Whether two neighbouring texts become the same ids apart as they do together."""
        return not before or not after or bool(self._starts.match(after)) or before.endswith(self._ends)

    def encode(self, text: str, hidden: "Hidden", *, behind: str = "") -> Sequence[int]:
        """Ids of a template's output, in which the texts of ``hidden`` have stood in for what must stay text.

        Ids are those that the whole would have become, were the hidden texts harmless: what stands between two
        control tokens is encoded in one piece. ``behind`` is the control token that the text follows, if any.
        """
        if self._pairs is not None:
            quick = self._by_pairs(self._pairs, text, hidden)
            if quick is not None:
                return quick
        if not hidden.is_in(text):
            plain = _encoded(self.raw, behind + text, needs_offsets=False).ids
            return plain[1:] if behind else plain
        whole = behind + text
        encoding = _encoded(self.raw, whole, needs_offsets=True)
        # Each look at them is a copy.
        marked, offsets = encoding.ids, encoding.offsets
        ids: list[int] = []
        first, start = 0, 0
        for index, token_id in enumerate(marked):
            if token_id not in self._control_ids:
                continue
            begin, end = offsets[index]
            ids += self._run(whole[start:begin], marked[first:index], hidden, is_first=not start)
            ids.append(token_id)
            first, start = index + 1, end
        ids += self._run(whole[start:], marked[first:], hidden, is_first=not start)
        return ids[1:] if behind else ids

    def _by_pairs(self, pairs: BytePairs, text: str, hidden: "Hidden") -> list[int] | None:
        ids: list[int] = []
        # Texts and names of control tokens take turns.
        for index, piece in enumerate(self._control.split(text)):
            if index % 2:
                ids.append(self.controls[piece])
            elif piece:
                more = pairs.encode(hidden.shown(piece) if hidden.is_in(piece) else piece)
                if more is None:
                    return None
                ids += more
        return ids

    def _agreeing(self, document: Mapping[str, Any]) -> BytePairs | None:
        """What says the same as `tokenizers` says, and sooner; None where nothing does."""
        try:
            self._ask_for_plain_controls(document)
            pairs = BytePairs(document, self.raw.normalizer)
            if pairs.normalizes and self._is_matched_normalized:
                raise ValueError("it has added tokens that are found in normalized text")
            hidden = Hidden(self)
            words = some_words(document["model"]["vocab"], _WORDS_PROBED)
            for text in chain(probes(self.controls), words):
                for built, ids in ((self.raw, self._by_pairs(pairs, text, hidden)), (self._plain, pairs.encode(text))):
                    if ids is not None and ids != built.encode(text, add_special_tokens=False).ids:
                        raise ValueError(f"it would say something else of {text[:40]!r}")
        except ImportError:
            return None
        except ValueError as exc:
            logger.info("`tiktoken` cannot do what this tokenizer of %d words does: %s", self.raw.get_vocab_size(), exc)
            return None
        return pairs

    def _ask_for_plain_controls(self, document: Mapping[str, Any]) -> None:
        """Raises ValueError: added tokens are not found by their names alone."""
        added = document.get("added_tokens") or []
        if {token["content"] for token in added} != self.controls.keys():
            raise ValueError("it has added tokens that are text")
        if any(token.get(flag) for token in added for flag in ("lstrip", "rstrip", "single_word")):
            raise ValueError("it has added tokens that depend on what is beside them")
        if not self._beginnings.isdisjoint(self._endings):
            raise ValueError("the names of its added tokens overlap")

    def _run(self, text: str, ids: Sequence[int], hidden: "Hidden", *, is_first: bool) -> Sequence[int]:
        """Ids of the text between two control tokens: these, unless something is hidden in it."""
        if not hidden.is_in(text):
            return ids
        text = hidden.shown(text)
        if is_first or not self._a_control:
            return _encoded(self._plain, text, needs_offsets=False).ids
        # Some tokenizers write a space before the first word of all only, so it must not look like that.
        return _encoded(self._plain, self._a_control + text, needs_offsets=False).ids[1:]


class Hidden:
    """Texts that a template must not see, since they could say a control token, and the marks that stand for them.

    Of a text only what is between its outer white space is hidden: templates strip. The same text has the same mark.
    """

    __slots__ = ("_tokenizer", "_texts", "_marks", "_pattern", "_hides_endings")

    def __init__(self, tokenizer: Tokenizer, *, hides_endings: bool = False) -> None:
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        self._marks: dict[str, str] = {}
        self._pattern = marks_of(tokenizer.nonce)
        self._hides_endings = hides_endings
        """Hide what could go on with a control token, too: for templates whose own words could begin one."""

    def cover(self, value: Any) -> Any:
        """``value`` with marks in place of dangerous texts, keys of objects and the inside of lists included."""
        if isinstance(value, str):
            return self._covered(value)
        if isinstance(value, dict):
            return {self._covered(key): self.cover(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.cover(inner) for inner in value]
        return value

    def is_in(self, text: str) -> bool:
        """Whether there is a mark in a text."""
        return bool(self._texts) and self._pattern.search(text) is not None

    def shown(self, text: str) -> str:
        """A text with the hidden ones in their places."""
        return self._pattern.sub(self._show, text)

    def _covered(self, text: str) -> str:
        core = text.strip()
        if not core or not self._is_dangerous(text):
            return text
        mark = self._marks.get(core)
        if mark is None:
            mark = self._marks[core] = f"{self._tokenizer.nonce}t{len(self._texts)}z"
            self._texts.append(core)
        start = text.index(core)
        return f"{text[:start]}{mark}{text[start + len(core) :]}"

    def _is_dangerous(self, text: str) -> bool:
        return self._tokenizer.could_say_control(text) or (
            self._hides_endings and self._tokenizer.continues_control(text)
        )

    def _show(self, match: re.Match[str]) -> str:
        text = self._texts[int(match[2])]
        return text if match[1] == "t" else json.dumps(text, ensure_ascii=match[1] == "a")[1:-1]


def marks_of(nonce: str) -> re.Pattern[str]:
    """Marks in a text: (form, number). Forms: ``t`` as it is, ``j`` inside a JSON string, ``a`` the same in ASCII."""
    return re.compile(f"{nonce}([tja])([0-9]+)z")


def any_of(words: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds any of these, which may be hundreds that begin alike: as a tree. None: finds nothing."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_branches(tree) if tree else r"(?!)")


def _branches(node: dict[str, Any]) -> str:
    # The longest first: "" stands for the end of a word and comes last.
    branches = []
    for character in sorted(node, reverse=True):
        piece, inner = character, node[character]
        while len(inner) == 1 and "" not in inner:
            ((character, inner),) = inner.items()
            piece += character
        branches.append(re.escape(piece) + (_branches(inner) if piece and inner.keys() != {""} else ""))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _built(document: str) -> tokenizers.Tokenizer:
    try:
        made = tokenizers.Tokenizer.from_str(document)
    except Exception as exc:  # the library raises nothing narrower
        raise ValueError(f"not a tokenizer: {exc}") from exc
    made.no_truncation()
    made.no_padding()
    return made


def _controls(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    merges = document["model"].get("merges") or () if isinstance(document.get("model"), dict) else ()
    # "a b" or ["a", "b"]; a space is never part of a word there.
    words = {merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge) for merge in merges}
    return [
        token
        for token in document.get("added_tokens") or []
        # Some vocabularies write a space as ▁.
        if token["content"].strip("▁ \t\r\n") and token["content"] not in words
    ]


def _renamed(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same with other names for these tokens, wherever they stand: all ids stay as they are."""
    model = dict(document["model"])
    vocabulary = model.get("vocab") or {}
    # Vocabularies may hold them as ordinary words too, which some models look up before they merge anything.
    if isinstance(vocabulary, list):
        model["vocab"] = [[names.get(word, word), score] for word, score in vocabulary]
    else:
        model["vocab"] = {names.get(word, word): token_id for word, token_id in vocabulary.items()}
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    added = [
        {**token, "content": names[token["content"]], "normalized": False} if token["content"] in names else token
        for token in document.get("added_tokens") or []
    ]
    # A post-processor names the control tokens that it would put around a text; we never ask for that.
    return {**document, "model": model, "added_tokens": added, "post_processor": None}


def _encoded(tokenizer: tokenizers.Tokenizer, text: str, *, needs_offsets: bool) -> tokenizers.Encoding:
    if len(text) < LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens=False)
    # `encode` would keep the interpreter lock; of the two for batches one does not count offsets.
    encode = tokenizer.encode_batch if needs_offsets else tokenizer.encode_batch_fast
    return encode([text], add_special_tokens=False)[0]
