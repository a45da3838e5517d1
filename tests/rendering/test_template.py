"""Rendering by a template: what is new is appended, what the template changes is rewound, and no more."""

import pytest

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.rendering.base import Ask
from responses_ws.rendering.template import TemplateRenderer

from . import families
from .simulation import TOOLS, Talk, assistant, called, tool, user

# Families whose history may be continued by anything but a new question.
WITH_TOOLS = ("chatml", "xml", "headers", "brackets")
# Families that have no reasoning, or keep what they say without it; `bars` begins every answer with reasoning.
APPENDING = tuple(name for name in families.NAMES if name != "bars")


@pytest.mark.parametrize("name", families.NAMES)
def test_a_first_prompt_is_what_the_template_writes(name: str) -> None:
    talk = Talk(families.renderer(name), instructions="Be brief.")

    log = talk.tell(user("What is a lane?"))

    assert list(log) == talk.full()
    assert talk.paths == ["full"]


@pytest.mark.parametrize("name", APPENDING)
def test_a_second_question_is_appended(name: str) -> None:
    talk = Talk(families.renderer(name), instructions="Be brief.")
    talk.tell(user("What is a lane?"))
    talk.sample(assistant("A queue."))

    log = talk.tell(user("And a turn?"))

    assert list(log) == talk.full()
    # In brackets the instructions move to the newest question, and here they stood before all else.
    assert talk.paths == ["full", "full" if name == "brackets" else "append"]


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_the_loop_of_an_agent_is_appended(name: str) -> None:
    talk = Talk(families.renderer(name), ask=Ask(tools=TOOLS), instructions="Be brief.")
    talk.tell(user("How is the weather?"))
    for number in range(4):
        talk.sample(assistant(None, calls=[called(f"call_{number}")]))
        log = talk.tell(tool(f"call_{number}", f"Rain, {number} degrees"))

        assert list(log) == talk.full()

    assert talk.paths == ["full", *["append"] * 4]


def test_results_of_parallel_calls_share_a_turn() -> None:
    talk = Talk(families.renderer("chatml"), ask=Ask(tools=TOOLS))
    talk.tell(user("How is the weather?"))
    talk.sample(assistant("I look.", calls=[called("a"), called("b")]))

    log = talk.tell(tool("a", "Rain"), tool("b", "Sun"))

    assert list(log) == talk.full()
    assert talk.paths == ["full", "append"]


def test_a_result_that_joins_an_earlier_one_takes_its_turn_back() -> None:
    talk = Talk(families.renderer("chatml"), ask=Ask(tools=TOOLS))
    talk.tell(user("How is the weather?"))
    sampled = talk.sample(assistant("I look.", calls=[called("a"), called("b")]))
    talk.tell(tool("a", "Rain"))

    log = talk.tell(tool("b", "Sun"))

    assert list(log) == talk.full()
    assert talk.paths == ["full", "append", "rewind"]
    assert list(log)[: len(sampled)] == list(sampled)


def test_reasoning_is_kept_through_a_loop_and_forgotten_at_the_next_question() -> None:
    talk = Talk(families.renderer("chatml"), ask=Ask(tools=TOOLS), instructions="Be brief.")
    first = talk.tell(user("How is the weather?"))
    talk.sample(assistant("I look.", calls=[called("a")], reasoning="Weather, so the tool."))
    log = talk.tell(tool("a", "Rain"))
    assert list(log) == talk.full()
    talk.sample(assistant("It rains.", reasoning="Say it."))

    log = talk.tell(user("And tomorrow?"))

    assert list(log) == talk.full()
    assert talk.paths == ["full", "append", "rewind"]
    # Cut where the first answer began, not before.
    assert log.spans[0].end == first.spans[0].end


def test_reasoning_is_kept_where_the_operator_wants_it_kept() -> None:
    talk = Talk(families.renderer("chatml", thinking="keep"))
    talk.tell(user("How is the weather?"))
    sampled = list(talk.sample(assistant("It rains.", reasoning="Say it.")))

    log = talk.tell(user("And tomorrow?"))

    assert talk.paths == ["full", "append"]
    assert list(log)[: len(sampled)] == sampled


@pytest.mark.parametrize("name", APPENDING)
def test_an_answer_that_was_cut_is_closed(name: str) -> None:
    talk = Talk(families.renderer(name))
    talk.tell(user("What is a lane?"))
    talk.sample(assistant("A queue."), cut=1)

    log = talk.tell(user("And a turn?"))

    assert list(log) == talk.full()
    assert talk.paths == ["full", "append"]


def test_reasoning_that_is_never_shown_again_goes_when_its_turn_ends() -> None:
    talk = Talk(families.renderer("bars"))
    for number in range(3):
        talk.tell(user(f"Question {number}?"))
        talk.sample(assistant("A queue.", reasoning="Think."))

    log = talk.tell(user("And a turn?"))

    assert list(log) == talk.full()
    assert talk.paths == ["full", *["rewind"] * 3]


def test_what_stands_before_the_newest_question_moves_with_it() -> None:
    talk = Talk(families.renderer("brackets"), ask=Ask(tools=TOOLS), instructions="Be brief.")
    for number in range(4):
        talk.tell(user(f"Question {number}?"))
        talk.sample(assistant(f"Answer {number}."))

    log = talk.tell(user("And a turn?"))

    assert list(log) == talk.full()
    assert talk.paths == ["full", "full", *["rewind"] * 3]
    # No more is rendered again than the last question, its answer and the new one.
    assert 6 in [span.messages for span in log.spans]


def test_a_full_rendering_can_be_cut_where_the_next_question_will_cut_it() -> None:
    for name in ("chatml", "brackets"):
        first = Talk(families.renderer(name), ask=Ask(tools=TOOLS), instructions="Be brief.")
        reasoning = "Weather." if name == "chatml" else ""
        first.tell(
            user("Hello"), assistant("Hi"), user("How is the weather?"),
            assistant(None, calls=[called("a")], reasoning=reasoning), tool("a", "Rain"),
        )  # fmt: skip
        first.sample(assistant("It rains."))

        log = first.tell(user("And tomorrow?"))

        assert list(log) == first.full()
        assert first.paths == ["full", "rewind"]


def test_an_empty_block_of_reasoning_that_opens_an_answer_stays() -> None:
    talk = Talk(families.renderer("chatml"), ask=Ask(reasoning_effort="none"))
    talk.tell(user("What is a lane?"))
    talk.sample(assistant("A queue."))

    talk.tell(user("And a turn?"))

    assert talk.paths == ["full", "append"]
    assert talk.decoded().count("<think>\n\n</think>") == 2


def test_effort_that_changes_the_opening_only_changes_nothing_else() -> None:
    talk = Talk(families.renderer("chatml"), ask=Ask(reasoning_effort="none"))
    talk.tell(user("What is a lane?"))
    talk.sample(assistant("A queue."))
    talk.ask = Ask(reasoning_effort="high")

    talk.tell(user("And a turn?"))

    assert talk.paths == ["full", "append"]
    assert talk.decoded().endswith("<|im_start|>assistant\n")


def test_a_conversation_that_a_template_refuses_is_a_request_that_cannot_be_served() -> None:
    talk = Talk(families.renderer("turns"))

    with pytest.raises(InvalidRequest, match="There is no such role"):
        talk.tell(user("Hi"), assistant("I look."), tool("a", "x"))


def test_calls_are_told_one_by_one_where_a_message_may_hold_only_one() -> None:
    talk = Talk(families.renderer("headers"), ask=Ask(tools=TOOLS))
    calls = [called("a", '{"city": "Oslo"}'), called("b", '{"city": "Rome"}')]

    talk.tell(user("Hi"), assistant(None, calls=calls), tool("b", "Sun"), tool("a", "Rain"))

    text = talk.decoded()
    assert [text.index(word) for word in ("Oslo", "Rome", "Sun", "Rain")] == sorted(
        text.index(word) for word in ("Oslo", "Rome", "Sun", "Rain")
    )

    talk.sample(assistant("x"), list(talk.renderer.stop_ids))
    talk.sample(assistant(None, calls=calls), talk.renderer.tokenizer.raw.encode("both", add_special_tokens=False).ids)
    talk.tell(tool("a", "Fog"), tool("b", "Hail"))
    assert talk.paths == ["full", "append"]
    assert talk.decoded().index("Fog") < talk.decoded().index("Hail")


def test_images_are_refused() -> None:
    talk = Talk(families.renderer("chatml"))

    with pytest.raises(InvalidRequest, match="takes no images"):
        talk.tell({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]})


def test_a_template_without_tools_is_told_of() -> None:
    assert families.renderer("chatml").notes == []
    assert families.renderer("turns").notes == ["the chat template tells nothing of tools: none will be called"]


def test_a_template_that_shows_calls_only_without_text_is_shown_both() -> None:
    source = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.content is none %}{% for call in message.tool_calls %}"
        "<tool_call>{{ call.function.name ~ call.function.arguments }}</tool_call>{% endfor %}"
        "{% else %}{{ message.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    talk = Talk(TemplateRenderer(families.tokenizer("chatml"), source), ask=Ask(tools=TOOLS))

    talk.tell(user("Hi"), assistant("I look.", calls=[called("a")]), tool("a", "Rain"))

    call = '<tool_call>get_weather{"city": "Oslo"}</tool_call>'
    assert f"<|im_start|>assistant\nI look.<|im_end|>\n<|im_start|>assistant\n{call}" in talk.decoded()
