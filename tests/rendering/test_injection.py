"""What a client writes is text to the model, whatever it spells (RELIABILITY S-20)."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from responses_ws.rendering.base import Ask
from responses_ws.rendering.tokenizer import Hidden, Tokenizer

from . import families
from .simulation import Talk, assistant, called, tool, user

WITH_TOOLS = ("chatml", "xml", "headers", "brackets")
Told = dict[str, Any]


def conversation(name: str, told: Told) -> Talk:
    """A conversation that says ``told`` in its fields; what is left out says something harmless."""

    def field(key: str, default: str = "harmless") -> str:
        return str(told.get(key, default))

    function = {
        "name": field("tool name"),
        "description": field("tool description"),
        "parameters": {
            "type": "object",
            "properties": {field("parameter"): {"type": "string", "description": field("parameter description")}},
            "required": [field("parameter")],
        },
    }
    has_tools = name in WITH_TOOLS
    ask = Ask(tools=msgspec.json.encode([{"type": "function", "function": function}]) if has_tools else None)
    talk = Talk(families.renderer(name), ask=ask, instructions=field("instructions"))
    arguments = msgspec.json.encode({field("argument name"): field("argument")}).decode()
    arguments = told.get("arguments", arguments)
    talk.tell(
        user(field("question")),
        assistant(field("answer"), reasoning=field("reasoning")),
        user(field("second question")),
    )
    if has_tools:
        calls = [called(field("call id"), arguments, field("call name"))]
        content = None if name == "brackets" else field("text beside a call", "")
        talk.tell(
            assistant(content, calls=calls, reasoning=field("reasoning")), tool(field("call id"), field("output"))
        )
    return talk


FIELDS = (
    "instructions", "question", "answer", "reasoning", "second question", "tool name", "tool description", "parameter",
    "parameter description", "call name", "argument name", "argument", "call id", "output", "text beside a call",
)  # fmt: skip


def forms(control: str) -> Iterator[str]:
    yield control
    yield f"before {control} after"
    yield f"{control}{control}"
    # As NFKC would make it the same.
    yield "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in control)


@pytest.mark.parametrize("name", families.NAMES)
def test_no_field_can_say_a_control_token(name: str) -> None:
    expected = conversation(name, {}).controls()
    renderer = families.renderer(name)

    for control in renderer.tokenizer.controls:
        for field in FIELDS:
            for form in forms(control):
                talk = conversation(name, {field: form})

                assert talk.controls() == expected, (field, form)


@pytest.mark.parametrize("name", families.NAMES)
def test_every_field_says_what_it_was_given(name: str) -> None:
    for control in families.renderer(name).tokenizer.controls:
        plain = conversation(name, {"question": "QUESTION", "output": "OUTPUT"}).decoded()
        said = conversation(name, {"question": f"a {control} b", "output": f"c {control} d"}).decoded()

        assert said == plain.replace("QUESTION", f"a {control} b").replace("OUTPUT", f"c {control} d")


@pytest.mark.parametrize("name", families.NAMES)
def test_two_fields_cannot_say_it_together(name: str) -> None:
    expected = conversation(name, {}).controls()
    neighbours = [
        ("instructions", "question"), ("question", "answer"), ("answer", "second question"), ("reasoning", "answer"),
        ("tool name", "tool description"), ("call name", "argument name"), ("argument name", "argument"),
        ("argument", "output"), ("text beside a call", "call name"), ("output", "call id"),
    ]  # fmt: skip

    for control in families.renderer(name).tokenizer.controls:
        for cut in range(1, len(control)):
            for first, second in neighbours:
                talk = conversation(name, {first: f"x{control[:cut]}", second: f"{control[cut:]}x"})

                assert talk.controls() == expected, (first, second, control[:cut])


def test_arguments_that_escape_it_cannot_say_it() -> None:
    for name in WITH_TOOLS:
        expected = conversation(name, {}).controls()
        for control in families.renderer(name).tokenizer.controls:
            escaped = "".join(f"\\u{ord(one):04x}" for one in control)

            talk = conversation(name, {"arguments": f'{{"harmless": "{escaped}"}}'})

            assert talk.controls() == expected, (name, control)


@pytest.mark.parametrize("name", families.NAMES)
def test_a_turn_cannot_complete_what_one_before_it_began(name: str) -> None:
    renderer = families.renderer(name)
    for control in renderer.tokenizer.controls:
        for cut in range(1, len(control)):
            quiet, loud = Talk(renderer), Talk(renderer)
            for talk, first, second in ((quiet, "x", "x"), (loud, control[:cut], control[cut:])):
                talk.tell(user(first))
                talk.sample(assistant("", reasoning="x"), ids=list(talk.renderer.stop_ids[:1]))
                talk.tell(user(second))

            assert loud.controls() == quiet.controls(), (control, cut)


HARMLESS = [
    "plain",
    " spaces  ",
    "\n\nlines\r\n",
    "12 345",
    "naïve 日本語 🙂",
    "a < b",
    'quotes " and \\ too',
    "<",
    "x|",
    "<tool_response>",
]


@pytest.mark.parametrize("name", families.NAMES)
def test_harmless_text_has_the_same_ids_hidden_as_it_has_openly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ids(text: str, *, is_hidden: bool) -> list[int]:
        with monkeypatch.context() as patch:
            patch.setattr(Hidden, "_is_dangerous", lambda self, given: is_hidden and given == text)
            talk = conversation(name, {field: text for field in FIELDS if field not in ("call id", "reasoning")})
        return list(talk.log or ())

    for text in HARMLESS:
        assert ids(text, is_hidden=True) == ids(text, is_hidden=False), text


@pytest.mark.parametrize("special", [True, False])
def test_a_vocabulary_that_has_its_control_tokens_as_words_too_is_safe(special: bool) -> None:
    # As Llama 3 looks up whole words before it merges anything.
    document = msgspec.json.decode(msgspec.json.encode(families.document(families.CHATML)))
    document["model"]["ignore_merges"] = True
    document["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    for token in document["added_tokens"]:
        token["special"] = special
    tokenizer = Tokenizer(document)
    hidden = Hidden(tokenizer)
    text = hidden.cover("<|im_end|>")

    ids = tokenizer.encode(f"<|im_start|>{text}<|im_end|>", hidden)

    assert [tokenizer.name_of(one) for one in ids if tokenizer.name_of(one)] == ["<|im_start|>", "<|im_end|>"]
    assert tokenizer.raw.decode(list(ids), skip_special_tokens=False) == "<|im_start|><|im_end|><|im_end|>"
