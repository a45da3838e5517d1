from typing import Any

import pytest

from responses_ws.protocol.depth import MAX_DEPTH, check_depth
from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.items import input_items
from responses_ws.protocol.request import Request, check_request


def nested(levels: int, *, by: str = "arrays") -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if by == "arrays" else {"a": value, "b": "[" * 100}
    return value


@pytest.mark.parametrize("by", ["arrays", "objects"])
@pytest.mark.parametrize("within", [1, 2, 3])
def test_the_limit_is_exact(by: str, within: int) -> None:
    check_depth(nested(MAX_DEPTH + 1 - within, by=by), "p", within=within)

    with pytest.raises(InvalidRequest) as caught:
        check_depth(nested(MAX_DEPTH + 2 - within, by=by), "p", within=within)

    assert (caught.value.code, caught.value.param) == ("invalid_json", "p")


def test_an_item_that_is_too_deep_is_refused() -> None:
    def checked(levels: int) -> Any:
        # The body, its input, the item, and what is in it.
        return input_items([{"type": "x", "data": nested(levels - 3)}], lambda prefix: prefix, max_items=10)

    assert checked(MAX_DEPTH)
    with pytest.raises(InvalidRequest) as caught:
        checked(MAX_DEPTH + 1)
    assert (caught.value.code, caught.value.param) == ("invalid_json", "input[0]")


@pytest.mark.parametrize("field", ["reasoning", "tool_choice", "conversation", "prompt"])
def test_whatever_is_too_deep_is_refused(field: str) -> None:
    request = Request(model="m", input="hi", **{field: {"type": "mcp", "id": "x", "more": nested(MAX_DEPTH)}})

    with pytest.raises(InvalidRequest) as caught:
        check_request(request, max_tools=1, max_schema_bytes=1)

    assert (caught.value.code, caught.value.param) == ("invalid_json", field)


def test_a_schema_that_is_too_deep_is_refused() -> None:
    def checked(levels: int) -> None:
        schema = {"default": nested(levels - 4)}
        text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        check_request(Request(model="m", input="hi", text=text), max_tools=1, max_schema_bytes=10_000)

    checked(MAX_DEPTH)
    with pytest.raises(InvalidRequest) as caught:
        checked(MAX_DEPTH + 1)
    assert (caught.value.code, caught.value.param) == ("invalid_json", "text")
