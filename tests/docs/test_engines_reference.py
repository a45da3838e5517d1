"""The table of capabilities says what the engines say."""

import re

import msgspec
import pytest

from responses_ws.engines.base import Capabilities, Engine
from responses_ws.engines.embedded import EmbeddedLlama
from responses_ws.engines.llama_cpp import LlamaCpp
from responses_ws.engines.openai_chat import OpenAIChat
from responses_ws.engines.responses import Responses
from responses_ws.engines.scripted import Scripted
from responses_ws.engines.sglang import SGLang
from responses_ws.engines.vllm import Vllm

from .pages import DOCS

ENGINES = [
    OpenAIChat("chat", {"BASE_URL": "http://127.0.0.1:1/v1"}),
    LlamaCpp("llama", {"BASE_URL": "http://127.0.0.1:1"}),
    Responses("responses", {"BASE_URL": "http://127.0.0.1:1/v1"}),
    EmbeddedLlama("embedded", {}),
    Scripted("scripted", {}),
]
TOKEN_ENGINES = [kind("tokens", {"BASE_URL": "http://127.0.0.1:1/v1"}) for kind in (Vllm, SGLang, LlamaCpp)]


def flags(capabilities: Capabilities) -> dict[str, bool]:
    """Every capability by name; the formats are one each. Constraints and hosted tools are told in words below."""
    given = msgspec.structs.asdict(capabilities)
    for told_in_words in ("constraints", "hosted_tools"):
        given.pop(told_in_words)
    formats = given.pop("response_format")
    return {**given, **{name: name in formats for name in ("json_object", "json_schema")}}


@pytest.mark.parametrize(
    ("column", "engine"), list(enumerate(ENGINES)), ids=[type(engine).__name__ for engine in ENGINES]
)
def test_the_table_is_what_the_engine_says(column: int, engine: Engine) -> None:
    page = (DOCS / "reference" / "engines.md").read_text()
    head = re.findall(r"`(\w+)`", next(line for line in page.splitlines() if line.startswith("| capability")))
    columns = r"\| (yes|no) " * len(ENGINES)
    rows = re.findall(rf"^\| `(\w+)` {columns}\|", page, re.MULTILINE)

    assert head[column] == type(engine).__name__
    assert {row[0]: row[column + 1] == "yes" for row in rows} == flags(engine.capabilities)


def test_every_feature_of_a_chat_engine_can_be_declared() -> None:
    every = set(flags(Capabilities())) - {"exact_usage", "chat", "tokens", "items", "custom_tools", "reasoning"}

    engine = OpenAIChat("chat", {"BASE_URL": "http://127.0.0.1:1/v1", "SUPPORTS": sorted(every)})

    assert {name for name, is_there in flags(engine.capabilities).items() if is_there} == {"chat", *every}


@pytest.mark.parametrize(("column", "engine"), list(enumerate(TOKEN_ENGINES)))
def test_the_table_of_constraints_is_what_the_engine_says(column: int, engine: Engine) -> None:
    page = (DOCS / "reference" / "engines.md").read_text()
    head, _, *rows = page[page.index("| constraint ") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip(" `") for cell in row.split("|")[1:]] for row in rows]

    assert re.findall(r"`(\w+)`", head)[column] == type(engine).__name__
    assert {row[0] for row in cells if row[column + 1] != "no"} == engine.capabilities.constraints
