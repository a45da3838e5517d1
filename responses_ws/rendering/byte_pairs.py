"""Text → ids by ``tiktoken``, where no offsets are needed: in a sixth of the time of ``tokenizers``, which counts them.

Of the fast ones it alone keeps nothing of a text. The others remember its words: without end, or in tables whose hash
anybody can compute, so that words made to collide slow down all that is encoded after them.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

MOST_CHARACTERS = 200_000
"""Of one text. Its engine for patterns gives up at white space of some hundred thousand characters."""

_TAIL = r"|\s+(?!\S)|\s+"
_GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT, _DIGITS = r"\p{N}", r"\p{N}{1,3}"
# Digits of Rust, whose tables are of Unicode 17 already; those of the patterns are of 16.
_NUMERIC = r"[\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}]"
_HAN = "一-龥぀-ゟ゠-ヿ"
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2_and(digit: str) -> str:
    """Digits, each alone, then the rest."""
    head = rf"{digit}|'(?:s|t|re|ve|m|ll|d)| ?\p{{L}}+| ?[^\s\p{{L}}{digit}]+"
    return rf"(?:{head})|\s+(?![^\s{digit}])|\s+"


def _deepseek() -> str:
    """Digits, then kanji and kana, then all of these once more by a third pattern, which has no rule for some."""
    branches, gaps = [], []
    for those, space, line in ((rf"[^\p{{N}}{_HAN}]", " ?", r"[\r\n]*"), (f"[{_HAN}]", "", "")):
        letter, mark = rf"[{those}&&[\p{{L}}\p{{M}}]]", rf"[{those}&&[\p{{P}}\p{{S}}]]"
        branches += [rf"[{those}--[\r\n\p{{L}}\p{{P}}\p{{S}}]]?{letter}+", f"{space}{mark}+{line}"]
        # As the joiners of emoji: they stay together.
        gaps.append(rf"(?:[{those}--[\s\p{{L}}\p{{M}}\p{{P}}\p{{S}}]](?!{letter}))+")
    first = r"""\p{N}{1,3}|[!"#$%&'()*+,\-./:;<=>?@\[\\\]\^_`{|}~][A-Za-z]+"""
    head = "|".join([first, *branches, r"\s*[\r\n]+"])
    return "|".join([f"(?:{head})", rf"\s+(?![^\s\p{{N}}{_HAN}])", r"\s+", *gaps])


_AS_ONE = {
    (_DIGIT, _GPT2): _gpt2_and(_DIGIT),
    (_NUMERIC, _GPT2): _gpt2_and(_NUMERIC),
    (_DIGITS, f"[{_HAN}]+", _DEEPSEEK): _deepseek(),
}
"""Patterns of which each cuts the pieces of the one before, and one for all of them.

White space ends where a piece of an earlier pattern begins as it does at the end of a text.
"""

_COMPOSING = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
"""Normalizers that leave ASCII as it is."""


class BytePairs:
    """A byte-level BPE without its control tokens: to it, their names are text like any other.

    ``document`` is the content of a ``tokenizer.json``, ``normalizer`` the one that ``tokenizers`` has made of it.
    Thread-safe; gives the interpreter lock free while it works. Merges here are of what is in the vocabulary, in the
    order of its ids, where the document lists pairs: who uses it compares the two first.

    Raises:
        ImportError: ``tiktoken`` is not installed.
        ValueError: the document asks for something that it cannot do; the message says what.
    """

    def __init__(self, document: Mapping[str, Any], normalizer: Any) -> None:
        from tiktoken import Encoding

        pattern = _pattern(_cuts(document.get("pre_tokenizer")))
        self._normalize = _normalize(document.get("normalizer"), normalizer)
        ranks, self._unknown = _ranks(document["model"])
        try:
            encoding = Encoding("byte pairs", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        except ValueError as exc:
            raise ValueError(f"its pattern is not understood: {exc}") from exc
        # It has its own by now, and would hold these, too: 10 MB of a large vocabulary.
        ranks.clear()
        self._encode = encoding.encode_ordinary

    @property
    def normalizes(self) -> bool:
        """Whether a text may be changed before it is cut."""
        return self._normalize is not None

    def encode(self, text: str) -> list[int] | None:
        """Ids; None: this text is for ``tokenizers``."""
        if len(text) > MOST_CHARACTERS:
            return None
        try:
            if not text.isascii():
                if self._normalize is not None:
                    text = self._normalize(text)
                # It would write something else in place of half a character, which is a fault.
                text.encode()
            ids: list[int] = self._encode(text)
        except UnicodeEncodeError:
            return None
        except BaseException as exc:
            # A panic, which is no Exception and has no name that could be imported.
            if type(exc).__name__ != "PanicException":
                raise
            return None
        return ids if self._unknown.isdisjoint(ids) else None


def _cuts(pre_tokenizer: Any) -> tuple[str, ...]:
    """The patterns that cut a text into pieces, each within those of the one before."""
    steps = pre_tokenizer["pretokenizers"] if _type(pre_tokenizer) == "Sequence" else [pre_tokenizer]
    cuts = []
    for step in steps:
        match step:
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
                # Some have the characters themselves.
                cuts.append(pattern.replace("\r", r"\r").replace("\n", r"\n"))
            case {"type": "Digits", "individual_digits": True}:
                cuts.append(_NUMERIC)
            case {"type": "ByteLevel", "add_prefix_space": False} if step is steps[-1]:
                if step.get("use_regex", True):
                    cuts.append(_GPT2)
                return tuple(cuts)
            case _:
                raise ValueError(f"it cuts text by {_type(step)}")
    raise ValueError("it is not byte-level")


def _pattern(cuts: tuple[str, ...]) -> str:
    """One that finds the same pieces."""
    if len(cuts) != 1:
        try:
            return _AS_ONE[cuts]
        except KeyError:
            raise ValueError(f"its pieces are cut by {len(cuts)} patterns, {cuts!r}") from None
    # What comes before the look-ahead is a fifth faster as one group: it goes to the simpler engine as a whole.
    head = cuts[0].removesuffix(_TAIL)
    return cuts[0] if head == cuts[0] else f"(?:{head}){_TAIL}"


def _normalize(asked: Any, normalizer: Any) -> Any:
    """The function to call with what is not ASCII; None: there is nothing to do."""
    if asked is None or (_type(asked) == "Sequence" and not asked["normalizers"]):
        return None
    if _type(asked) not in _COMPOSING:
        raise ValueError(f"it normalizes by {_type(asked)}")
    return normalizer.normalize_str


def _ranks(model: Mapping[str, Any]) -> tuple[dict[bytes, int], frozenset[int]]:
    """Ids of what can be merged, by its bytes; and stand-ins for ids of the bytes that the vocabulary lacks."""
    if _type(model) != "BPE" or any(
        model.get(option)
        for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "unk_token")
    ):
        raise ValueError(f"its model is of another kind than byte-level BPE: {_type(model)}")
    vocabulary = model["vocab"]
    words = [merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge) for merge in model["merges"]]
    token_ids = [vocabulary[word] for word in words]
    if any(token_id > after for token_id, after in pairwise(token_ids)):
        raise ValueError("its merges are not in the order of its ids")
    letters = _letters()
    # All at once: a letter is a byte.
    joined = "".join(words).translate(letters).encode("latin-1")
    ends = accumulate(map(len, words))
    ranks = {
        joined[end - len(word) : end]: token_id for end, word, token_id in zip(ends, words, token_ids, strict=True)
    }
    unknown, free = [], 1 << 31
    for letter, byte in letters.items():
        token_id = vocabulary.get(chr(letter))
        if token_id is None:
            token_id = free + byte
            unknown.append(token_id)
        ranks[bytes((byte,))] = token_id
    if len({*ranks.values()}) < len(ranks):
        raise ValueError("it has one id for several words")
    return ranks, frozenset(unknown)


def some_words(vocabulary: Mapping[str, int], most: int) -> Iterator[str]:
    """About so many words out of a byte-level vocabulary, as texts."""
    letters = _letters()
    for word in list(vocabulary)[:: len(vocabulary) // most + 1]:
        try:
            yield word.translate(letters).encode("latin-1").decode()
        except UnicodeError:
            # A piece of a letter, or no word of bytes at all.
            continue


def _letters() -> dict[int, int]:
    """Bytes by the letters that stand for them in a byte-level vocabulary. Source: GPT-2's ``bytes_to_unicode``."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in shown]
    return dict(zip([*shown, *range(0x100, 0x100 + len(others))], [*shown, *others], strict=True))


def _type(step: Any) -> Any:
    return step.get("type") if isinstance(step, Mapping) else None
