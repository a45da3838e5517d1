import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.items import calls_left_open, check_media_sizes, input_items, listed, require_outputs

MISSING = "missing_required_parameter"
PNG = "data:image/png;base64,iVBORw0KGgo="


def counting() -> Callable[[str], str]:
    count = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(count)}"


def checked(*items: Any) -> list[dict[str, Any]]:
    return input_items(list(items), counting(), max_items=100)


def user(*parts: Any) -> dict[str, Any]:
    return {"id": "msg_c", "role": "user", "content": list(parts)}


@pytest.mark.parametrize("given", [None, "", []], ids=["null", "empty text", "no items"])
def test_no_input_is_no_items(given: Any) -> None:
    assert input_items(given, counting(), max_items=0) == []


def test_a_text_is_one_user_message() -> None:
    assert input_items("hi", counting(), max_items=1) == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}], "id": "msg_1"}
    ]


@pytest.mark.parametrize(
    "given", [{"type": "item_reference", "id": "msg_a"}, {"id": "msg_a"}, {"type": None, "id": "msg_a"}], ids=str
)
def test_a_reference_needs_no_type(given: dict[str, Any]) -> None:
    assert checked(given) == [{"type": "item_reference", "id": "msg_a"}]


KEPT: dict[str, dict[str, Any]] = {
    "easy message": {"role": "user", "content": "hi"},
    "a key that is empty": {"type": "function_call", "call_id": "a", "name": "f", "arguments": "", "": [1]},
    "type null": {"type": None, "role": "user", "content": "hi"},
    "system": {"role": "system", "content": "hi"},
    "developer": {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "hi"}]},
    "assistant with a phase": {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "hi", "annotations": []}, {"type": "refusal", "refusal": "no"}],
    },
    "no parts": {"role": "user", "content": []},
    "image": user({"type": "input_image", "image_url": PNG, "detail": "low", "file_id": None}),
    "file": user({"type": "input_file", "file_data": "JVBERi0=", "filename": "a.pdf", "file_url": None}),
    "part of a kind to come": user({"type": "input_smell", "smell": 5}),
    "call": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
    "call with broken arguments": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"},
    "call in a namespace": {
        "type": "function_call",
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
        "namespace": "crm",
    },
    "output": {"type": "function_call_output", "call_id": "c", "output": "ok"},
    "empty output": {"type": "function_call_output", "call_id": "c", "output": ""},
    "output in parts": {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": "ok"}, {"type": "input_image", "image_url": PNG}],
    },
    "custom call": {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": ""},
    "custom output": {
        "type": "custom_tool_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": "ok"}],
    },
    "reasoning as Codex sends it": {
        "type": "reasoning",
        "summary": [],
        "content": None,
        "encrypted_content": None,
    },
    "reasoning": {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
    "reasoning without content": {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
    "compaction": {"type": "compaction", "encrypted_content": "x"},
    "shell output": {
        "type": "shell_call_output",
        "call_id": "c",
        "output": [{"stdout": "", "stderr": "", "outcome": {"type": "exit"}}],
    },
    "screenshot": {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": "https://x"},
    },
    "of a kind to come": {"type": "telepathy", "content": [5, None, {"type": 7}], "output": {"a": [1.5]}, "role": 5},
}


@pytest.mark.parametrize("item", KEPT.values(), ids=KEPT)
def test_an_item_is_kept_whole(item: dict[str, Any]) -> None:
    given = {**item, "id": "client_1"}
    before = copy.deepcopy(given)

    (kept,) = checked(given)

    assert kept is given
    assert kept == before


PREFIXES = {
    "easy message": "msg",
    "call": "fc",
    "output": "fco",
    "custom call": "ctc",
    "custom output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    "of a kind to come": "item",
}


@pytest.mark.parametrize("given_id", [{}, {"id": None}, {"id": ""}], ids=["left out", "null", "empty"])
@pytest.mark.parametrize(("name", "prefix"), PREFIXES.items(), ids=PREFIXES)
def test_an_item_without_an_id_gets_one_and_nothing_else(name: str, prefix: str, given_id: dict[str, Any]) -> None:
    item = {**KEPT[name], **given_id}
    before = copy.deepcopy(item)

    (kept,) = checked(item)

    assert kept == {**item, "id": f"{prefix}_1"}
    assert item == before


@pytest.mark.parametrize("given_id", ["x", "msg_0000-ünï", "i" * 128])
def test_a_client_s_id_is_kept(given_id: str) -> None:
    assert checked({"role": "user", "content": "hi", "id": given_id})[0]["id"] == given_id


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "ok"}
IMAGE = {"type": "input_image"}
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "type no string": ({"type": 5}, ("invalid_type", "type")),
    "empty type": ({"type": ""}, ("invalid_value", "type")),
    "reference without id": ({"type": "item_reference"}, (MISSING, "id")),
    "reference id no string": ({"type": "item_reference", "id": 5}, ("invalid_type", "id")),
    "tools no array": ({"type": "additional_tools", "tools": {}}, ("invalid_type", "tools")),
    "no additional tools": ({"type": "additional_tools"}, (MISSING, "tools")),
    "an additional tool without a name": (
        {"type": "additional_tools", "tools": [{"type": "custom"}]},
        (MISSING, "tools[0].name"),
    ),
    "effort no string": (
        {"type": "configuration_update", "reasoning": {"effort": 5}},
        ("invalid_type", "reasoning.effort"),
    ),
    "format of no kind": (
        {"type": "configuration_update", "text": {"format": {}}},
        (MISSING, "text.format.type"),
    ),
    "no role": ({"content": "hi"}, (MISSING, "role")),
    "role no string": ({"role": 5, "content": "hi"}, ("invalid_type", "role")),
    "unknown role": ({"role": "tool", "content": "hi"}, ("invalid_value", "role")),
    "no content": ({"role": "user"}, (MISSING, "content")),
    "content no text": ({"role": "user", "content": {"text": "hi"}}, ("invalid_type", "content")),
    "part no object": (user("hi"), ("invalid_type", "content[0]")),
    "part null": (user(None), ("invalid_type", "content[0]")),
    "part without type": (user({"text": "hi"}), (MISSING, "content[0].type")),
    "part's type no string": (user({"type": 5}), ("invalid_type", "content[0].type")),
    "text part without text": (user({"type": "input_text"}), (MISSING, "content[0].text")),
    "text no string": (user({"type": "input_text", "text": 5}), ("invalid_type", "content[0].text")),
    "text no string in an unknown part": (user({"type": "x", "text": 5}), ("invalid_type", "content[0].text")),
    "refusal no string": (user({"type": "refusal", "refusal": [1]}), ("invalid_type", "content[0].refusal")),
    "image as in chat": (
        user({**IMAGE, "image_url": {"url": "https://x"}}),
        ("invalid_type", "content[0].image_url"),
    ),
    "image by http": (user({**IMAGE, "image_url": "http://10.0.0.1/"}), ("unsupported_value", "content[0].image_url")),
    "image by https": (user({**IMAGE, "image_url": "https://x"}), ("unsupported_value", "content[0].image_url")),
    "image from a file": (user({**IMAGE, "image_url": "file:///etc"}), ("unsupported_value", "content[0].image_url")),
    "image by a blank and http": (
        user({**IMAGE, "image_url": " http://x"}),
        ("unsupported_value", "content[0].image_url"),
    ),
    "image of nothing": (user(IMAGE), (MISSING, "content[0].image_url")),
    "image of another type": (
        user({**IMAGE, "image_url": "data:image/svg+xml;base64,AAAA"}),
        ("unsupported_image_media_type", "content[0].image_url"),
    ),
    "image that is none": (
        user({**IMAGE, "image_url": "data:,hello"}),
        ("unsupported_image_media_type", "content[0].image_url"),
    ),
    "image that is not base64": (
        user({**IMAGE, "image_url": "data:image/png,%89PNG"}),
        ("invalid_base64_image", "content[0].image_url"),
    ),
    "image without an end": (
        user({**IMAGE, "image_url": "data:image/png;base64"}),
        ("invalid_base64_image", "content[0].image_url"),
    ),
    "empty image": (
        user({**IMAGE, "image_url": "data:image/png;base64,"}),
        ("empty_image_file", "content[0].image_url"),
    ),
    "image of another type in an output": (
        {**OUTPUT, "output": [{**IMAGE, "image_url": "data:text/html;base64,AAAA"}]},
        ("unsupported_image_media_type", "output[0].image_url"),
    ),
    "image by id": (user({**IMAGE, "file_id": "file_1"}), ("unsupported_value", "content[0].file_id")),
    "detail no string": (user({**IMAGE, "image_url": PNG, "detail": 1}), ("invalid_type", "content[0].detail")),
    "file by URL": (
        user({"type": "input_file", "file_url": "https://x"}),
        ("unsupported_value", "content[0].file_url"),
    ),
    "file by id": (user({"type": "input_file", "file_id": "file_1"}), ("unsupported_value", "content[0].file_id")),
    "no call id": ({**CALL, "call_id": None}, (MISSING, "call_id")),
    "call id no string": ({**CALL, "call_id": 5}, ("invalid_type", "call_id")),
    "no name": ({**CALL, "name": None}, (MISSING, "name")),
    "arguments no string": ({**CALL, "arguments": {}}, ("invalid_type", "arguments")),
    "namespace no string": ({**CALL, "namespace": 5}, ("invalid_type", "namespace")),
    "output without call id": ({**OUTPUT, "call_id": None}, (MISSING, "call_id")),
    "no output": ({**OUTPUT, "output": None}, (MISSING, "output")),
    "output no text": ({**OUTPUT, "output": {"ok": True}}, ("invalid_type", "output")),
    "image by https in an output": (
        {**OUTPUT, "output": [{**IMAGE, "image_url": "https://x"}]},
        ("unsupported_value", "output[0].image_url"),
    ),
    "custom call without input": (
        {"type": "custom_tool_call", "call_id": "c", "name": "f"},
        (MISSING, "input"),
    ),
    "reasoning's content no list": ({"type": "reasoning", "content": "Hm"}, ("invalid_type", "content")),
    "compaction without content": ({"type": "compaction"}, ("missing_required_parameter", "encrypted_content")),
    "compaction's content no string": (
        {"type": "compaction", "encrypted_content": 5},
        ("invalid_type", "encrypted_content"),
    ),
    "reasoning's encrypted content no string": (
        {"type": "reasoning", "encrypted_content": 5},
        ("invalid_type", "encrypted_content"),
    ),
    "reasoning's summary no list": ({"type": "reasoning", "summary": "Hm"}, ("invalid_type", "summary")),
    "a part of reasoning's summary no object": (
        {"type": "reasoning", "summary": ["Hm"]},
        ("invalid_type", "summary[0]"),
    ),
    "a part of reasoning's summary without text": (
        {"type": "reasoning", "summary": [{"type": "summary_text"}]},
        ("missing_required_parameter", "summary[0].text"),
    ),
    "reasoning's text no string": (
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": 5}]},
        ("invalid_type", "content[0].text"),
    ),
    "id no string": ({**user(), "id": 5}, ("invalid_type", "id")),
    "id too long": ({**user(), "id": "i" * 129}, ("invalid_value", "id")),
    "id with a NUL": ({**user(), "id": "msg_\0"}, ("invalid_value", "id")),
}


@pytest.mark.parametrize(("item", "refusal"), REFUSED.values(), ids=REFUSED)
def test_a_bad_item_is_refused_by_its_place(item: dict[str, Any], refusal: tuple[str, str]) -> None:
    code, field = refusal

    with pytest.raises(InvalidRequest) as caught:
        checked({"role": "user", "content": "hi"}, item)

    assert (caught.value.code, caught.value.param) == (code, f"input[1].{field}")


@pytest.mark.parametrize(("count", "passes"), [(3, True), (4, False), (3000, False)])
def test_the_number_of_items_is_limited(count: int, passes: bool) -> None:
    items = [{"role": "user", "content": "hi"}] * count

    if passes:
        assert len(input_items(items, counting(), max_items=3)) == count
        return
    with pytest.raises(InvalidRequest) as caught:
        input_items(items, counting(), max_items=3)
    assert caught.value.param == "input"


SIZED = {
    "image": ({**IMAGE, "image_url": "data:image/png;base64,AAAAAAA="}, 5, 100, "image_too_large", "image_url"),
    "file": ({"type": "input_file", "file_data": "data:x/y;base64,AAAAAA=="}, 100, 4, "file_too_large", "file_data"),
    "bare file": ({"type": "input_file", "file_data": "AAAA"}, 100, 3, "file_too_large", "file_data"),
    "file's URL": ({"type": "input_file", "file_url": "data:;base64,AAAA"}, 100, 3, "file_too_large", "file_url"),
}


@pytest.mark.parametrize(("part", "images", "files", "code", "field"), SIZED.values(), ids=SIZED)
def test_images_and_files_have_a_size_limit(
    part: dict[str, Any], images: int, files: int, code: str, field: str
) -> None:
    items = [user({"type": "input_text", "text": "see"}, part), {**OUTPUT, "output": [part]}]
    check_media_sizes(items, max_image_bytes=images, max_file_bytes=files)

    for item, place in zip(items, ("input[0].content[1]", "input[0].output[0]"), strict=True):
        with pytest.raises(InvalidRequest) as caught:
            check_media_sizes([item], max_image_bytes=images - 1, max_file_bytes=files - 1)
        assert (caught.value.code, caught.value.param) == (code, f"{place}.{field}")


def call(call_id: str, name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **fields}


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "ok"}


def custom(call_id: str) -> dict[str, Any]:
    return {"type": "custom_tool_call", "call_id": call_id, "name": "p", "input": ""}


def custom_output(call_id: str) -> dict[str, Any]:
    return {"type": "custom_tool_call_output", "call_id": call_id, "output": "ok"}


HI = {"role": "user", "content": "hi"}
UNKNOWN = {"type": "shell_call", "call_id": "s"}
# name: (open before, new items, open after)
PAIRS: dict[str, tuple[dict[str, str], list[dict[str, Any]], dict[str, str]]] = {
    "nothing": ({}, [], {}),
    "a message": ({}, [HI], {}),
    "a call opens": ({}, [call("a")], {"a": "f"}),
    "an output closes": ({"a": "f"}, [output("a")], {}),
    "one of two": ({"a": "f", "b": "g"}, [output("b")], {"a": "f"}),
    "both, in any order": ({"a": "f", "b": "g"}, [output("b"), output("a")], {}),
    "custom": ({"a": "p"}, [custom_output("a")], {}),
    "a user's word before the output": ({"a": "f"}, [HI, output("a")], {}),
    "a history sent again": (
        {},
        [HI, call("a"), call("b"), output("a"), output("b"), custom("c"), custom_output("c"), HI],
        {},
    ),
    "an id used again later": ({}, [call("a"), output("a"), call("a", "g")], {"a": "g"}),
    "an unknown call needs no output": ({}, [UNKNOWN], {}),
    "a call that was cut off needs none": ({}, [call("a", status="incomplete")], {}),
    "but may have one": ({}, [call("a", status="incomplete"), output("a")], {}),
}


@pytest.mark.parametrize(("before", "items", "after"), PAIRS.values(), ids=PAIRS)
def test_outputs_close_calls(before: dict[str, str], items: list[dict[str, Any]], after: dict[str, str]) -> None:
    given = dict(before)

    assert calls_left_open(given, items) == after
    assert given == before


ORPHANS: dict[str, tuple[dict[str, str], list[dict[str, Any]], str]] = {
    "no call": ({}, [output("a")], "No tool call found for function call output with call_id a."),
    "another call": ({"b": "f"}, [output("a")], "No tool call found for function call output with call_id a."),
    "said twice": (
        {"a": "f"},
        [output("a"), output("a")],
        "No tool call found for function call output with call_id a.",
    ),
    "before its call": ({}, [output("a"), call("a")], "No tool call found for function call output with call_id a."),
    "custom": ({}, [custom_output("a")], "No tool call found for custom tool call output with call_id a."),
}


@pytest.mark.parametrize(("before", "items", "message"), ORPHANS.values(), ids=ORPHANS)
def test_an_output_without_its_call_is_refused(
    before: dict[str, str], items: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        calls_left_open(before, items)

    error = caught.value
    assert (error.message, error.param, error.code) == (message, "input", "invalid_request_error")


def test_a_call_without_its_output_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        require_outputs({"a": "f", "b": "g"})

    error = caught.value
    assert error.message == "No tool output found for function call a."
    assert (error.param, error.code) == ("input", "invalid_request_error")


def test_nothing_open_is_nothing_missing() -> None:
    require_outputs({})


LISTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "easy message": (
        {"id": "m", "role": "user", "content": "hi"},
        {
            "id": "m",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_text", "text": "hi"}],
        },
    ),
    "assistant's": (
        {"id": "m", "role": "assistant", "content": "hi", "phase": "commentary"},
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
        },
    ),
    "cut off": (
        {"id": "m", "type": "message", "role": "assistant", "status": "incomplete", "content": []},
        {"id": "m", "type": "message", "role": "assistant", "status": "incomplete", "content": []},
    ),
    "output": (
        {"id": "o", "type": "function_call_output", "call_id": "c", "output": "hi"},
        {"id": "o", "type": "function_call_output", "call_id": "c", "output": "hi", "status": "completed"},
    ),
    "output that was cut off": (
        {"id": "o", "type": "custom_tool_call_output", "call_id": "c", "output": "", "status": "incomplete"},
        {"id": "o", "type": "custom_tool_call_output", "call_id": "c", "output": "", "status": "incomplete"},
    ),
    "other items": (
        {"id": "x", "type": "telepathy", "content": "hi"},
        {"id": "x", "type": "telepathy", "content": "hi"},
    ),
}


@pytest.mark.parametrize(("item", "full"), LISTED.values(), ids=LISTED)
def test_items_are_listed_in_full_form(item: dict[str, Any], full: dict[str, Any]) -> None:
    before = copy.deepcopy(item)

    assert listed(item) == full
    assert item == before


def test_a_compaction_trigger_is_the_last_item() -> None:
    trigger, message = {"type": "compaction_trigger"}, {"role": "user", "content": "hi"}

    assert [item["type"] for item in checked({**message, "type": "message"}, trigger)] == [
        "message",
        "compaction_trigger",
    ]
    with pytest.raises(InvalidRequest) as caught:
        checked(message, trigger, message)

    assert caught.value.param == "input[1]"


def test_only_parts_are_looked_at_for_their_size() -> None:
    # A key that is an empty string is the client's own.
    check_media_sizes([{"type": "web_search_call", "": [None, "data:,x"]}], max_image_bytes=1, max_file_bytes=1)
