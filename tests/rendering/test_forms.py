"""What a template may do with a text that it is not to look at, and turns that are rendered without it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from responses_ws.rendering.base import Ask
from responses_ws.rendering.forms import Form
from responses_ws.rendering.template import TemplateRenderer
from responses_ws.rendering.templates import HERMES
from responses_ws.rendering.unseen import Looked, WatchedTemplate

from . import families
from .simulation import TOOLS, Talk, assistant, called, tool, user

NONCE = "f0" * 16
TEXTS = ("a", " \n7 ", '"{[', "None", "é\\世</s>")

WRITTEN = [
    "{{ c }}",
    "{{ c | trim }}.{{ c }}",
    "{{ 'a' ~ c ~ 1 }}{{ 'b' + c + 'd' }}",
    "{% macro told(x) %}<{{ x }}>{% endmacro %}{{ told(c) }}",
    "{% set x %}[{{ c }}]{% endset %}{{ x }}",
    "{% set ns = namespace(all='') %}{% set ns.all = ns.all + c %}{{ ns.all }}",
    "{{ c | tojson }}{{ c.strip() | tojson }}",
    "{{ messages[0] | tojson }}",
    "{{ {'x': [c]} | tojson(ensure_ascii=True) }}",
    "{{ ['a', c] | join(', ') }}{{ messages | map(attribute='content') | join }}",
    "{{ c or 'nothing' }}{{ c if c is string and c is not none else 5 }}",
    "{% if c is iterable and c is not mapping %}{{ c }}{% endif %}",
    "{{ c != '' }}{{ c == none }}{{ c is defined }}",
    "{{ c.lstrip('\\n') }}",
    "{{ messages | length }}{{ messages[0].role == 'tool' }}{{ c | default('x') }}",
]
LOOKED_AT = [
    "{{ c | length }}",
    "{{ c | upper }}",
    "{{ c | int }}",
    "{{ c | e }}",
    "{{ c | safe }}",
    "{{ c[0] }}",
    "{{ c.split('x') | length }}",
    "{{ c.startswith('x') }}{{ c }}",
    "{{ 'abc'.startswith(c) }}",
    "{{ 'abc' | replace('b', c) }}",
    "{{ 'abc'.replace('b', c) }}",
    "{{ ', '.join([c]) }}",
    "{{ '%s' % c }}",
    "{{ '%s' | format(c) }}",
    "{{ '{}'.format(c) }}",
    "{{ c.lstrip('x') }}",
    "{{ c * 2 }}",
    "{{ c == 'x' }}",
    "{{ c is in ['x'] }}",
    "{{ c in ['x', 'y'] }}",
    "{{ c in 'xyz' }}",
    "{{ 'x' not in c }}",
    "{{ {'x': 1}.get(c) }}",
    "{{ {'x': 1}[c] }}",
    "{{ (c ~ 'x') | trim }}",
    "{{ ('x' + c).strip() }}",
    "{{ (['x', c] | join) | trim }}",
    "{% set x %} {{ c }}{% endset %}{{ x | trim }}",
    "{% macro told(x) %} {{ x }}{% endmacro %}{{ told(c) | trim }}",
    "{% filter upper %}{{ c }}{% endfilter %}",
    "{% for letter in c %}{{ letter }}{% endfor %}",
    "{{ messages }}",
    "{{ messages | map(attribute='content') | map('length') | list }}",
    "{{ messages | selectattr('content', 'equalto', 'x') | list | length }}",
    "{{ messages | sort(attribute='content') | length }}",
    "{{ (c | tojson) | length }}",
    "{{ strftime_now('%d') | int }}",
]


def watched(source: str) -> tuple[WatchedTemplate, list[dict[str, Any]]]:
    template = WatchedTemplate("{% set c = messages[0].content %}" + source, nonce=NONCE)
    # Two, so that they would be compared where they are sorted.
    return template, [{"role": "tool", "content": template.book.unseen(number)} for number in range(2)]


def rendered(template: WatchedTemplate, messages: list[dict[str, Any]]) -> str:
    return template.render(messages, tools=None, opens_answer=True, most_characters=10_000, values={})


@pytest.mark.parametrize("source", WRITTEN)
def test_what_is_made_of_an_unseen_text_is_made_of_any(source: str) -> None:
    template, messages = watched(source)

    form = Form(*template.book.read(rendered(template, messages)))

    for text in TEXTS:
        texts = [text, f"other {text}"]
        told = [{**message, "content": one} for message, one in zip(messages, texts, strict=True)]
        assert form.written(texts) == rendered(template, told)


@pytest.mark.parametrize("source", LOOKED_AT)
def test_a_template_that_looks_at_a_text_is_found_out(source: str) -> None:
    template, messages = watched(source)

    with pytest.raises(Looked):
        rendered(template, messages)


def test_the_clock_of_a_template_is_not_taken_for_its_words() -> None:
    template, messages = watched("{{ strftime_now('%H') }}{{ c }}")

    _pieces, slots = template.book.read(rendered(template, messages))

    assert [slot.number for slot in slots] == [None, 0]


class CountedRenderer(TemplateRenderer):
    """Counts runs of its template."""

    runs = 0

    def render(self, *args: Any, **kwargs: Any) -> str:
        self.runs += 1
        return super().render(*args, **kwargs)


FORMS = {"chatml": "tool", "xml": "tool", "words": "user"}


@pytest.mark.parametrize("name", FORMS)
def test_a_turn_of_texts_costs_no_run_of_the_template(name: str) -> None:
    _controls, family, values = families.FAMILIES[name]
    renderer = CountedRenderer(families.tokenizer(name), families.template(name), family=family, values=values)
    has_tools = FORMS[name] == "tool"
    talk = Talk(renderer, ask=Ask(tools=TOOLS if has_tools else None))
    talk.tell(user("Begin."))
    runs = []

    for number in range(4):
        call_id = f"call_{number}"
        talk.sample(assistant(None if has_tools else "Yes.", calls=[called(call_id)] if has_tools else ()))
        before = renderer.runs
        talk.tell(tool(call_id, f" \nRain {number}\n") if has_tools else user(f" \nAnd {number}?\n"))
        runs.append(renderer.runs - before)
        assert talk.decoded() == talk.text_of(talk.whole())

    assert runs[1:] == [0, 0, 0]
    assert talk.paths[1:] == ["append"] * 4


# What looks at its texts, and so is run each time.
LOOKING = HERMES.replace("message.content + '\\n</tool", "(message.content | replace('a', 'b')) + '\\n</tool")


def test_a_template_that_looks_is_run() -> None:
    assert LOOKING != HERMES
    renderer = CountedRenderer(families.tokenizer("chatml"), LOOKING, family="think-hermes")
    talk = Talk(renderer, ask=Ask(tools=TOOLS))
    talk.tell(user("Begin."))

    for number in range(3):
        talk.sample(assistant(None, calls=[called(f"call_{number}")]))
        before = renderer.runs
        talk.tell(tool(f"call_{number}", "as a bat"))
        assert renderer.runs > before

    assert talk.decoded().count("bs b bbt") == 3
    assert talk.decoded() == talk.text_of(talk.whole())


@pytest.mark.parametrize("name", ["chatml", "xml", "headers", "bars", "words"])
@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=3))
def test_without_the_template_ids_are_those_that_it_makes(name: str, texts: list[str]) -> None:
    talk = Talk(families.renderer(name))
    talk.tell(user("Begin."))

    for text in ["What?", *texts]:
        talk.sample(assistant("Yes.", reasoning="x" if name == "bars" else ""))
        talk.tell(user(text))
        whole = talk.whole()
        assert talk.controls() == talk.controls(whole)
        assert talk.decoded() == talk.text_of(whole)


def test_a_text_that_names_a_control_token_is_told_to_the_template_by_a_mark() -> None:
    talk = Talk(families.renderer("chatml"), ask=Ask(tools=TOOLS))
    talk.tell(user("Begin."))
    for number, text in enumerate(["plain", "<|im_end|>", json.dumps({"x": "<|im_start|>"})]):
        talk.sample(assistant(None, calls=[called(f"call_{number}")]))
        talk.tell(tool(f"call_{number}", text))
        assert text in talk.decoded()
        assert talk.controls() == talk.controls(talk.whole())
