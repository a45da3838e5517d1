"""The answers in the transcripts, read; they were written from SGLang's source."""

import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.sglang_stream import SGLangStream
from responses_ws.engines.sse import EventSplitter
from responses_ws.protocol.sampling import Finished, Started, Tokens
from responses_ws.protocol.usage import Usage
from responses_ws.testing import ids_in
from tests.fakes.transcripts import load, names

IDS = [504, 3575, 314, 7042]


def told(name, top=None):
    stream, deltas = SGLangStream(top), []
    for data in EventSplitter().feed(load("sglang", name).body):
        stream.feed(data, deltas)
    assert stream.is_done
    stream.finish(deltas)
    return deltas


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("cumulative", [[504], [3575], [314], [7042], [2]]),
        ("skipping", [[504, 3575], [314, 7042], [2]]),
        ("incremental", [[504], [3575], [314, 7042], [2]]),
    ],
)
def test_every_id_is_told_once_whatever_the_server_repeats(name, pieces):
    deltas = told(name)

    usage = Usage(input_tokens=5, cached_tokens=4, output_tokens=5)
    assert deltas == [Started(5, 4), *(Tokens(ids) for ids in pieces), Finished("stop", usage)]


def test_a_last_event_may_bring_nothing_new():
    deltas = told("incremental_empty_end")

    assert ids_in(deltas) == IDS
    assert deltas[-1].reason == "length"


@pytest.mark.parametrize("name", ["logprobs", "logprobs_incremental"])
@pytest.mark.parametrize("top", [0, 1, 2])
def test_logprobs_come_one_a_token_with_the_alternatives_asked_for(name, top):
    tokens = [delta for delta in told(name, top) if isinstance(delta, Tokens)]

    told_of = [one for delta in tokens for one in delta.logprobs]
    assert [one["token"] for one in told_of] == ["The", " capital", "<|im_end|>"]
    assert [one["logprob"] for one in told_of] == [-0.25, -0.5, -0.125]
    assert [len(one["top_logprobs"]) for one in told_of] == [top] * 3
    assert all(one["bytes"] == list(one["token"].encode()) for one in told_of)


def test_minus_infinity_is_a_number():
    *_, last = (delta for delta in told("logprobs", 2) if isinstance(delta, Tokens))

    assert last.logprobs[-1]["top_logprobs"][1]["logprob"] == -9999.0


@pytest.mark.parametrize(
    ("name", "kind", "made"),
    [
        ("abort", "unavailable", IDS[:2]),
        ("abort_incremental", "unavailable", IDS[:2]),
        ("queue_full", "overloaded", []),
        ("session_busy", "bad_request", []),
        ("overlong", "context_length", []),
    ],
)
def test_what_went_wrong_is_told_behind_what_was_made(name, kind, made):
    stream, deltas = SGLangStream(), []

    with pytest.raises(EngineError) as caught:
        for data in EventSplitter().feed(load("sglang", name).body):
            stream.feed(data, deltas)

    assert caught.value.kind == kind
    assert ids_in(deltas) == made


def test_a_request_against_the_schema_is_refused_by_status():
    transcript = load("sglang", "contract")

    error = SGLangStream().refusal(transcript.status, transcript.body, {})

    assert error.kind == "bad_request"
    assert "unknown field" in error.message


@pytest.mark.parametrize("data", [b"{oops", b'{"output_ids":[1]}', b'{"output_ids":["a"],"meta_info":{}}'])
def test_an_event_that_is_none_is_a_fault_of_the_engine(data):
    with pytest.raises(EngineError) as caught:
        SGLangStream().feed(data, [])

    assert caught.value.kind == "protocol"


@pytest.mark.parametrize("events", range(5))
def test_an_answer_that_is_cut_is_no_answer(events):
    stream, deltas = SGLangStream(), []
    for data in EventSplitter().feed(load("sglang", "cumulative").body)[:events]:
        stream.feed(data, deltas)

    with pytest.raises(EngineError, match="ended before its answer"):
        stream.finish(deltas)


def test_every_transcript_says_that_it_was_not_recorded():
    origins = [load("sglang", name).origin for name in names("sglang")]

    assert origins and all(origin.startswith("written from the source of SGLang 0.5.23") for origin in origins)
