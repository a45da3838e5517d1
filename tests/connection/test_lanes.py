import pytest

from responses_ws.connection.lanes import Create, Lanes
from responses_ws.connection.limits import Limits
from responses_ws.protocol.client_events import InvalidCreate, ResponseCreate
from responses_ws.protocol.errors import ApiError, InvalidRequest, RateLimited


def create(lane: str | None = None, model: str = "m") -> ResponseCreate:
    return ResponseCreate(stream_id=lane, model=model)


def started(lanes: Lanes) -> list[str | None]:
    return [lane for lane, _ in lanes.ready()]


def models(ready: list[tuple[str | None, Create]]) -> list[str | None]:
    return [made.model for _, made in ready if isinstance(made, ResponseCreate)]


def refusal_of(lanes: Lanes, made: Create) -> ApiError:
    with pytest.raises(ApiError) as caught:
        lanes.add(made, 1)
    return caught.value


def test_one_lane_runs_one_at_a_time_in_order() -> None:
    lanes = Lanes(Limits())
    for model in ("first", "second", "third"):
        lanes.add(create(model=model), 1)

    order = []
    while ready := lanes.ready():
        assert len(ready) == 1
        order += models(ready)
        assert lanes.ready() == []
        lanes.ended(None)

    assert order == ["first", "second", "third"]
    assert lanes.is_idle


def test_lanes_run_side_by_side() -> None:
    lanes = Lanes(Limits())
    for lane in (None, "a", "b"):
        lanes.add(create(lane), 1)

    assert started(lanes) == [None, "a", "b"]
    assert lanes.active == 3


def test_the_seventeenth_waits_for_a_place() -> None:
    lanes = Lanes(Limits())
    names = [f"l{number}" for number in range(17)]
    for lane in names:
        lanes.add(create(lane), 1)

    assert started(lanes) == names[:16]
    lanes.ended("l5")
    assert started(lanes) == ["l16"]
    assert lanes.active == 16


def test_a_lane_with_much_to_do_does_not_starve_the_others() -> None:
    lanes = Lanes(Limits(active_turns=1))
    for lane in ("busy", "busy", "busy", "a", "b"):
        lanes.add(create(lane), 1)

    order: list[str | None] = []
    while ready := started(lanes):
        order += ready
        lanes.ended(ready[0])

    assert order == ["busy", "a", "b", "busy", "busy"]


def test_a_refused_create_has_its_turn_like_any_other() -> None:
    lanes = Lanes(Limits())
    invalid = InvalidCreate(None, None, InvalidRequest("Bad."))
    lanes.add(create(), 1)
    lanes.add(invalid, 1)

    assert started(lanes) == [None]
    assert lanes.ready() == []
    lanes.ended(None)
    assert lanes.ready() == [(None, invalid)]


@pytest.mark.parametrize("limit", [1, 2, 32])
def test_waiting_is_bounded(limit: int) -> None:
    lanes = Lanes(Limits(queued_turns=limit))
    lanes.add(create("a"), 1)
    lanes.ready()
    for _ in range(limit):
        lanes.add(create("a"), 1)

    error = refusal_of(lanes, create("a"))

    assert isinstance(error, RateLimited)
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    lanes.add(create("b"), 1)
    lanes.ended("a")
    lanes.ready()
    lanes.add(create("a"), 1)


def test_a_refusal_leaves_nothing_behind() -> None:
    lanes = Lanes(Limits(queued_turns=1, lane_names=1))
    lanes.add(create("a"), 1)
    refusal_of(lanes, create("a"))
    refusal_of(lanes, create("b"))

    assert started(lanes) == ["a"]
    lanes.ended("a")
    assert lanes.is_idle


def test_the_thirty_third_name_is_refused() -> None:
    lanes = Lanes(Limits())
    for number in range(32):
        lanes.add(create(f"l{number}"), 1)
        lanes.add(create(), 1)

    error = refusal_of(lanes, create("l32"))

    assert (error.status, error.code, error.param) == (400, "websocket_stream_limit_reached", "stream_id")
    lanes.ready()
    lanes.add(create("l0"), 1)


def test_a_name_counts_for_ever() -> None:
    lanes = Lanes(Limits(lane_names=2))
    for lane in ("a", "b", "a"):
        lanes.add(create(lane), 1)
        lanes.ready()
        lanes.ended(lane)

    assert refusal_of(lanes, create("c")).code == "websocket_stream_limit_reached"


def test_an_invalid_create_uses_up_a_name_too() -> None:
    lanes = Lanes(Limits(lane_names=1))
    lanes.add(InvalidCreate("a", None, InvalidRequest("Bad.")), 1)

    assert refusal_of(lanes, create("b")).code == "websocket_stream_limit_reached"


def test_lanes_are_idle_when_nothing_runs_and_nothing_waits() -> None:
    lanes = Lanes(Limits())
    assert lanes.is_idle

    lanes.add(create(), 1)
    assert not lanes.is_idle
    lanes.ready()
    assert not lanes.is_idle
    lanes.ended(None)
    assert lanes.is_idle


def test_the_bytes_that_wait_on_all_lanes_are_bounded() -> None:
    lanes = Lanes(Limits(queued_bytes=100))
    lanes.add(create("a"), 1000)
    assert started(lanes) == ["a"]

    # Nothing waits yet: it finds room, whatever its size.
    lanes.add(create("a"), 60)
    lanes.add(create("b"), 40)
    with pytest.raises(RateLimited, match="100 bytes"):
        lanes.add(create("c"), 1)
    assert started(lanes) == ["b"]
    lanes.add(create("c"), 40)

    lanes.ended("a")
    assert sorted(map(str, started(lanes))) == ["a", "c"]


def test_one_alone_finds_room_to_wait_whatever_its_size() -> None:
    lanes = Lanes(Limits(queued_bytes=100))
    lanes.add(create("a"), 1)
    lanes.ready()

    lanes.add(create("a"), 1000)

    with pytest.raises(RateLimited):
        lanes.add(create("a"), 1)
    lanes.ended("a")
    assert started(lanes) == ["a"]
    lanes.add(create("a"), 100)
