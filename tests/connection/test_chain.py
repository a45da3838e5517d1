import msgspec
import pytest

from responses_ws.connection.chain import Chains, Link
from responses_ws.connection.log import SharedLog


def link(response_id: str) -> Link:
    return Link(response_id=response_id, project_id=1, response={}, items=SharedLog(), input_end=0, open_calls={})


def chains(**slots: str) -> Chains:
    """Lanes by name; ``default`` is the lane without one."""
    made = Chains()
    for lane, response_id in slots.items():
        made.put(None if lane == "default" else lane, link(response_id))
    return made


def known(made: Chains, *response_ids: str) -> list[str]:
    return [response_id for response_id in response_ids if made.find(response_id) is not None]


def test_any_lane_s_newest_response_is_found() -> None:
    made = chains(default="r1", a="r2")

    assert known(made, "r1", "r2", "r3") == ["r1", "r2"]
    assert len(made) == 2


def test_what_is_found_is_what_was_put() -> None:
    made = Chains()
    one = link("r1")

    made.put("a", one)

    assert made.find("r1") is one


def test_a_lane_that_advances_forgets_its_older_response() -> None:
    made = chains(default="r1", a="r2")

    made.put(None, link("r3"))

    assert known(made, "r1", "r2", "r3") == ["r2", "r3"]


def test_a_fork_leaves_its_parent_where_it_is() -> None:
    made = chains(default="r1")

    made.put("fork", link("r2"))

    assert known(made, "r1", "r2") == ["r1", "r2"]


EVICTIONS = {
    "a continuation in the parent's lane": ("default", "r1", ["r2"]),
    "a continuation in a named lane": ("a", "r2", ["r1"]),
    "a fork from another lane": ("a", "r1", ["r1", "r2"]),
    "a fork from a lane of its own": ("new", "r1", ["r1", "r2"]),
    "a fresh start": ("default", None, ["r1", "r2"]),
    "an unknown parent": ("default", "r9", ["r1", "r2"]),
}


@pytest.mark.parametrize(("lane", "parent", "left"), EVICTIONS.values(), ids=EVICTIONS)
def test_a_failure_evicts_the_parent_of_its_own_lane_only(lane: str, parent: str | None, left: list[str]) -> None:
    made = chains(default="r1", a="r2")

    made.evict_failed(None if lane == "default" else lane, parent)

    assert known(made, "r1", "r2") == left


def test_deleted_responses_are_gone_from_every_lane() -> None:
    made = chains(default="r1", a="r2", b="r3")

    made.forget({"r1", "r3", "r9"})

    assert known(made, "r1", "r2", "r3") == ["r2"]


def test_what_continues_a_deleted_response_unstored_is_gone_with_it() -> None:
    made = chains(default="r1", a="r2")
    for lane in ("b", "c"):
        made.put(lane, msgspec.structs.replace(link(lane), stored_ancestor=f"ancestor of {lane}"))

    made.forget({"ancestor of b"})

    assert known(made, "r1", "r2", "b", "c") == ["r1", "r2", "c"]
