import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.protocol.sampling import CallArguments, CallEnd, CallStart, Delta, Finished, TextDelta
from responses_ws.rendering.chat import messages_from
from responses_ws.rendering.tools import CallTranslator, ToolSet, flat_name

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ANY = {"type": "object", "properties": {}}
BARE = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def function(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **fields}


def custom(name: str = "p", **fields: Any) -> dict[str, Any]:
    return {"type": "custom", "name": name, **fields}


def namespace(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "d", "tools": list(tools)}


def offered(name: str, parameters: dict[str, Any] = ANY, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields, "parameters": parameters}}


OFFERS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "bare": ([function()], [offered("f")]),
    "nulls": ([function(description=None, parameters=None, strict=None)], [offered("f")]),
    "whole": (
        [function(description="d", parameters=SCHEMA, strict=True)],
        [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}],
    ),
    "not strict": ([function(parameters=SCHEMA, strict=False)], [offered("f", SCHEMA)]),
    "custom": (
        [custom(description="d", format={"type": "grammar", "syntax": "lark", "definition": "start: X"})],
        [offered("p", BARE, description="d")],
    ),
    "namespace": (
        [namespace("crm", function(description="d"), custom()), function()],
        [offered("crm__f", description="d"), offered("crm__p", BARE), offered("f")],
    ),
    "hosted ones are left out": ([{"type": "web_search"}, function(), {"type": "telepathy"}], [offered("f")]),
    "and those in a namespace": ([namespace("a", {"type": "web_search"}, namespace("b", function()))], []),
    "of one name the first": (
        [namespace("a", custom("b")), function("a__b"), function("g"), function("g", parameters=SCHEMA)],
        [offered("a__b", BARE), offered("g")],
    ),
}


@pytest.mark.parametrize(("tools", "offer"), OFFERS.values(), ids=OFFERS)
def test_the_engine_is_offered_functions(tools: list[dict[str, Any]], offer: list[dict[str, Any]]) -> None:
    encoded = ToolSet(tools).encoded

    if not offer:
        assert encoded is None
        return
    assert encoded is not None
    assert json.loads(encoded) == offer
    assert encoded == json.dumps(offer, separators=(",", ":")).encode()


def test_no_tools_are_no_offer() -> None:
    assert ToolSet([]).encoded is None
    assert ToolSet([namespace("a")]).encoded is None
    assert ToolSet([{"type": "namespace", "name": "a"}]).encoded is None


def test_the_client_s_tools_stay_as_they_came() -> None:
    tools = [namespace("a", function()), custom()]

    assert ToolSet(tools).source is tools
    assert tools == [namespace("a", function()), custom()]


LONG = {
    "namespace": ("n" * 60, "f" * 60),
    "at the limit": (None, "f" * 64),
    "one more": (None, "f" * 65),
    "characters that servers refuse": ("my.server", "read file"),
}


@pytest.mark.parametrize(("space", "name"), LONG.values(), ids=LONG)
def test_an_offered_name_is_one_that_servers_take_and_leads_back(space: str | None, name: str) -> None:
    tools = ToolSet([namespace(space, function(name))] if space else [function(name)])
    (tool,) = json.loads(tools.encoded or b"")
    flat = tool["function"]["name"]

    assert re.fullmatch("[A-Za-z0-9_-]{1,64}", flat)
    assert (flat == name) == (len(name) == 64)
    assert tools.resolve(flat) == (name, space, False)
    # In the history it is the same.
    assert flat == flat_name(space, name)


def test_shortened_names_are_told_apart() -> None:
    assert flat_name("n" * 60, "f" * 60) != flat_name("n" * 60, "f" * 61)


A, B, PATCH = function("a"), function("b"), custom("p")
CHOICES: dict[str, tuple[Any, tuple[str, ...], Any, tuple[str, ...]]] = {
    # tool_choice → offered, the engine's choice, what may be called
    "none given": (None, ("a", "b", "p", "s__c"), None, ("a", "b", "p", "s__c")),
    "auto": ("auto", ("a", "b", "p", "s__c"), "auto", ("a", "b", "p", "s__c")),
    "required": ("required", ("a", "b", "p", "s__c"), "required", ("a", "b", "p", "s__c")),
    "none": ("none", ("a", "b", "p", "s__c"), "none", ()),
    "function": (
        {"type": "function", "name": "b"},
        ("a", "b", "p", "s__c"),
        {"type": "function", "function": {"name": "b"}},
        ("b",),
    ),
    "custom": (
        {"type": "custom", "name": "p"},
        ("a", "b", "p", "s__c"),
        {"type": "function", "function": {"name": "p"}},
        ("p",),
    ),
    "in a namespace, unsaid": (
        {"type": "function", "name": "c"},
        ("a", "b", "p", "s__c"),
        {"type": "function", "function": {"name": "s__c"}},
        ("s__c",),
    ),
    "allowed": (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "a"}, {"type": "web_search"}]},
        ("a",),
        "auto",
        ("a",),
    ),
    "allowed and required": (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "c", "namespace": "s"}]},
        ("s__c",),
        "required",
        ("s__c",),
    ),
    "allowed, but none of ours": (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "x"}]},
        (),
        None,
        (),
    ),
    "hosted": ({"type": "web_search_preview"}, ("a", "b", "p", "s__c"), "auto", ("a", "b", "p", "s__c")),
    "apply_patch": ({"type": "apply_patch"}, ("a", "b", "p", "s__c"), "auto", ("a", "b", "p", "s__c")),
}


def is_narrowed(choice: Any) -> bool:
    return choice == "none" or (isinstance(choice, dict) and choice["type"] in ("function", "custom", "allowed_tools"))


def names_in(encoded: bytes | None) -> tuple[str, ...]:
    return tuple(tool["function"]["name"] for tool in json.loads(encoded or b"[]"))


@pytest.mark.parametrize(("choice", "names", "told", "may_call"), CHOICES.values(), ids=CHOICES)
def test_every_choice_has_its_offer(choice: Any, names: Any, told: Any, may_call: Any) -> None:
    offer = ToolSet([A, B, PATCH, namespace("s", function("c"))]).offer(choice, takes_tools=True, obeys_choice=True)

    assert names_in(offer.encoded) == names
    assert offer.choice == told
    assert offer.callable_names == (frozenset(may_call) if is_narrowed(choice) else None)


@pytest.mark.parametrize(("choice", "names", "told", "may_call"), CHOICES.values(), ids=CHOICES)
def test_an_engine_that_does_not_obey_is_offered_only_what_it_may_call(
    choice: Any, names: Any, told: Any, may_call: Any
) -> None:
    offer = ToolSet([A, B, PATCH, namespace("s", function("c"))]).offer(choice, takes_tools=True, obeys_choice=False)

    assert names_in(offer.encoded) == may_call
    assert offer.choice is None
    if offer.encoded is not None:
        assert offer.callable_names == (frozenset(may_call) if is_narrowed(choice) else None)


def test_an_engine_without_tools_is_offered_none() -> None:
    offer = ToolSet([A]).offer("required", takes_tools=False, obeys_choice=True)

    assert (offer.encoded, offer.choice, offer.callable_names) == (None, None, frozenset())


RESOLVED = {
    "function": ("f", ("f", None, False)),
    "custom": ("p", ("p", None, True)),
    "in a namespace": ("crm__f", ("f", "crm", False)),
    "custom in a namespace": ("crm__p", ("p", "crm", True)),
    "unknown": ("crm__x", ("crm__x", None, False)),
    "hosted": ("web_search", ("web_search", None, False)),
}
TOOLS = ToolSet([function(), custom(), namespace("crm", function(), custom()), {"type": "web_search"}])


@pytest.mark.parametrize(("name", "meant"), RESOLVED.values(), ids=RESOLVED)
def test_a_name_stands_for_its_tool(name: str, meant: tuple[str, str | None, bool]) -> None:
    assert TOOLS.resolve(name) == meant


def test_a_call_is_replayed_under_the_name_it_was_offered_with() -> None:
    """Otherwise the engine would see calls of tools that it does not have."""
    for offer in json.loads(TOOLS.encoded or b""):
        name, in_namespace, is_custom = TOOLS.resolve(offer["function"]["name"])
        item = {"type": "function_call", "call_id": "c", "name": name, "namespace": in_namespace, "arguments": "{}"}
        if is_custom:
            item = {**item, "type": "custom_tool_call", "input": ""}

        (message,) = messages_from([item])

        assert message["tool_calls"][0]["function"]["name"] == offer["function"]["name"]
    assert flat_name(None, "f") == flat_name("", "f") == "f"


def fed(*deltas: Delta) -> list[Delta]:
    translator = CallTranslator(TOOLS)
    return [said for delta in deltas for said in translator.feed(delta)]


def test_what_is_no_custom_call_passes_as_it_is() -> None:
    said = [TextDelta("a"), CallStart(0, "f", "c"), CallArguments(0, '{"x":1}'), CallEnd(0), Finished("tool_calls")]

    assert fed(*said) == said


def test_a_namespace_is_restored() -> None:
    assert fed(CallStart(0, "crm__f", "c")) == [CallStart(0, "f", "c", "crm", False)]
    assert fed(CallStart(0, "crm__p", "c")) == [CallStart(0, "p", "c", "crm", True)]
    assert fed(CallStart(0, "other__f", "c")) == [CallStart(0, "other__f", "c", None, False)]


def test_the_input_of_a_custom_call_is_told_as_it_comes() -> None:
    said = fed(
        CallStart(3, "p", "c"),
        CallArguments(3, '{"in', 2),
        CallArguments(3, 'put": "a'),
        CallArguments(3, "\\"),
        CallArguments(3, "nb"),
        CallArguments(3, '"}'),
        CallEnd(3),
    )

    assert said == [
        CallStart(3, "p", "c", None, True),
        CallArguments(3, "", 2),
        CallArguments(3, "a"),
        CallArguments(3, ""),
        CallArguments(3, "\nb"),
        CallArguments(3, ""),
        CallArguments(3, "", 0),
        CallEnd(3),
    ]


def test_calls_side_by_side_do_not_mix() -> None:
    said = fed(
        CallStart(0, "p", "a"),
        CallStart(1, "p", "b"),
        CallStart(2, "f", "c"),
        CallArguments(0, '{"input":"A'),
        CallArguments(1, '{"input":"B'),
        CallArguments(2, '{"input":"C"}'),
        CallArguments(0, 'a"}'),
        CallEnd(0),
        CallArguments(1, 'b"}'),
        CallEnd(1),
        CallEnd(2),
    )

    assert input_of(said, 0) == "Aa"
    assert input_of(said, 1) == "Bb"
    assert input_of(said, 2) == '{"input":"C"}'


def input_of(deltas: list[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, CallArguments) and delta.index == index)


# name: (arguments as the model wrote them, the input that the client gets)
ARGUMENTS: dict[str, tuple[str, str]] = {
    "plain": ('{"input":"abc"}', "abc"),
    "empty": ('{"input":""}', ""),
    "blanks": (' {\n "input" : "abc" } ', "abc"),
    "escapes": (r'{"input":"\"\\\/\b\f\n\r\t\u00e9"}', '"\\/\b\f\n\r\té'),
    "a pair of surrogates": (r'{"input":"\ud83d\ude00!"}', "😀!"),
    "a lone surrogate": (r'{"input":"a\ud83db"}', "a\ufffdb"),
    "a second half alone": (r'{"input":"a\ude00b"}', "a\ufffdb"),
    "line breaks as they are": ('{"input":"a\n\tb"}', "a\n\tb"),
    "more keys behind": ('{"input":"abc","note":1}', "abc"),
    "more keys before": ('{"note":1,"input":"abc"}', "abc"),
    "a long way before": ('{"note":"' + "x" * 100 + '","input":"abc"}', "abc"),
    "another key": ('{"patch":"abc"}', '{"patch":"abc"}'),
    "no string": ('{"input":5}', '{"input":5}'),
    "no object": ('"abc"', '"abc"'),
    "no JSON": ("*** Begin Patch", "*** Begin Patch"),
    "nothing": ("", ""),
    "too deep": ("[" * 100_000, "[" * 100_000),
    "5,000 digits": ('{"x":1' + "0" * 5000 + "}", '{"x":1' + "0" * 5000 + "}"),
    "an escape that JSON does not have": (r'{"input":"a\d+ and more"}', 'a\\d+ and more"}'),
    "cut in the string": ('{"input":"ab', "ab"),
    "cut in an escape": ('{"input":"ab\\u00', "ab\\u00"),
    "cut behind the string": ('{"input":"ab"', "ab"),
    "cut before the string": ('{"inp', '{"inp'),
}


@pytest.mark.parametrize("size", [1, 3, 1_000_000])
@pytest.mark.parametrize(("arguments", "given_input"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_nothing_that_a_model_said_is_lost(arguments: str, given_input: str, size: int) -> None:
    pieces = [CallArguments(0, arguments[start : start + size]) for start in range(0, len(arguments), size)]

    ended = fed(CallStart(0, "p", "c"), *pieces, CallEnd(0))
    cut_off = fed(CallStart(0, "p", "c"), *pieces, Finished("length"))

    assert input_of(ended) == given_input
    assert input_of(cut_off) == given_input
    assert sum(delta.tokens for delta in ended if isinstance(delta, CallArguments)) == len(pieces)
    assert isinstance(ended[-1], CallEnd)
    assert cut_off[-1] == Finished("length")


@given(st.text(), st.booleans(), st.lists(st.integers(1, 5)))
def test_any_text_comes_through_however_it_is_cut_and_escaped(text: str, ascii_only: bool, sizes: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    pieces = []
    rest = arguments
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    pieces.append(rest)

    said = fed(CallStart(0, "p"), *(CallArguments(0, piece) for piece in pieces), CallEnd(0))

    assert input_of(said) == text


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
AS_ITEMS = ToolSet(
    [
        namespace("crm", function(description="d", parameters=SCHEMA, strict=True)),
        custom(description="e", format=GRAMMAR),
        {"type": "web_search"},
    ]
)
TOLD_FUNCTION = {
    "type": "function",
    "name": "crm__f",
    "description": "d",
    "parameters": SCHEMA,
    "strict": True,
}
TOLD_CUSTOM = {"type": "custom", "name": "p", "description": "e", "format": GRAMMAR}
TOLD_BARE = {"type": "function", "name": "p", "description": "e", "parameters": BARE, "strict": False}


@pytest.mark.parametrize(
    ("choice", "takes_custom", "tools", "told"),
    [
        ("auto", True, [TOLD_FUNCTION, TOLD_CUSTOM], "auto"),
        ("auto", False, [TOLD_FUNCTION, TOLD_BARE], "auto"),
        ({"type": "custom", "name": "p"}, True, [TOLD_FUNCTION, TOLD_CUSTOM], {"type": "custom", "name": "p"}),
        ({"type": "custom", "name": "p"}, False, [TOLD_FUNCTION, TOLD_BARE], {"type": "function", "name": "p"}),
        (
            {"type": "function", "name": "f"},
            True,
            [TOLD_FUNCTION, TOLD_CUSTOM],
            {"type": "function", "name": "crm__f"},
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "p"}]},
            True,
            [TOLD_CUSTOM],
            "required",
        ),
        ("none", True, [TOLD_FUNCTION, TOLD_CUSTOM], "none"),
    ],
)
def test_an_offer_in_the_form_of_the_responses_api(choice: Any, takes_custom: bool, tools: Any, told: Any) -> None:
    offer = AS_ITEMS.offer(choice, takes_tools=True, obeys_choice=True, as_items=True, takes_custom=takes_custom)

    assert json.loads(offer.encoded or b"null") == tools
    assert offer.choice == told


def test_an_offer_as_items_is_encoded_once() -> None:
    offers = [AS_ITEMS.offer("auto", takes_tools=True, obeys_choice=True, as_items=True) for _ in range(2)]

    assert offers[0].encoded is offers[1].encoded
