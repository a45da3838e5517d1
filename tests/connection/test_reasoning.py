from typing import Any

import pytest

from responses_ws.connection.reasoning import concise, form_of
from responses_ws.protocol.request import Request


@pytest.mark.parametrize(
    ("reasoning", "shown", "hidden"),
    [
        pytest.param(None, "reasoning_text", "untold", id="nothing said"),
        pytest.param({"effort": "low", "summary": None}, "reasoning_text", "untold", id="null"),
        pytest.param({"summary": "auto"}, "summary_text", "untold", id="auto"),
        pytest.param({"summary": "detailed"}, "summary_text", "untold", id="detailed"),
        pytest.param({"summary": "concise"}, "untold", "untold", id="concise"),
        pytest.param({"generate_summary": "auto"}, "summary_text", "untold", id="by its old name"),
    ],
)
def test_the_form_is_what_was_asked_for_and_may_be_shown(
    reasoning: dict[str, Any] | None, shown: str, hidden: str
) -> None:
    request = Request(model="m", reasoning=reasoning)

    assert form_of(request, shows_raw=True) == shown
    assert form_of(request, shows_raw=False) == hidden


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param(" \n ", "", id="white space"),
        pytest.param(" Short. ", "Short.", id="short"),
        pytest.param("a" * 300, "a" * 300, id="just fits"),
        pytest.param("One. Two! " + "x" * 300, "One. Two!", id="whole sentences"),
        pytest.param("3.14 is pi. " + "x" * 300, "3.14 is pi.", id="a point within a number"),
        pytest.param("A heading\n" + "x" * 300, "A heading", id="a line is a sentence"),
        pytest.param("word " * 100, ("word " * 59).strip() + "…", id="one long sentence is cut at a word"),
        pytest.param("x" * 400, "x" * 299 + "…", id="one long word is cut"),
    ],
)
def test_a_concise_summary_is_the_beginning(text: str, summary: str) -> None:
    assert concise(text) == summary
    assert len(summary) <= 300
