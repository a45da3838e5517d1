"""Small tokenizers of the kinds that models come with, trained on the spot; and deltas in a form to compare."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
)
from responses_ws.rendering.base import OutputParser
from responses_ws.rendering.parsing import FAMILIES

END = "<|im_end|>"
MARKERS = sorted(
    {
        marker
        for family in FAMILIES.values()
        for marker in (*(family.think or ()), *((family.call.opener, family.call.closer) if family.call else ()))
        if marker
    }
)
CORPUS = """{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}} the weather in Zürich is 世界 fine.
<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function> [ARGS][CALL_ID] I think that we know.\n\n"""


@lru_cache
def tokenizer(*markers: str) -> Tokenizer:
    """Byte-level, with these markers as added tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([CORPUS] * 4, trainer)
    made.add_special_tokens([AddedToken(END, normalized=False)])
    made.add_tokens([AddedToken(marker, normalized=False) for marker in markers])
    return made


@lru_cache
def sentencepiece(*markers: str, strips: bool = False) -> Tokenizer:
    """With spaces as ``▁`` and bytes as tokens of their own, as in the models before byte-level ones.

    ``strips``: an answer's first space is taken for the one that encoding has put there.
    """
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trained.train_from_iterator([CORPUS] * 4, trainers.BpeTrainer(vocab_size=160, show_progress=False))
    described = json.loads(trained.to_str())
    vocabulary = described["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    described["model"]["byte_fallback"] = True
    made = Tokenizer.from_str(json.dumps(described))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    made.add_special_tokens([AddedToken(END, normalized=False)])
    made.add_tokens([AddedToken(marker, normalized=False) for marker in markers])
    return made


def typed(text: str) -> list[int]:
    """Ids of text in which nothing is a control token, whatever it says: the same in all these vocabularies."""
    return list(tokenizer().encode(text).ids)


Seen = tuple[Any, ...]


def merged(deltas: Iterable[Delta]) -> list[Seen]:
    """``("text", …)``, ``("reasoning", …)`` and ``("call", name, arguments, is whole)``, as they begin."""
    seen: list[list[Any]] = []
    calls: dict[int, list[Any]] = {}
    for delta in deltas:
        if isinstance(delta, TextDelta | ReasoningDelta):
            kind = "text" if isinstance(delta, TextDelta) else "reasoning"
            assert delta.text, "an empty delta says nothing"
            if seen and seen[-1][0] == kind:
                seen[-1][1] += delta.text
            else:
                seen.append([kind, delta.text])
        elif isinstance(delta, CallStart):
            calls[delta.index] = ["call", delta.name, "", False]
            seen.append(calls[delta.index])
        elif isinstance(delta, CallArguments):
            assert not calls[delta.index][3], "arguments behind the end"
            calls[delta.index][2] += delta.text
        else:
            assert isinstance(delta, CallEnd), delta
            calls[delta.index][3] = True
    return [tuple(one) for one in seen]


def told(parser: OutputParser, batches: Iterable[Sequence[int]], reason: FinishReason = "stop") -> list[Seen]:
    """What a parser makes of an answer that comes in these batches."""
    deltas = [delta for batch in batches for delta in parser.feed(batch)]
    return merged([*deltas, *parser.finish(reason)])
