"""Answers of every family, and what they say."""

from typing import Any, NamedTuple

from .vocabulary import Seen

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "save": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "is_new": {"type": "boolean"},
            "tags": {"type": "array"},
            "meta": {"$ref": "#/$defs/Meta"},
            "title": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "mode": {"enum": ["fast", 2]},
            "any": {},
        },
        "$defs": {"Meta": {"type": "object"}},
    },
}


def text(said: str) -> Seen:
    return ("text", said)


def reasoning(said: str) -> Seen:
    return ("reasoning", said)


def call(name: str, arguments: str, *, is_whole: bool = True) -> Seen:
    return ("call", name, arguments, is_whole)


class Answer(NamedTuple):
    family: str
    said: str
    seen: list[Seen]
    malformed: int = 0
    tail: str = ""
    """The end of the prompt."""


PARIS = '{"city": "Paris"}'
NESTED = '{"city": "}\\"]{[ \\\\", "days": [1, {"a": "é世😀\\u00e9"}]}'
HERMES_CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
CODER_CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"

ANSWERS: dict[str, Answer] = {
    "plain": Answer("plain", "Hello, <think> wörld 世界 😀!\n\n", [text("Hello, <think> wörld 世界 😀!\n\n")]),
    "nothing": Answer("think-hermes", "", []),
    "thought and said": Answer(
        "think", "<think>\nI know.\n\nYes.\n</think>\n\nParis.", [reasoning("I know.\n\nYes."), text("Paris.")]
    ),
    "the template has opened the reasoning": Answer(
        "think", "I know.\n</think>\n\nParis.\n", [reasoning("I know."), text("Paris.\n")], tail="assistant\n<think>\n"
    ),
    "and the model opens it once more": Answer(
        "think", "<think>\nI know.</think>Paris.", [reasoning("I know."), text("Paris.")], tail="assistant\n<think>\n"
    ),
    "the template has closed it": Answer(
        "think", "\nParis.", [text("Paris.")], tail="assistant\n<think>\n\n</think>\n\n"
    ),
    "nothing thought": Answer("think", "<think>\n\n</think>\n\nParis.", [text("Paris.")]),
    "thought without end": Answer("think", "<think>I know", [reasoning("I know")]),
    "indented text behind reasoning": Answer(
        "think", "<think>x</think>\n\n    code\n", [reasoning("x"), text("    code\n")]
    ),
    "line feeds are text where no marker is": Answer("think", "\n\na\n\n\nb\n", [text("\n\na\n\n\nb\n")]),
    "a closer alone is text": Answer("think", "a</think>b", [text("a</think>b")]),
    "reasoning again": Answer(
        "think", "<think>a</think>b<think>c</think>d", [reasoning("a"), text("b"), reasoning("c"), text("d")]
    ),
    "nearly a marker": Answer("think-hermes", "a <thin <tool_cal <b </think", [text("a <thin <tool_cal <b </think")]),
    "a call": Answer("hermes", HERMES_CALL, [call("get_weather", PARIS)]),
    "text before and behind": Answer(
        "hermes", f"Look:\n{HERMES_CALL}\nDone.", [text("Look:"), call("get_weather", PARIS), text("Done.")]
    ),
    "several calls": Answer(
        "hermes", f"{HERMES_CALL}\n{HERMES_CALL}\n", [call("get_weather", PARIS), call("get_weather", PARIS)]
    ),
    "text between calls": Answer(
        "hermes",
        f"{HERMES_CALL} and \n{HERMES_CALL}",
        [call("get_weather", PARIS), text(" and "), call("get_weather", PARIS)],
    ),
    "compact": Answer(
        "hermes",
        '<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>',
        [call("get_weather", '{"city":"Paris"}')],
    ),
    "spaced": Answer(
        "hermes",
        '<tool_call> \n {\n "name" : "get_weather" ,\n "arguments" : { "city" : "Paris" }\n }\n </tool_call>',
        [call("get_weather", '{ "city" : "Paris" }')],
    ),
    "name behind the arguments": Answer(
        "hermes",
        f'<tool_call>{{"arguments": {NESTED}, "name": "get_weather"}}</tool_call>',
        [call("get_weather", NESTED)],
    ),
    "braces, quotes and escapes in strings": Answer(
        "hermes",
        f'<tool_call>{{"name": "get_weather", "arguments": {NESTED}}}</tool_call>',
        [call("get_weather", NESTED)],
    ),
    "other keys": Answer(
        "hermes",
        f'<tool_call>{{"id": 3.5, "name": "get_weather", "x": [{{}}], "arguments": {PARIS}, "y": null}}</tool_call>',
        [call("get_weather", PARIS)],
    ),
    "an escaped name": Answer(
        "hermes",
        '<tool_call>{"name": "get\\u005fweather", "arguments": {}}</tool_call>',
        [call("get_weather", "{}")],
    ),
    "a tool that nobody offered": Answer(
        "hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', [call("rm", "{}")]
    ),
    "parameters instead of arguments": Answer(
        "hermes",
        f'<tool_call>{{"name": "get_weather", "parameters": {PARIS}}}</tool_call>',
        [call("get_weather", PARIS)],
    ),
    "arguments in a string": Answer(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        [call("get_weather", PARIS)],
    ),
    "no arguments": Answer("hermes", '<tool_call>{"name": "save"}</tool_call>', [call("save", "")]),
    "null arguments": Answer(
        "hermes", '<tool_call>{"name": "save", "arguments": null}</tool_call>', [call("save", "")]
    ),
    "the last brace forgotten": Answer(
        "hermes",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}\n</tool_call>a',
        [
            call("get_weather", PARIS),
            text("a"),
        ],
    ),
    "the closer forgotten": Answer(
        "hermes",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n{HERMES_CALL}',
        [call("get_weather", PARIS), call("get_weather", PARIS)],
    ),
    "two calls between one pair of tags": Answer(
        "hermes",
        '<tool_call>\n{"name": "save", "arguments": {}}\n{"name": "save", "arguments": {}}\n</tool_call>',
        [call("save", "{}"), call("save", "{}")],
    ),
    "markers within a string are its content": Answer(
        "hermes",
        '<tool_call>{"name": "save", "arguments": {"text": "<tool_call></tool_call>"}}</tool_call>',
        [call("save", '{"text": "<tool_call></tool_call>"}')],
    ),
    "no JSON": Answer(
        "hermes", "a\n<tool_call>\nget_weather\n</tool_call>b", [text("a\n<tool_call>\nget_weather\n</tool_call>b")], 1
    ),
    "no name": Answer(
        "hermes",
        f'<tool_call>{{"arguments": {PARIS}}}</tool_call>',
        [text(f'<tool_call>{{"arguments": {PARIS}}}</tool_call>')],
        1,
    ),
    "a name that is no string": Answer(
        "hermes", '<tool_call>{"name": 5}</tool_call>', [text('<tool_call>{"name": 5}</tool_call>')], 1
    ),
    "an empty call": Answer("hermes", "<tool_call>\n</tool_call>", [text("<tool_call>\n</tool_call>")], 1),
    "an opener alone": Answer("hermes", "a <tool_call>\n", [text("a <tool_call>\n")], 1),
    "two openers": Answer(
        "hermes", f"<tool_call>\n{HERMES_CALL}", [text("<tool_call>\n"), call("get_weather", PARIS)], 1
    ),
    "cut before its name": Answer("hermes", '<tool_call>\n{"na', [text('<tool_call>\n{"na')], 1),
    "stopped within its arguments": Answer(
        "hermes", '<tool_call>\n{"name": "save", "arguments": {"text": ', [call("save", '{"text": ')], 1
    ),
    "stopped within arguments in a string": Answer(
        "hermes",
        '<tool_call>\n{"name": "save", "arguments": "{\\"text\\"',
        [call("save", '"{\\"text\\"')],
        1,
    ),
    "closed within its arguments": Answer(
        "hermes",
        '<tool_call>\n{"name": "save", "arguments": {"text": [</tool_call>a',
        [call("save", '{"text": ['), text("a")],
        1,
    ),
    "a call in reasoning ends it": Answer(
        "think-hermes",
        f"<think>\nI look.\n{HERMES_CALL}\nDone.",
        [reasoning("I look."), call("get_weather", PARIS), text("Done.")],
    ),
    "a marker of calls in reasoning that begins none": Answer(
        "think-hermes",
        "<think>I write\n<tool_call> now.\n</think>\n\nDone.",
        [reasoning("I write\n<tool_call> now."), text("Done.")],
        1,
    ),
    "a call behind reasoning": Answer(
        "think-hermes",
        f"I look.\n</think>\n\n{HERMES_CALL}",
        [reasoning("I look."), call("get_weather", PARIS)],
        tail="<think>\n",
    ),
    "reasoning behind a call": Answer(
        "think-hermes",
        f"{HERMES_CALL}\n<think>\nI see.\n</think>\nDone.",
        [call("get_weather", PARIS), reasoning("I see."), text("Done.")],
    ),
    "within a call that was begun for the model": Answer(
        "hermes",
        f"{PARIS}}}\n</tool_call>",
        [call("get_weather", PARIS)],
        tail='assistant\n<tool_call>\n{"name": "get_weather", "arguments": ',
    ),
    "XML": Answer("qwen-coder", f"I look.\n\n{CODER_CALL}", [text("I look."), call("get_weather", PARIS)]),
    "XML of every type": Answer(
        "think-qwen-coder",
        '<think>a</think>\n<tool_call>\n<function=save>\n<parameter=text>\n\n# a "b" \\ </b>\n <x>\n\n</parameter>\n'
        "<parameter=count>\n3\n</parameter>\n<parameter=ratio>1e3</parameter>\n<parameter=is_new>\nTrue\n</parameter>\n"
        '<parameter=tags>\n["a",\n "b"]\n</parameter>\n<parameter=meta>\n{"k":1}\n</parameter>\n'
        "<parameter=title>\nnull\n</parameter>\n<parameter=mode>\nfast\n</parameter>\n<parameter=any>\n5\n</parameter>\n"
        "</function>\n</tool_call>",
        [
            reasoning("a"),
            call(
                "save",
                '{"text": "\\n# a \\"b\\" \\\\ </b>\\n <x>\\n", "count": 3, "ratio": 1e3, "is_new": true, '
                '"tags": ["a",\n "b"], "meta": {"k":1}, "title": null, "mode": "fast", "any": "5"}',
            ),
        ],
    ),
    "XML that does not fit its types": Answer(
        "qwen-coder",
        "<tool_call>\n<function=save>\n<parameter=count>\nthree\n</parameter>\n<parameter=tags>\n[1\n</parameter>\n"
        "<parameter=is_new>\n1\n</parameter>\n</function>\n</tool_call>",
        [call("save", '{"count": "three", "tags": "[1", "is_new": "1"}')],
    ),
    "XML without parameters": Answer(
        "qwen-coder", "<tool_call>\n<function=save>\n</function>\n</tool_call>", [call("save", "{}")]
    ),
    "XML of a tool that nobody offered": Answer(
        "qwen-coder",
        "<tool_call><function=rm><parameter=path>/</parameter></function></tool_call>",
        [call("rm", '{"path": "/"}')],
    ),
    "XML without its opener": Answer(
        "qwen-coder",
        CODER_CALL.removeprefix("<tool_call>\n") + f"\n{CODER_CALL}\n",
        [call("get_weather", PARIS), call("get_weather", PARIS)],
    ),
    "XML in text that names no tool": Answer(
        "qwen-coder", "Write <function=NAME> there.", [text("Write <function=NAME> there.")]
    ),
    "XML with closing tags left out": Answer(
        "qwen-coder",
        "<tool_call>\n<function=save>\n<parameter=text>\na\n<parameter=count>\n3\n</function>\n</tool_call>",
        [call("save", '{"text": "a", "count": 3}')],
    ),
    "XML with words between": Answer(
        "qwen-coder",
        "<tool_call>\n<function=save>\nso <parameter=count>\n3\n</parameter>\n</function>\n</tool_call>",
        [call("save", '{"count": 3}')],
        1,
    ),
    "XML that stops within a value": Answer(
        "qwen-coder", "<tool_call>\n<function=save>\n<parameter=text>\na", [call("save", '{"text": "a"}')], 1
    ),
    "XML that is none": Answer("qwen-coder", "<tool_call>\n<fun>", [text("<tool_call>\n<fun>")], 1),
    "bare": Answer("llama3", f'{{"name": "get_weather", "parameters": {PARIS}}}', [call("get_weather", PARIS)]),
    "bare, and more": Answer(
        "llama3",
        f'\n{{"type": "function", "name": "save", "parameters": {{}}}}; '
        f'{{"name": "get_weather", "parameters": {PARIS}}}',
        [call("save", "{}"), call("get_weather", PARIS)],
    ),
    "bare, and text": Answer("llama3", '{"name": "save"} Done.', [call("save", ""), text(" Done.")]),
    "bare and unknown is text": Answer(
        "llama3", '{"name": "rm", "parameters": {}} a', [text('{"name": "rm", "parameters": {}} a')]
    ),
    "bare behind text is text": Answer("llama3", 'So: {"name": "save"}', [text('So: {"name": "save"}')]),
    "bare behind the template's opening": Answer(
        "llama3", '{"name": "save"}', [call("save", "")], tail="assistant\n\n"
    ),
    "an answer in JSON": Answer("llama3", '\n{"city": "Paris"}', [text('\n{"city": "Paris"}')]),
    "an answer in cut JSON": Answer("llama3", '{"name": ', [text('{"name": ')]),
    "behind a tag": Answer("llama3", '<|python_tag|>{"name": "rm", "parameters": {}}', [call("rm", "{}")]),
    "code behind a tag": Answer("llama3", "<|python_tag|>print(1)", [text("<|python_tag|>print(1)")], 1),
    "a list of calls": Answer(
        "mistral",
        f' I look.[TOOL_CALLS] [{{"name": "save", "arguments": {{}}}}, {{"name":"get_weather","arguments":{NESTED}}}]',
        [text(" I look."), call("save", "{}"), call("get_weather", NESTED)],
    ),
    "text behind a list": Answer(
        "mistral",
        '[TOOL_CALLS][{"name": "save", "arguments": {}}] Done, [1].',
        [call("save", "{}"), text(" Done, [1].")],
    ),
    "text behind a named call": Answer(
        "mistral", "[TOOL_CALLS]save[ARGS]{}\nDone, get_weather.", [call("save", "{}"), text("Done, get_weather.")]
    ),
    "a list that stops": Answer("mistral-list", '[TOOL_CALLS][{"name": ', [text('[TOOL_CALLS][{"name": ')], 1),
    "named calls": Answer(
        "mistral",
        f"I look.[TOOL_CALLS]get_weather[ARGS]{NESTED}[TOOL_CALLS]save[CALL_ID]abc[ARGS]{{}}",
        [text("I look."), call("get_weather", NESTED), call("save", "{}")],
    ),
    "a named call without a marker of arguments": Answer(
        "think-mistral",
        f"[THINK]a[/THINK][TOOL_CALLS]get_weather{PARIS}",
        [reasoning("a"), call("get_weather", PARIS)],
    ),
    "a named call that stops": Answer("mistral", "[TOOL_CALLS]save[ARGS]{", [call("save", "{")], 1),
    "a name alone": Answer("mistral", "[TOOL_CALLS]save", [text("[TOOL_CALLS]save")], 1),
    "no name of a call": Answer("mistral", "[TOOL_CALLS]a b c{}", [text("[TOOL_CALLS]a b c{}")], 1),
}
