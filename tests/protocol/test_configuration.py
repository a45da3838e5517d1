"""What items of a context set for the responses after them."""

from typing import Any

import pytest

from responses_ws.protocol.configuration import Configuration
from responses_ws.protocol.request import Request

SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}


def update(**fields: Any) -> dict[str, Any]:
    return {"type": "configuration_update", **fields}


def tools(*names: str, **fields: Any) -> dict[str, Any]:
    given = [{"type": "function", "name": name, **fields} for name in names]
    return {"type": "additional_tools", "role": "developer", "tools": given}


def test_each_setting_stays_until_a_later_item_replaces_it() -> None:
    first = Configuration().after([update(reasoning={"effort": "low"}, text={"format": SCHEMA})])
    second = first.after([{"role": "user", "content": "hi"}, update(reasoning={"effort": "high"}), update(text=None)])

    assert (first.effort, first.text_format) == ("low", SCHEMA)
    assert (second.effort, second.text_format) == ("high", SCHEMA)


def test_items_that_set_nothing_change_nothing() -> None:
    before = Configuration(effort="low")

    assert before.after([{"type": "message"}, update(), update(reasoning={"effort": None})]) is before


def test_tools_add_up_and_a_later_one_of_the_same_name_takes_the_place() -> None:
    after = Configuration().after([tools("a", "b"), tools("c", "a", description="new")])

    assert [(tool["name"], tool.get("description")) for tool in after.tools] == [
        ("a", "new"),
        ("b", None),
        ("c", "new"),
    ]


@pytest.mark.parametrize(
    ("fields", "effort", "text_format"),
    [
        pytest.param({}, "low", SCHEMA, id="nothing said"),
        pytest.param({"reasoning": {"effort": None, "summary": "auto"}}, "low", SCHEMA, id="null said"),
        pytest.param({"reasoning": {"effort": "high"}}, "high", SCHEMA, id="effort said"),
        pytest.param({"text": {"format": {"type": "text"}}}, "low", {"type": "text"}, id="format said"),
        pytest.param({"text": {"verbosity": "low"}}, "low", SCHEMA, id="only the verbosity said"),
    ],
)
def test_what_a_request_says_itself_goes_before(
    fields: dict[str, Any], effort: str, text_format: dict[str, Any]
) -> None:
    applied = Configuration(effort="low", text_format=SCHEMA).applied(Request(**fields))

    assert applied.reasoning is not None and applied.text is not None
    assert (applied.reasoning["effort"], applied.text["format"]) == (effort, text_format)
    assert {**applied.reasoning, **(fields.get("reasoning") or {}), "effort": effort} == applied.reasoning
