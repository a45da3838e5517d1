"""What of an answer may leave, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.protocol.sampling import (
    Annotation,
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    OutputItem,
    ReasoningDelta,
    Started,
    TextDelta,
)
from responses_ws.protocol.usage import Usage
from responses_ws.safety.base import Action, Finding, Material, Passage
from responses_ws.safety.stream import OutputFilter

from .spies import Spy


def filtering(spy: Spy, *, holds_back: int = 0, step: int = 1, before: str = "") -> OutputFilter:
    async def check(passage: Passage, before: str) -> list[Finding]:
        material = Material("output", [passage], before, project_id=1, model="m")
        return list((await spy.check(material)).findings)

    return OutputFilter(check, before=before, carries=spy.carries, holds_back=holds_back, step=step)


def text_of(deltas: list[Delta]) -> str:
    return "".join(getattr(delta, "text", "") for delta in deltas)


def tokens_of(deltas: list[Delta]) -> int:
    return sum(getattr(delta, "tokens", 0) for delta in deltas)


async def test_what_is_held_back_leaves_with_the_next_pieces_and_all_of_it_at_the_end() -> None:
    one = filtering(Spy(), holds_back=4)

    steps = [await one.feed([TextDelta(piece)]) for piece in ("abc", "def", "ghi")]
    end = await one.feed([Finished("stop")])

    assert [text_of(step) for step in steps] == ["", "", "abc"]
    assert end == [TextDelta("def"), TextDelta("ghi"), Finished("stop")]


async def test_a_step_is_looked_at_once_it_is_long_enough() -> None:
    spy = Spy()
    one = filtering(spy, step=5)

    steps = [await one.feed([TextDelta(piece)]) for piece in ("ab", "cd", "ef")]

    assert [text_of(step) for step in steps] == ["", "", "abcdef"]
    assert spy.texts == ["abcdef"]


@pytest.mark.parametrize("delta", [OutputItem({"type": "web_search_call"}), Annotation({"type": "url_citation"})])
async def test_what_is_no_text_leaves_behind_the_text_before_it(delta: Delta) -> None:
    one = filtering(Spy(), holds_back=100)

    leaving = await one.feed([TextDelta("See x."), delta, TextDelta("More.")])

    assert leaving == [TextDelta("See x."), delta]


async def test_a_word_in_pieces_is_redacted_before_any_of_it_has_left() -> None:
    one = filtering(Spy({"secret": "redact"}), holds_back=6)

    leaving = await one.feed([TextDelta(piece) for piece in ("The ", "se", "cr", "et is", " out")])
    leaving += await one.feed([Finished("stop")])

    assert text_of(leaving) == "The [redacted] is out"
    assert tokens_of(leaving) == 5
    assert one.has_changed and not one.has_cut


async def test_log_probabilities_of_what_is_redacted_do_not_leave() -> None:
    one = filtering(Spy({"secret": "redact"}))
    logprobs = ({"token": "secret", "logprob": 0.0, "top_logprobs": []},)

    leaving = await one.feed([TextDelta("secret", logprobs=logprobs), TextDelta("ok", logprobs=logprobs)])

    assert leaving == [TextDelta("[redacted]"), TextDelta("ok", logprobs=logprobs)]


async def test_a_cut_lets_go_what_came_before_and_nothing_after() -> None:
    one = filtering(Spy({"secret": "refuse"}), holds_back=6)

    leaving = await one.feed([TextDelta(piece) for piece in ("fine, ", "sec", "ret", " more")])
    leaving += await one.feed([TextDelta("and more"), Finished("stop")])

    assert text_of(leaving) == "fine, "
    assert tokens_of(leaving) == 5
    assert [delta for delta in leaving if isinstance(delta, Finished)] == [Finished("content_filter")]


async def test_a_cut_at_the_very_end_keeps_the_engine_s_own_count() -> None:
    usage = Usage(input_tokens=3, output_tokens=2)
    one = filtering(Spy({"secret": "refuse"}), holds_back=6)

    leaving = await one.feed([TextDelta("sec"), TextDelta("ret"), Finished("stop", usage)])

    assert leaving[-1] == Finished("content_filter", usage)
    assert text_of(leaving) == ""


async def test_a_redaction_in_arguments_is_a_cut() -> None:
    one = filtering(Spy({"secret": "redact"}), holds_back=6)
    call = [CallStart(0, "send"), CallArguments(0, '{"text":"'), CallArguments(0, 'secret"}'), CallEnd(0)]

    leaving = await one.feed([*call, Finished("tool_calls")])

    assert one.has_cut
    assert text_of(leaving) == '{"text":"'
    assert not any(isinstance(delta, CallEnd) for delta in leaving)
    assert leaving[-1] == Finished("content_filter")


async def test_another_kind_of_text_lets_the_one_before_go_in_order() -> None:
    one = filtering(Spy(), holds_back=50)

    leaving = await one.feed([Started(3), ReasoningDelta("why"), TextDelta("so"), CallStart(0, "f"), CallEnd(0)])

    assert leaving == [Started(3), ReasoningDelta("why"), TextDelta("so"), CallStart(0, "f"), CallEnd(0)]


async def test_what_left_before_is_seen_across_a_seam() -> None:
    one = filtering(Spy({"secret": "redact"}), before="end of the last: sec")

    leaving = await one.feed([TextDelta("ret "), TextDelta("x")])

    assert text_of(leaving) == "[redacted] x"


@given(
    pieces=st.lists(st.text("abxyz", max_size=5), max_size=30),
    batches=st.lists(st.integers(1, 4), min_size=30, max_size=30),
    holds_back=st.integers(2, 9),
    step=st.integers(1, 7),
    action=st.sampled_from(["flag", "redact", "refuse"]),
)
def test_whatever_the_pieces_nothing_of_a_word_leaves_and_no_token_is_lost(
    pieces: list[str], batches: list[int], holds_back: int, step: int, action: Action
) -> None:
    """The word is as long as what is held back covers."""
    import asyncio

    async def run() -> tuple[list[Delta], OutputFilter]:
        one = filtering(Spy({"xyz": action}), holds_back=holds_back, step=step)
        leaving: list[Delta] = []
        left = [TextDelta(piece) for piece in pieces]
        for size in batches:
            leaving += await one.feed(left[:size])
            left = left[size:]
        leaving += await one.feed([*left, Finished("stop")])
        return leaving, one

    leaving, one = asyncio.run(run())

    whole = "".join(pieces)
    assert tokens_of(leaving) == len(pieces)
    assert [type(delta) for delta in leaving].count(Finished) == 1
    if action == "flag":
        assert text_of(leaving) == whole
    elif action == "redact":
        assert text_of(leaving) == whole.replace("xyz", "[redacted]").replace("[redacted][redacted]", "[redacted]")
    else:
        assert whole.startswith(text_of(leaving)) and "xyz" not in text_of(leaving)
        assert one.has_cut == ("xyz" in whole)


def test_the_mark_is_one_word() -> None:
    """It is put into texts that others parse: no quotes, no backslash, no line."""
    from responses_ws.safety.passages import REDACTED

    assert REDACTED.strip('[]"\\\n').isalpha()


@pytest.mark.parametrize("holds_back", [0, 3, 10])
async def test_the_end_without_a_word_of_the_engine_tells_all(holds_back: int) -> None:
    one = filtering(Spy(), holds_back=holds_back)

    leaving = await one.feed([TextDelta("abcdef")]) + await one.end()

    assert text_of(leaving) == "abcdef"
