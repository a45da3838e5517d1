"""Token ids that were kept a turn at a time make the log again that they were, or none."""

from typing import Any

import pytest

from responses_ws.connection.log import SharedLog
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tokens import TokenLog
from responses_ws.stores.ids import SavedIds, segment_of, worth_saving

MESSAGES = SharedLog([b'"question"', b'"answer"', b'"output"', b'"more"', b'"again"', b'"end"'])


def told(log: TokenLog) -> tuple[Any, ...]:
    return (log.fingerprint, list(log), list(log.spans), log.json())


def first() -> TokenLog:
    log = TokenLog(b"print").extended([1, 2, 3], "rendered", messages=1)
    return log.extended([4], "opening", messages=1).extended([5, 70000], "sampled", messages=2, has_reasoning=True)


def grown(log: TokenLog) -> TokenLog:
    return log.extended([6], "rendered", messages=3).extended([7, 8], "sampled", messages=4)


def test_a_log_comes_back_as_it_was() -> None:
    one = first()
    two = grown(one)
    saved = [
        (2, segment_of(one, MESSAGES, base=0, before=None)),
        (4, segment_of(two, MESSAGES, base=2, before=one)),
    ]

    back = SavedIds(saved).log(MESSAGES)

    assert back is not None and told(back) == told(two)
    assert told(grown(back)) == told(grown(two))


def test_a_turn_keeps_what_is_new() -> None:
    past = TokenLog(b"print").extended(list(range(100_000)), "sampled", messages=2)
    segment = segment_of(grown(past), MESSAGES, base=2, before=past)

    assert len(segment) < 100


def test_what_was_rendered_again_replaces_what_it_was() -> None:
    one = first()
    rewound = one.until(1).extended([9, 9], "rendered", messages=3).extended([10], "sampled", messages=4)
    saved = [
        (2, segment_of(one, MESSAGES, base=0, before=None)),
        (4, segment_of(rewound, MESSAGES, base=2, before=one)),
    ]

    back = SavedIds(saved).log(MESSAGES)

    assert back is not None and told(back) == told(rewound)


def test_forks_have_the_past_in_common_and_what_is_their_own() -> None:
    one = first()
    two, other = grown(one), one.extended([60], "rendered", messages=3)
    past = (2, segment_of(one, MESSAGES, base=0, before=None))

    trunk = SavedIds([past, (4, segment_of(two, MESSAGES, base=2, before=one))]).log(MESSAGES)
    fork = SavedIds([past, (3, segment_of(other, MESSAGES, base=2, before=one))]).log(MESSAGES)

    assert trunk is not None and told(trunk) == told(two)
    assert fork is not None and told(fork) == told(other)


def test_with_other_tools_a_log_begins_anew() -> None:
    one = first()
    other = TokenLog(b"other").extended([11, 12], "rendered", messages=4)
    saved = [
        (2, segment_of(one, MESSAGES, base=0, before=None)),
        (4, segment_of(other, MESSAGES, base=2, before=one)),
    ]

    back = SavedIds(saved).log(MESSAGES)

    assert back is not None and told(back) == told(other)


def test_behind_a_turn_whose_ids_were_lost_there_are_none_until_one_is_whole() -> None:
    one = first()
    two = grown(one)
    three = two.extended([13], "rendered", messages=5)
    lost = [(2, segment_of(one, MESSAGES, base=0, before=None)), (5, segment_of(three, MESSAGES, base=4, before=two))]

    assert SavedIds(lost).log(MESSAGES) is None
    back = SavedIds([*lost, (6, segment_of(three, MESSAGES, base=0, before=None))]).log(MESSAGES)
    assert back is not None and told(back) == told(three)


def test_ids_stand_for_the_messages_that_they_were_made_of_and_no_others() -> None:
    two = grown(first())
    saved = SavedIds([(4, segment_of(two, MESSAGES, base=0, before=None))])
    changed = SharedLog([*list(MESSAGES)[:2], b'"another output"', b'"more"'])

    back = saved.log(changed)

    assert back is not None and told(back) == told(first())
    assert saved.log(SharedLog([b'"another question"', *list(MESSAGES)[1:]])) is None
    # Two messages that have become one are others.
    assert saved.log(SharedLog([b'"question"\n"answer"'])) is None


@pytest.mark.parametrize(
    "segment",
    [
        pytest.param(b"\x80\x04.", id="a pickle"),
        pytest.param(segment_of(grown(first()), MESSAGES, base=0, before=None)[:-1], id="truncated"),
        pytest.param(segment_of(grown(first()), MESSAGES, base=0, before=None).replace(b"\x07", b""), id="too few ids"),
    ],
)
def test_what_is_none_makes_none(segment: bytes) -> None:
    assert SavedIds([(4, segment)]).log(MESSAGES) is None


def test_only_logs_from_some_length_on_are_kept(settings: Any) -> None:
    log = first()
    prompt = ChatPrompt().with_tokens(log)
    kept = []
    for least in (0, 1, 6, 7):
        settings.RESPONSES_WS = {"LIMITS": {"redis_ids_from": least}}
        kept.append(worth_saving(prompt))

    assert kept == [None, log, log, None]
    settings.RESPONSES_WS = {"LIMITS": {"redis_ids_from": 1}}
    assert worth_saving(ChatPrompt()) is None
    assert worth_saving(ChatPrompt(is_whole=False).with_tokens(log)) is None
    assert worth_saving(ChatPrompt().with_tokens(TokenLog().extended([1], "rendered", messages=1))) is None
