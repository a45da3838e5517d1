"""Chat templates: what they may do, and what ends when they do more."""

from datetime import UTC, datetime
from typing import Any

import pytest

from responses_ws.rendering.chat_template import ChatTemplate, TemplateFault

MOMENT = datetime(2026, 11, 29, 22, 0, tzinfo=UTC)


def rendered(source: str, *, most_characters: int = 10_000, **values: Any) -> str:
    template = ChatTemplate(source, nonce="n" * 32, now=lambda: MOMENT)
    messages = [{"role": "user", "content": "Grüße"}]
    return template.render(messages, tools=None, opens_answer=True, most_characters=most_characters, values=values)


@pytest.mark.parametrize(
    "source, text",
    [
        pytest.param("{{ messages | tojson }}", '[{"role": "user", "content": "Grüße"}]', id="JSON as it is"),
        pytest.param("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}', id="indented JSON"),
        pytest.param("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"', id="JSON in ASCII"),
        pytest.param("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny", id="blocks trimmed"),
        pytest.param("{% generation %}x{% endgeneration %}", "x", id="generation"),
        pytest.param(
            "{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012", id="break"
        ),
        pytest.param("{{ strftime_now('%d %b %Y') }}", "29 Nov 2026", id="clock"),
        pytest.param("{{ bos_token }}{{ add_generation_prompt }}{{ tools is none }}", "<s>TrueTrue", id="variables"),
    ],
)
def test_a_template_has_what_transformers_gives_it(source: str, text: str) -> None:
    assert rendered(source, bos_token="<s>") == text


def test_what_a_template_refuses_it_may_say_why() -> None:
    with pytest.raises(TemplateFault) as refused:
        rendered("{{ raise_exception('Roles must alternate') }}")

    assert refused.value.said == "Roles must alternate"


@pytest.mark.parametrize("source", ["{% for %}", "{{ x | nosuchfilter }}", "{% nosuchtag %}"])
def test_what_is_no_template_is_told_at_once(source: str) -> None:
    with pytest.raises(ValueError, match="not a chat template"):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("{{ ''.__class__.__mro__[1].__subclasses__() }}", id="classes"),
        pytest.param("{{ messages.__class__ }}x{{ messages.append.__self__.__class__.__base__.x.y }}", id="methods"),
        pytest.param("{{ self.__init__.__globals__ }}{{ self.__init__.__globals__.x }}", id="globals of self"),
        pytest.param("{{ cycler.__init__.__globals__.os.popen('id').read() }}", id="globals of a helper"),
        pytest.param("{{ raise_exception.__globals__['__builtins__'] }}", id="builtins"),
        pytest.param("{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}", id="format"),
        pytest.param("{{ ('{0.__class__}' | format) ~ ('' | attr('__class__')).x }}", id="attr"),
        pytest.param("{{ messages.append(1) }}", id="changes messages"),
        pytest.param("{{ messages[0].update({'role': 'system'}) }}", id="changes a message"),
        pytest.param("{% include '/etc/passwd' %}", id="include"),
        pytest.param("{% import 'os' as os %}", id="import"),
    ],
)
def test_a_template_cannot_reach_beyond_what_it_is_given(source: str) -> None:
    with pytest.raises(TemplateFault):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", id="nested"),
        pytest.param("{% for i in range(10 ** 9) %}{% endfor %}", id="power"),
        pytest.param("{{ 'x' * 1000000000 }}", id="repeated text"),
        pytest.param("{{ 1000000000 * 'x' }}", id="repeated text the other way round"),
        pytest.param("{{ ([1] * 1000000000) | length }}", id="repeated list"),
        pytest.param("{{ '%1000000000d' % 1 }}", id="padded by %"),
        pytest.param("{{ '%1000000000d' | format(1) }}", id="padded by a filter"),
        pytest.param("{{ '{:1000000000}'.format(1) | length }}", id="padded by a method"),
        pytest.param("{{ '{:{}}'.format(1, 1000000000) | length }}", id="padded by a value"),
        pytest.param("{{ 'x'.ljust(1000000000) }}", id="justified"),
        pytest.param("{{ 'x' | center(1000000000) }}", id="centred"),
        pytest.param("{{ lipsum(n=1000000) }}", id="lorem ipsum"),
        pytest.param("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", id="much output"),
        pytest.param("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", id="recursion"),
    ],
)
def test_what_would_not_end_does(source: str) -> None:
    with pytest.raises(TemplateFault):
        rendered(source)
