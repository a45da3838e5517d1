import msgspec
import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.chat_stream import ChatStream
from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
)
from responses_ws.protocol.usage import Usage
from tests.fakes.faults import USAGE, call, chunk

COUNTED = Usage(input_tokens=11, output_tokens=2)
TEXT = {"content": "Hi"}


def data(event):
    return event.removeprefix(b"data: ").strip()


def deltas_of(*events, done=True):
    stream = ChatStream()
    deltas = []
    for event in events:
        stream.feed(data(event), deltas)
    if done:
        stream.feed(b"[DONE]", deltas)
    stream.finish(deltas)
    return deltas


def two_calls(names=("a", "b")):
    return [CallStart(0, names[0], "x"), CallArguments(0, "{}"), CallStart(1, names[1], "y"), CallArguments(1, "{}")]


ENDS = [CallEnd(0), CallEnd(1), Finished("tool_calls", None)]
STREAMS = {
    "text-and-usage-last": (
        [chunk({"role": "assistant", "content": ""}), chunk(TEXT), chunk(finish="stop"), chunk(usage=USAGE)],
        [TextDelta("Hi"), Finished("stop", COUNTED)],
    ),
    "no-usage": ([chunk(TEXT), chunk(finish="stop")], [TextDelta("Hi"), Finished("stop", None)]),
    "usage-null": ([chunk(TEXT, usage=None), chunk(finish="stop", usage=None)], [TextDelta("Hi"), Finished("stop")]),
    "usage-twice-takes-the-last": (
        [chunk(TEXT), chunk(finish="stop", usage={**USAGE, "completion_tokens": 1}), chunk(usage=USAGE)],
        [TextDelta("Hi"), Finished("stop", COUNTED)],
    ),
    "usage-in-every-chunk-starts-the-answer": (
        [
            chunk(TEXT, usage={**USAGE, "completion_tokens": 1}),
            chunk(TEXT, usage={**USAGE, "completion_tokens": 2}),
            chunk(finish="length"),
        ],
        [Started(11, 0), TextDelta("Hi"), TextDelta("Hi"), Finished("length", COUNTED)],
    ),
    "details": (
        [
            chunk(TEXT),
            chunk(finish="stop"),
            chunk(
                usage={
                    **USAGE,
                    "prompt_tokens_details": {"cached_tokens": 8},
                    "completion_tokens_details": {"reasoning_tokens": 1},
                }
            ),
        ],
        [
            TextDelta("Hi"),
            Finished("stop", Usage(input_tokens=11, output_tokens=2, cached_tokens=8, reasoning_tokens=1)),
        ],
    ),
    "impossible-details-are-clamped": (
        [
            chunk(TEXT, finish="stop"),
            chunk(
                usage={
                    **USAGE,
                    "prompt_tokens_details": {"cached_tokens": 99},
                    "completion_tokens_details": {"reasoning_tokens": 9},
                }
            ),
        ],
        [
            TextDelta("Hi"),
            Finished("stop", Usage(input_tokens=11, output_tokens=2, cached_tokens=11, reasoning_tokens=2)),
        ],
    ),
    "null-details": (
        [chunk(TEXT, finish="stop"), chunk(usage={**USAGE, "prompt_tokens_details": None})],
        [TextDelta("Hi"), Finished("stop", COUNTED)],
    ),
    "reasoning-content": (
        [chunk({"reasoning_content": "hm", "content": None}), chunk(TEXT, finish="stop")],
        [ReasoningDelta("hm"), TextDelta("Hi"), Finished("stop")],
    ),
    "reasoning": (
        [chunk({"reasoning": "hm"}), chunk(TEXT, finish="stop")],
        [ReasoningDelta("hm"), TextDelta("Hi"), Finished("stop")],
    ),
    "refusal": ([chunk({"refusal": "No."}, finish="stop")], [RefusalDelta("No."), Finished("stop")]),
    "content-parts": (
        [chunk({"content": [{"type": "text", "text": "Hi"}]}, finish="stop")],
        [TextDelta("Hi"), Finished("stop")],
    ),
    "content-filter": (
        [chunk(TEXT), chunk(finish="content_filter")],
        [TextDelta("Hi"), Finished("content_filter")],
    ),
    "progress-of-the-prompt": (
        [chunk(prompt_progress={"total": 9, "cache": 4, "processed": 5}), chunk(TEXT, finish="stop")],
        [Started(9, 4), TextDelta("Hi"), Finished("stop")],
    ),
    "id-and-name-once": (
        [
            chunk(call(0, "x", "a", "")),
            chunk(call(0, arguments='{"q"')),
            chunk(call(0, arguments=":1}")),
            chunk(finish="tool_calls"),
        ],
        [
            CallStart(0, "a", "x"),
            CallArguments(0, '{"q"'),
            CallArguments(0, ":1}"),
            CallEnd(0),
            Finished("tool_calls"),
        ],
    ),
    "id-and-name-in-each-piece": (
        [chunk(call(0, "x", "a", "{")), chunk(call(0, "x", "a", "}")), chunk(finish="tool_calls")],
        [CallStart(0, "a", "x"), CallArguments(0, "{"), CallArguments(0, "}"), CallEnd(0), Finished("tool_calls")],
    ),
    "arguments-before-the-name": (
        [chunk(call(0, "x", arguments="{")), chunk(call(0, name="a", arguments="}")), chunk(finish="tool_calls")],
        [CallStart(0, "a", "x"), CallArguments(0, "{}"), CallEnd(0), Finished("tool_calls")],
    ),
    "whole-calls": (
        [chunk(call(0, "x", "a", "{}")), chunk(call(1, "y", "b", "{}")), chunk(finish="tool_calls")],
        [*two_calls(), *ENDS],
    ),
    "whole-calls-in-one-chunk": (
        [
            chunk({"tool_calls": call(0, "x", "a", "{}")["tool_calls"] + call(1, "y", "b", "{}")["tool_calls"]}),
            chunk(finish="tool_calls"),
        ],
        [*two_calls(), *ENDS],
    ),
    "no-index": (
        [
            chunk(call(None, "x", "a", "")),
            chunk(call(None, arguments="{}")),
            chunk(call(None, "y", "b", "{}")),
            chunk(finish="tool_calls"),
        ],
        [*two_calls(), *ENDS],
    ),
    "index-always-0": (
        [chunk(call(0, "x", "a", "{}")), chunk(call(0, "y", "a", "{}")), chunk(finish="tool_calls")],
        [*two_calls(("a", "a")), *ENDS],
    ),
    "index-from-1": (
        [chunk(call(1, "x", "a", "{}")), chunk(finish="tool_calls")],
        [CallStart(0, "a", "x"), CallArguments(0, "{}"), CallEnd(0), Finished("tool_calls")],
    ),
    "arguments-as-an-object": (
        [chunk(call(0, "x", "a", {"q": 1})), chunk(finish="tool_calls")],
        [CallStart(0, "a", "x"), CallArguments(0, '{"q":1}'), CallEnd(0), Finished("tool_calls")],
    ),
    "stop-after-calls": (
        [chunk(call(0, "x", "a", "{}")), chunk(finish="stop")],
        [CallStart(0, "a", "x"), CallArguments(0, "{}"), CallEnd(0), Finished("tool_calls")],
    ),
    "tool-calls-without-calls": ([chunk(TEXT, finish="tool_calls")], [TextDelta("Hi"), Finished("stop")]),
    "a-reason-nobody-knows": ([chunk(TEXT, finish="eos_token")], [TextDelta("Hi"), Finished("stop")]),
    "legacy-function-call": (
        [
            chunk({"function_call": {"name": "a", "arguments": ""}}),
            chunk({"function_call": {"arguments": "{}"}}),
            chunk(finish="function_call"),
        ],
        [CallStart(0, "a", None), CallArguments(0, "{}"), CallEnd(0), Finished("tool_calls")],
    ),
    "cut-calls-stay-open": (
        [chunk(call(0, "x", "a", "{}")), chunk(call(1, "y", "b", '{"cmd":"rm -rf /tmp')), chunk(finish="length")],
        [
            *two_calls()[:3],
            CallArguments(1, '{"cmd":"rm -rf /tmp'),
            CallEnd(0),
            Finished("length"),
        ],
    ),
    "done-without-a-reason": ([chunk(TEXT)], [TextDelta("Hi"), Finished("stop")]),
    "second-choice-is-not-ours": (
        [
            chunk(TEXT),
            b'data: {"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"length"}]}',
            chunk(finish="stop"),
        ],
        [TextDelta("Hi"), Finished("stop")],
    ),
}


@pytest.mark.parametrize(("events", "expected"), STREAMS.values(), ids=STREAMS)
def test_what_servers_send(events, expected):
    assert deltas_of(*events) == expected


def test_the_end_of_the_body_will_do_for_done():
    assert deltas_of(chunk(TEXT), chunk(finish="stop"), done=False) == [TextDelta("Hi"), Finished("stop")]


@pytest.mark.parametrize(
    ("events", "done", "kind"),
    [
        pytest.param([chunk(TEXT)], False, "protocol", id="no-end"),
        pytest.param([], True, "protocol", id="done-without-content"),
        pytest.param([b"{oops"], True, "protocol", id="bad-json"),
        pytest.param([b'{"choices":[{"delta":{"content":5}}]}'], True, "protocol", id="bad-type"),
        pytest.param([b'{"choices":[{"delta":{"content":"\xff"}}]}'], True, "protocol", id="bad-utf8"),
        pytest.param([chunk(call(0, "x", arguments="{}")), chunk(finish="tool_calls")], True, "protocol", id="no-name"),
        pytest.param([chunk(TEXT, finish="error")], True, "engine", id="finish-error"),
        pytest.param([b'{"error":{"message":"boom","code":500}}'], True, "engine", id="error-500"),
        pytest.param([b'{"error":"boom"}'], True, "engine", id="error-string"),
        pytest.param([b'{"error":{"message":"slow","code":429}}'], True, "rate_limited", id="error-429"),
        pytest.param(
            [b'{"error":{"message":"This model\'s maximum context length is 10","code":400}}'],
            True,
            "context_length",
            id="error-context",
        ),
        pytest.param([b'{"error":{"type":"invalid_request_error"}}'], True, "bad_request", id="error-type"),
    ],
)
def test_faults(events, done, kind):
    with pytest.raises(EngineError) as caught:
        deltas_of(*events, done=done)

    assert caught.value.kind == kind


def test_an_answer_in_one_piece():
    message = {
        "role": "assistant",
        "content": "Hi",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "a", "arguments": "{}"}}],
    }
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE}

    deltas = deltas_of(msgspec.json.encode(body), done=False)

    assert deltas == [
        Started(11, 0),
        ReasoningDelta("hm"),
        TextDelta("Hi"),
        CallStart(0, "a", "x"),
        CallArguments(0, "{}"),
        CallEnd(0),
        Finished("tool_calls", COUNTED),
    ]
