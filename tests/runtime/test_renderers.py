"""Renderers are made from the operator's files, once, and anew when these change."""

import json
from pathlib import Path
from typing import Any

import pytest

from responses_ws.rendering.templates import HERMES
from responses_ws.runtime import renderers
from tests.rendering import families

CONFIG = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": HERMES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(json.dumps(families.document(families.CHATML)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    return tmp_path


def test_a_folder_holds_all_that_is_needed(folder: Path) -> None:
    """The end that the template writes comes first."""
    renderer = renderers.load({"TOKENIZER": str(folder), "PARSER": "hermes"})

    assert renderer.stop_ids == (2, 0)
    assert renderers.load({"TOKENIZER": str(folder), "PARSER": "hermes"}) is renderer


def test_the_file_itself_may_be_named(folder: Path) -> None:
    renderer = renderers.load({"TOKENIZER": folder / "tokenizer.json", "TEMPLATE": "hermes"})

    assert renderer.stop_ids == (2, 0)


def test_a_file_that_has_changed_is_read_again(folder: Path) -> None:
    options = {"TOKENIZER": str(folder)}
    before = renderers.load(options)
    (folder / "chat_template.jinja").write_text(families.template("chatml"))

    after = renderers.load(options)

    assert after is not before


@pytest.mark.parametrize(
    "options, message",
    [
        pytest.param({}, "TOKENIZER is missing", id="no tokenizer"),
        pytest.param({"TOKENIZER": "nowhere.json"}, "there is no file nowhere.json", id="no file"),
        pytest.param({"TOKENIZER": 3}, "'TOKENIZER'] is not a path", id="no path"),
        pytest.param({"TEMPLATE": "herms"}, "nor one of ours \\(hermes, ", id="no template"),
        pytest.param({"PARSER": "hermse"}, "there is no family 'hermse'", id="no family"),
        pytest.param({"THINKING": "never"}, "THINKING: Invalid enum value", id="no policy"),
        pytest.param({"STOP_TOKENS": ["<|end|>"]}, "no control token <\\|end\\|>", id="no stop token"),
        pytest.param({"TEMPLAT": "hermes"}, "TEMPLAT is not an option", id="no option"),
        pytest.param({"CLASS": "nowhere.Renderer"}, "cannot import 'nowhere.Renderer'", id="no class"),
        pytest.param({"CLASS": "pathlib.Path"}, "is not a Renderer", id="another class"),
    ],
)
def test_a_wrong_option_is_named(folder: Path, options: dict[str, Any], message: str) -> None:
    given = {"TOKENIZER": str(folder), **options} if options else {}

    with pytest.raises(ValueError, match=message):
        renderers.load(given)


def test_a_template_that_is_none_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for %}")

    with pytest.raises(ValueError, match="TEMPLATE: not a chat template"):
        renderers.load({"TOKENIZER": str(folder)})
