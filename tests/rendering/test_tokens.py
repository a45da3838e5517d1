"""The log of token ids: what it shows, who shares what, and what a longer one costs."""

import json
import tracemalloc
from array import array

from hypothesis import given
from hypothesis import strategies as st

from responses_ws.rendering.tokens import TokenLog

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=12)


def log_of(*runs: list[int]) -> TokenLog:
    log = TokenLog(b"print")
    for number, ids in enumerate(runs):
        log = log.extended(ids, "rendered", messages=number + 1)
    return log


@given(st.lists(IDS, max_size=6), st.data())
def test_a_log_shows_the_ids_that_were_put_in(runs: list[list[int]], data: st.DataObject) -> None:
    log, ids = log_of(*runs), [one for run in runs for one in run]

    assert (list(log), len(log), log.last_id) == (ids, len(ids), ids[-1] if ids else None)
    assert json.loads(b"[%b]" % log.json()) == ids
    start = data.draw(st.integers(0, len(ids)))
    assert log.since(start) == array("I", ids[start:])
    kept = data.draw(st.integers(0, len(runs)))
    back = log.until(kept)
    assert (list(back), back.messages) == ([one for run in runs[:kept] for one in run], kept)
    assert json.loads(b"[%b]" % back.json()) == list(back)


def test_what_is_longer_leaves_what_was_before_as_it_is() -> None:
    log = log_of([1, 2], [3])
    trunk = log.extended([4, 55], "sampled", messages=3)
    fork = log.extended((6,), "sampled", messages=3)
    again = trunk.until(1).extended(array("I", [7]), "rendered", messages=2)

    assert [list(one) for one in (log, trunk, fork, again)] == [[1, 2, 3], [1, 2, 3, 4, 55], [1, 2, 3, 6], [1, 2, 7]]
    assert [bytes(one.json()) for one in (log, trunk, fork)] == [b"1,2,3", b"1,2,3,4,55", b"1,2,3,6"]
    assert (trunk.shared_spans(fork), trunk.shared_spans(again)) == (2, 1)


def test_a_log_that_is_being_sent_can_grow() -> None:
    log = log_of([1, 2])
    shown = log.json()

    grown = log.extended([3], "sampled", messages=2)

    assert bytes(shown) == b"1,2"
    assert bytes(grown.json()) == b"1,2,3"
    assert list(grown.extended([4], "rendered", messages=3)) == [1, 2, 3, 4]


def test_a_log_begins_with_the_ids_of_another_whoever_has_made_them() -> None:
    log = log_of([1, 2], [3, 4])

    for other, more, is_beginning in (
        (log.until(1), [3], True),
        (log_of([1], [2, 3]), [], True),
        (log_of([1], [2]), [3, 4], True),
        (log_of(), [], True),
        (log.until(1), [4], False),
        (log_of([2]), [], False),
        (log, [5], False),
    ):
        assert log.begins_with(other, more) == is_beginning


def test_a_turn_costs_what_is_new() -> None:
    log = log_of(list(range(100_000)))
    log = log.extended([1], "opening", messages=1)  # what has room for more is made here
    size = len(log.json())

    tracemalloc.start()
    try:
        grown = log.extended(list(range(500)), "sampled", messages=2)
        shown = grown.json()
        grown.since(len(log))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert len(shown) > size > 500_000
    assert most < 100_000, "a past of 600 kB is neither copied nor encoded again"
