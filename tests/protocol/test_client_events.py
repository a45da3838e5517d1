import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.protocol.client_events import (
    InvalidCreate,
    ResponseCreate,
    ResponseProcessed,
    ResponseSteer,
    decode_frame,
)
from responses_ws.protocol.errors import InvalidRequest


def frame(**fields: Any) -> str:
    return json.dumps(fields)


def create(**fields: Any) -> str:
    return frame(type="response.create", **fields)


UNDERSTOOD: dict[str, tuple[str, Any]] = {
    "create": (create(model="m", input="hi"), ResponseCreate(model="m", input="hi")),
    "in a lane": (create(model="m", stream_id="a.B_9-"), ResponseCreate(model="m", stream_id="a.B_9-")),
    "in a lane of the longest name": (create(stream_id="s" * 256), ResponseCreate(stream_id="s" * 256)),
    "lane null": (create(stream_id=None), ResponseCreate()),
    "its type last": ('{"model":"m","type":"response.create"}', ResponseCreate(model="m")),
    "blanks around": (' {"type" : "response.create"}\n', ResponseCreate()),
    "warm-up": (create(generate=False, input=[]), ResponseCreate(generate=False, input=[])),
    "as SDKs and Codex send it": (
        create(stream=True, stream_options={}, client_metadata={"a": 1}, include=[], background=False),
        ResponseCreate(stream=True, client_metadata={"a": 1}, include=[], background=False),
    ),
    "steer": (
        frame(type="response.steer", previous_response_id="resp_a", input="wait"),
        ResponseSteer(previous_response_id="resp_a", input="wait"),
    ),
    "steer with items": (
        frame(type="response.steer", previous_response_id="resp_a", input=[{"role": "user", "content": "wait"}]),
        ResponseSteer(previous_response_id="resp_a", input=[{"role": "user", "content": "wait"}]),
    ),
    "processed": (frame(type="response.processed", response_id="resp_a"), ResponseProcessed()),
}


@pytest.mark.parametrize(("text", "event"), UNDERSTOOD.values(), ids=UNDERSTOOD)
def test_a_frame_is_understood(text: str, event: Any) -> None:
    decoded = decode_frame(text)

    assert type(decoded) is type(event)
    assert msgspec.structs.asdict(decoded) == msgspec.structs.asdict(event)


NESTED = "[" * 100_000 + "]" * 100_000
HOMELESS: dict[str, tuple[str | bytes, tuple[str, str | None]]] = {
    "nothing": ("", ("invalid_json", None)),
    "no JSON": ("hello", ("invalid_json", None)),
    "half": ('{"type":"response.create"', ("invalid_json", None)),
    "array": ("[]", ("invalid_json", None)),
    "string": ('"response.create"', ("invalid_json", None)),
    "null": ("null", ("invalid_json", None)),
    "NaN": ('{"type":"response.create","temperature":NaN}', ("invalid_json", None)),
    "too deep": ('{"type":"response.create","text":{"a":' + NESTED + "}}", ("invalid_json", None)),
    "too deep where it matters not": ('{"type":"x","y":' + NESTED + "}", ("invalid_json", None)),
    "a lone surrogate, escaped": ('{"type":"response.create","model":"\\ud800"}', ("invalid_json", None)),
    "a lone surrogate": ('{"type":"response.create","model":"\ud800"}', ("invalid_json", None)),
    "no type": ("{}", ("invalid_event", "type")),
    "type null": (frame(type=None), ("invalid_event", "type")),
    "type no string": (frame(type=5), ("invalid_event", "type")),
    "type a list": (frame(type=["response.create"]), ("invalid_event", "type")),
    "unknown": (frame(type="response.dance"), ("invalid_event", "type")),
    "of the Realtime API": (frame(type="session.update", session={}), ("invalid_event", "type")),
    "cancel": (frame(type="response.cancel", stream_id="a"), ("invalid_event", "type")),
    "append to nothing": (
        frame(type="response.append", input=[]),
        ("missing_required_parameter", "response_id"),
    ),
    "append of nothing": (
        frame(type="response.append", response_id="resp_a"),
        ("missing_required_parameter", "input"),
    ),
    "inject": (frame(type="response.inject", response_id="resp_a", input=[]), ("invalid_event", "type")),
    "steer without target": (
        frame(type="response.steer", input="x"),
        ("missing_required_parameter", "previous_response_id"),
    ),
    "steer without input": (
        frame(type="response.steer", previous_response_id="resp_a"),
        ("missing_required_parameter", "input"),
    ),
    "steer with no text": (
        frame(type="response.steer", previous_response_id="resp_a", input=5),
        ("invalid_type", "input"),
    ),
    "steer at no string": (
        frame(type="response.steer", previous_response_id=5),
        ("invalid_type", "previous_response_id"),
    ),
    "empty lane name": (create(stream_id=""), ("invalid_stream_id", "stream_id")),
    "lane name too long": (create(stream_id="s" * 257), ("invalid_stream_id", "stream_id")),
    "lane name with a blank": (create(stream_id="a b"), ("invalid_stream_id", "stream_id")),
    "lane name with a line break": (create(stream_id="a\n"), ("invalid_stream_id", "stream_id")),
    "lane name not ASCII": (create(stream_id="é"), ("invalid_stream_id", "stream_id")),
    "lane name no string": (create(stream_id=5), ("invalid_stream_id", "stream_id")),
    "lane name and more wrong": (create(stream_id="", model=5), ("invalid_stream_id", "stream_id")),
}


@pytest.mark.parametrize(("text", "refusal"), HOMELESS.values(), ids=HOMELESS)
def test_a_frame_without_a_lane_is_refused_at_once(text: str | bytes, refusal: tuple[str, str | None]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_frame(text)

    assert (caught.value.code, caught.value.param) == refusal


@pytest.mark.parametrize("name", ["", "a b", "secret" * 100])
def test_an_invalid_lane_name_is_not_echoed(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_frame(create(stream_id=name))

    assert caught.value.message == "Invalid 'stream_id': expected 1 to 256 characters from [A-Za-z0-9_.-]."


def test_an_endless_type_is_not_echoed_whole() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_frame(frame(type="x" * 1_000_000))

    assert len(caught.value.message) < 200


INVALID: dict[str, tuple[str, tuple[str | None, str | None], tuple[str, str]]] = {
    "wrong type": (create(model=5), (None, None), ("invalid_type", "model")),
    "out of range": (create(temperature=3, stream_id="a"), ("a", None), ("invalid_value", "temperature")),
    "number too large": (
        '{"type":"response.create","stream_id":"a","temperature":1e999}',
        ("a", None),
        ("invalid_value", "temperature"),
    ),
    "a continuation": (
        create(previous_response_id="resp_a", stream_id="a", input=5),
        ("a", "resp_a"),
        ("invalid_type", "input"),
    ),
    "of no id": (create(previous_response_id=5), (None, None), ("invalid_type", "previous_response_id")),
    "type last": ('{"input":[1],"stream_id":"a","type":"response.create"}', ("a", None), ("invalid_type", "input[0]")),
}


@pytest.mark.parametrize(("text", "place", "refusal"), INVALID.values(), ids=INVALID)
def test_an_invalid_create_keeps_its_lane(
    text: str, place: tuple[str | None, str | None], refusal: tuple[str, str]
) -> None:
    event = decode_frame(text)

    assert isinstance(event, InvalidCreate)
    assert (event.stream_id, event.previous_response_id) == place
    assert (event.error.code, event.error.param) == refusal


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
fields = st.sampled_from(["model", "input", "stream_id", "previous_response_id", "tools", "text", "metadata", "x"])
kinds = st.sampled_from(["response.create", "response.steer", "response.processed", "x"])


@given(
    st.text(max_size=30)
    | st.dictionaries(fields, json_values).flatmap(
        lambda body: kinds.map(lambda kind: json.dumps({"type": kind, **body}))
    )
)
def test_no_frame_breaks_the_decoder(text: str) -> None:
    try:
        decode_frame(text)
    except InvalidRequest as error:
        assert error.status == 400
