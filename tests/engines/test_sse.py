import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.engines.base import EngineError
from responses_ws.engines.sse import MAX_EVENT_BYTES, EventSplitter

STREAMS = {
    "newlines": (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    "carriage-returns": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "both": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "mixed": (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
    "no-space": (b"data:a\n\n", [b"a"]),
    "only-one-space-goes": (b"data:  a\n\n", [b" a"]),
    "comments": (b": ping\n\n: pong\ndata: a\n\n", [b"a"]),
    "other-fields": (b"event: message\nid: 7\nretry: 10\ndata: a\nfoo\n\n", [b"a"]),
    "several-data-lines": (b"data: a\ndata: b\n\n", [b"a\nb"]),
    "byte-order-mark": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "two-byte-order-marks": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [b"b"]),
    "multi-byte": ("data: é😀\n\n".encode(), ["é😀".encode()]),
    "blank-lines": (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
    "no-blank-line-at-the-end": (b"data: a\n\ndata: b\n", [b"a", b"b"]),
    "no-newline-at-the-end": (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
    "data-field-name-only": (b"data\n\ndata: a\n\n", [b"a"]),
}


def split(pieces):
    splitter = EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events + splitter.close()


@pytest.mark.parametrize(("stream", "expected"), STREAMS.values(), ids=STREAMS)
def test_events_do_not_depend_on_where_the_stream_is_cut(stream, expected):
    assert split([stream]) == expected
    assert split([bytes([byte]) for byte in stream]) == expected
    for cut in range(len(stream)):
        assert split([stream[:cut], stream[cut:]]) == expected, cut


@given(st.sampled_from(list(STREAMS.values())), st.lists(st.integers(0, 60)))
def test_nor_on_how_often_it_is_cut(stream_and_events, cuts):
    stream, expected = stream_and_events
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]

    assert split([stream[a:b] for a, b in zip(places, places[1:], strict=False)]) == expected


@pytest.mark.parametrize("piece", [1, 65536, MAX_EVENT_BYTES * 2], ids=["last-byte", "reads", "at-once"])
def test_an_endless_line_is_refused(piece):
    splitter = EventSplitter()
    line = b"data: " + b"x" * MAX_EVENT_BYTES
    if piece == 1:
        splitter.feed(line[:MAX_EVENT_BYTES])
        line = line[MAX_EVENT_BYTES:]

    with pytest.raises(EngineError) as caught:
        for start in range(0, len(line), piece):
            splitter.feed(line[start : start + piece])

    assert caught.value.kind == "protocol"


def test_an_endless_event_of_short_lines_is_refused():
    splitter = EventSplitter()
    line = b"data: " + b"x" * 1000 + b"\n"

    with pytest.raises(EngineError):
        for _ in range(MAX_EVENT_BYTES // 1000 + 1):
            splitter.feed(line)


def test_an_event_that_is_too_long_is_refused_though_it_is_whole():
    with pytest.raises(EngineError):
        EventSplitter(20).feed(b"data: a\n\ndata: " + b"x" * 21 + b"\n\n")
