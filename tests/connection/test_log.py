import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.connection.log import SharedLog


def test_a_new_log_is_empty_and_may_grow_in_place() -> None:
    log: SharedLog[int] = SharedLog()

    assert (list(log), len(log), log.is_tip) == ([], 0, True)


def test_a_log_does_not_share_the_list_it_was_made_from() -> None:
    given_list = [1, 2]
    log = SharedLog(given_list)

    given_list.append(3)

    assert list(log) == [1, 2]


def test_the_newest_view_grows_in_place() -> None:
    first = SharedLog([1])

    second = first.extended([2, 3])

    assert (list(first), list(second)) == ([1], [1, 2, 3])
    assert second.identity == first.identity
    assert (first.is_tip, second.is_tip) == (False, True)


def test_an_older_view_goes_its_own_way() -> None:
    first = SharedLog([1])
    second = first.extended([2])

    fork = first.extended([9])

    assert (list(first), list(second), list(fork)) == ([1], [1, 2], [1, 9])
    assert fork.identity != first.identity == second.identity
    assert (second.is_tip, fork.is_tip) == (True, True)


def test_growing_by_nothing_forks_nothing() -> None:
    first = SharedLog([1])

    same = first.extended([])

    assert same.identity == first.identity
    assert (list(same), same.is_tip) == ([1], True)


def test_views_read_alike_forwards_backwards_and_from_a_place() -> None:
    log = SharedLog([1, 2, 3])
    log.extended([4])

    assert list(log) == [1, 2, 3]
    assert list(reversed(log)) == [3, 2, 1]
    assert (log.since(0), log.since(2), log.since(3), log.since(9)) == ([1, 2, 3], [3], [], [])


def test_a_view_that_is_being_read_does_not_see_what_comes() -> None:
    log = SharedLog([1, 2])
    reader = iter(log)
    next(reader)

    log.extended([3])

    assert list(reader) == [2]


@pytest.mark.parametrize("turns", [10, 200])
def test_a_long_chain_never_copies_its_past(turns: int) -> None:
    log: SharedLog[int] = SharedLog()
    identities = {log.identity}

    for turn in range(turns):
        log = log.extended([turn, turn])
        identities.add(log.identity)

    assert len(identities) == 1
    assert len(log) == 2 * turns


def test_a_fork_copies_once_and_then_grows_in_place() -> None:
    parent = SharedLog(range(100))
    parent.extended([0])

    fork = parent.extended([1])
    longer = fork.extended([2]).extended([3])

    assert longer.identity == fork.identity != parent.identity
    assert longer.since(100) == [1, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 100), st.lists(st.integers(), max_size=3)), max_size=12))
def test_views_are_lists_whatever_is_extended(steps: list[tuple[int, list[int]]]) -> None:
    views: list[SharedLog[int]] = [SharedLog()]
    lists: list[list[int]] = [[]]

    for which, new in steps:
        index = which % len(views)
        views.append(views[index].extended(new))
        lists.append(lists[index] + new)

    assert [list(view) for view in views] == lists
    assert [list(reversed(view)) for view in views] == [expected[::-1] for expected in lists]
    assert [len(view) for view in views] == [len(expected) for expected in lists]
