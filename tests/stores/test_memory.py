import time
from typing import Any

import pytest

from responses_ws.connection.chain import Link
from responses_ws.connection.log import SharedLog
from responses_ws.stores import memory
from responses_ws.stores.memory import HotTier


def link(name: str, *, project_id: int = 1, items: SharedLog[Any] | None = None, size: int = 10) -> Link:
    log: SharedLog[Any] = SharedLog([{}]) if items is None else items
    return Link(response_id=name, project_id=project_id, response={}, items=log, input_end=0, open_calls={}, size=size)


@pytest.fixture
def bounded(settings: Any) -> HotTier:
    settings.RESPONSES_WS = {"LIMITS": {"hot_responses": 3, "hot_bytes": 100}}
    return HotTier()


def test_the_owner_is_part_of_the_question(bounded: HotTier) -> None:
    bounded.put(link("a"))

    assert bounded.get(2, "a") is None
    assert bounded.get(1, "a") is not None


def test_the_least_recently_used_goes_first(bounded: HotTier) -> None:
    for name in "abc":
        bounded.put(link(name))
    bounded.get(1, "a")

    bounded.put(link("d"))

    assert [name for name in "abcd" if bounded.get(1, name)] == ["a", "c", "d"]


def test_bytes_are_bounded_too(bounded: HotTier) -> None:
    bounded.put(link("a", size=60))
    bounded.put(link("b", size=60))

    assert bounded.get(1, "a") is None
    assert bounded.byte_size == 60


def test_links_of_one_chain_count_their_shared_past_once(bounded: HotTier) -> None:
    log: SharedLog[Any] = SharedLog([{}])
    bounded.put(link("a", items=log, size=40))
    bounded.put(link("b", items=log.extended([{}]), size=70))

    assert (len(bounded), bounded.byte_size) == (2, 70)
    bounded.forget(1, {"b"})
    assert (len(bounded), bounded.byte_size) == (1, 70)
    bounded.forget(1, {"a"})
    assert (len(bounded), bounded.byte_size) == (0, 0)


def test_a_link_put_again_is_counted_once(bounded: HotTier) -> None:
    same = link("a")
    bounded.put(same)
    bounded.put(same)

    assert (len(bounded), bounded.byte_size) == (1, 10)


def test_what_was_deleted_meanwhile_is_not_kept(bounded: HotTier) -> None:
    bounded.forget(1, {"a"})

    bounded.put(link("a"))
    bounded.put(link("a", project_id=2))

    assert bounded.get(1, "a") is None
    assert bounded.get(2, "a") is not None


def test_what_has_expired_is_not_found(bounded: HotTier) -> None:
    day = 86_400
    old, young = link("old"), link("young")
    old.response["created_at"] = time.time() - 31 * day
    young.response["created_at"] = time.time() - 29 * day
    bounded.put(old)
    bounded.put(young)

    assert bounded.get(1, "old") is None
    assert bounded.get(1, "young") is not None
    assert len(bounded) == 1


def test_as_many_as_the_limits_say_are_kept(bounded: HotTier) -> None:
    for name in "abc":
        bounded.put(link(name, size=30))
    assert (len(bounded), bounded.byte_size) == (3, 90)

    bounded.put(link("c", size=40))

    assert (len(bounded), bounded.byte_size) == (3, 100)
    bounded.put(link("c", size=41))
    assert [name for name in "abc" if bounded.get(1, name)] == ["b", "c"]


def test_of_links_that_share_their_past_the_longest_counts_as_long_as_any_is_here(bounded: HotTier) -> None:
    log: SharedLog[Any] = SharedLog([{}])
    bounded.put(link("long", items=log, size=70))
    bounded.put(link("short", items=log, size=40))
    bounded.put(link("other", size=20))
    assert bounded.byte_size == 90

    bounded.forget(1, {"long"})
    assert bounded.byte_size == 90
    bounded.forget(1, {"short", "unknown"})
    assert bounded.byte_size == 20


def test_one_project_forgets_nothing_of_another(bounded: HotTier) -> None:
    bounded.put(link("a"))
    bounded.put(link("a", project_id=2))

    bounded.forget(2, {"a"})

    assert (bounded.get(1, "a") is not None, bounded.get(2, "a")) == (True, None)
    assert [bounded.has_forgotten(project_id, "a") for project_id in (1, 2)] == [False, True]


def test_so_many_deletions_are_remembered_the_newest_ones(bounded: HotTier, monkeypatch: Any) -> None:
    monkeypatch.setattr(memory, "_MOST_FORGOTTEN", 2)
    for name in "abc":
        bounded.forget(1, {name})

    assert [bounded.has_forgotten(1, name) for name in "abc"] == [False, True, True]


def test_a_link_of_a_conversation_does_not_expire(bounded: HotTier) -> None:
    conversation = link("conv_1")
    conversation.response = {}
    bounded.put(conversation)
    undated = link("undated")
    undated.response["id"] = "undated"
    bounded.put(undated)

    assert bounded.get(1, "conv_1") is conversation
    assert bounded.get(1, "undated") is None


def test_what_is_cleared_is_as_new(bounded: HotTier) -> None:
    bounded.put(link("a"))
    bounded.forget(1, {"b"})

    bounded.clear()

    assert (len(bounded), bounded.byte_size, bounded.has_forgotten(1, "b")) == (0, 0, False)
    bounded.put(link("a"))
    assert bounded.byte_size == 10
