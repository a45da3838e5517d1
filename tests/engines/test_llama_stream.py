import json

import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.llama_stream import CompletionReader, Gap
from responses_ws.protocol.sampling import Finished, Progress, Started, Tokens
from responses_ws.protocol.usage import Usage

END, OTHER_END = 2, 0


def progress(done, total=30, cached=10):
    return {
        "tokens": [0],
        "tokens_evaluated": total,
        "prompt_progress": {"total": total, "cache": cached, "processed": done},
    }


def token(one, content="x", count=1):
    return {"content": content, "tokens": [one], "stop": False, "tokens_predicted": count, "tokens_evaluated": 30}


def stop(kind, count, **fields):
    return {"tokens": [], "stop": True, "stop_type": kind, "tokens_predicted": count, "tokens_evaluated": 30, **fields}


def told(*chunks, stop_ids=(END,), **options):
    """The deltas of a whole stream."""
    reader, deltas = CompletionReader(stop_ids, **options), []
    for chunk in chunks:
        reader.feed(json.dumps(chunk).encode(), deltas)
        if reader.is_done:
            break
    reader.finish(deltas)
    return deltas


def test_a_whole_answer():
    timings = {"cache_n": 11}

    deltas = told(
        progress(10), progress(30), token(50), token(51, count=2), token(END, "", 3), stop("eos", 3, timings=timings)
    )

    assert deltas == [
        Started(30, 10),
        Progress(30, 30),
        Tokens([50]),
        Tokens([51]),
        Tokens([END]),
        # It is whole with its end: what the server says after that is not waited for.
        Finished("stop", Usage(input_tokens=30, output_tokens=3, cached_tokens=10)),
    ]


def test_the_limit_ends_an_answer():
    deltas = told(progress(10), token(50), stop("limit", 1, timings={"cache_n": 11}))

    assert deltas[-1] == Finished("length", Usage(input_tokens=30, output_tokens=1, cached_tokens=11))


@pytest.mark.parametrize("stop_ids", [(END,), (END, OTHER_END)], ids=["unknown", "known"])
def test_an_end_that_a_grammar_forces_is_told_as_the_templates(stop_ids):
    """It takes any that the vocabulary has."""
    chunks = [progress(10), token(50), token(OTHER_END, "", 2), stop("eos", 2)]

    deltas = told(*chunks, stop_ids=stop_ids, is_constrained=True)

    assert deltas[1:-1] == [Tokens([50]), Tokens((END,))]


def test_an_end_that_the_model_chose_is_told_as_it_is():
    deltas = told(progress(10), token(50), token(OTHER_END, "", 2), stop("eos", 2), stop_ids=(END, OTHER_END))

    assert deltas[1:-1] == [Tokens([50]), Tokens([OTHER_END])]


def test_an_end_behind_half_a_character_is_told_too():
    deltas = told(progress(10), token(50), stop("eos", 3))

    assert deltas[1:-1] == [Tokens([50]), Tokens((END,))]
    assert deltas[-1].usage.output_tokens == 3


def test_a_token_without_text_is_not_an_end():
    deltas = told(progress(10), token(7, ""), token(50, count=2), stop("limit", 2))

    assert deltas[1:-1] == [Tokens([7]), Tokens([50])]


def test_tokens_that_were_not_told_leave_a_gap():
    deltas = told(progress(10), token(50), token(51, "é", 3), stop("limit", 3))

    assert deltas[1:-1] == [Tokens([50]), Gap([51], (), "é")]


def test_a_stop_id_that_the_server_does_not_know_ends_the_answer():
    deltas = told(progress(10), token(50), token(9, "</s>", 2), token(51, count=3), stop_ids=(9,))

    assert deltas[1:] == [
        Tokens([50]),
        Tokens([9]),
        Finished("stop", Usage(input_tokens=30, output_tokens=2, cached_tokens=10)),
    ]


def test_a_server_without_progress_is_understood():
    deltas = told(token(50), stop("limit", 1))

    assert deltas[:2] == [Started(30, 0), Tokens([50])]


@pytest.mark.parametrize(
    ("chunks", "kind"),
    [
        ([progress(10), token(50)], "protocol"),
        ([], "protocol"),
        ([{"error": {"code": 500, "message": "went wrong", "type": "server_error"}}], "engine"),
        ([{"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}}], "context_length"),
        ([{"tokens": "x"}], "protocol"),
    ],
    ids=["cut", "empty", "error", "overlong", "unreadable"],
)
def test_what_is_no_answer(chunks, kind):
    with pytest.raises(EngineError) as caught:
        told(*chunks)

    assert caught.value.kind == kind
