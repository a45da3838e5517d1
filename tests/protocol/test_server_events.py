import json

import msgspec
import pytest

from responses_ws.protocol import server_events as events
from responses_ws.protocol.server_events import encode, encode_response, event_type, sse


def structs() -> list[type[events.ServerEvent]]:
    """The events themselves: what others are built on is never sent."""
    ours = [
        value for value in vars(events).values() if isinstance(value, type) and issubclass(value, events.ServerEvent)
    ]
    return [struct for struct in ours if not struct.__subclasses__()]


@pytest.mark.parametrize("struct", structs(), ids=lambda struct: struct.__name__)
def test_every_event_says_its_type_first(struct: type[events.ServerEvent]) -> None:
    # The values do not matter: nothing is checked when we encode.
    fields = {field.name: {} for field in msgspec.structs.fields(struct) if field.required}

    frame = encode(struct(**fields))

    assert frame.startswith('{"type":"response.')
    assert event_type(frame) == json.loads(frame)["type"]


def test_a_delta_is_these_bytes() -> None:
    event = events.OutputTextDelta(
        sequence_number=4, item_id="msg_1", output_index=0, content_index=0, delta='é"\n😀', stream_id="a"
    )

    assert encode(event) == (
        '{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,'
        '"delta":"é\\"\\n😀","logprobs":[],"sequence_number":4,"stream_id":"a"}'
    )


def test_the_default_lane_has_no_key_rather_than_null() -> None:
    event = events.OutputItemAdded(sequence_number=2, output_index=0, item={"id": "x"})

    assert encode(event) == (
        '{"type":"response.output_item.added","output_index":0,"item":{"id":"x"},"sequence_number":2}'
    )


def test_a_response_is_encoded_once_for_several_events() -> None:
    response = encode_response({"id": "resp_1", "text": "é"})

    created = events.ResponseCreated(sequence_number=0, response=response)
    progress = events.ResponseInProgress(sequence_number=1, response=response)

    body = '"response":{"id":"resp_1","text":"é"}'
    assert encode(created) == '{"type":"response.created",' + body + ',"sequence_number":0}'
    assert encode(progress) == '{"type":"response.in_progress",' + body + ',"sequence_number":1}'


def test_an_sse_event_is_these_bytes() -> None:
    frame = '{"type":"response.output_text.delta","delta":"a\\nb \u2028é"}'

    assert sse(frame) == (
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a\\nb '
        b'\xe2\x80\xa8\xc3\xa9"}\n\n'
    )


def test_an_encoded_event_never_breaks_the_framing() -> None:
    hostile = "a\r\n\ndata: x\n\n"
    event = events.OutputTextDelta(sequence_number=4, item_id="m", output_index=0, content_index=0, delta=hostile)

    data = sse(encode(event))

    assert data.count(b"\n") == 3
    assert b"\r" not in data


def test_the_end_of_a_stream_is_these_bytes() -> None:
    assert events.SSE_DONE == b"data: [DONE]\n\n"
