"""The settings reference is what the sources say."""

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from responses_ws.conf import Settings
from responses_ws.connection.limits import Limits

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_not_stale(generate: ModuleType) -> None:
    written = (DOCS / "reference" / "settings.md").read_text()

    assert written == generate.page(), "run: python docs/generate.py"


def test_no_field_is_without_a_word(generate: ModuleType) -> None:
    settings = list(generate.fields_of(generate.CONF.read_text(), "Settings"))
    limits = list(generate.fields_of(generate.LIMITS.read_text(), "Limits"))

    assert [field.name for field in settings] == [field.name for field in dataclasses.fields(Settings)]
    assert [field.name for field in limits] == [field.name for field in msgspec.structs.fields(Limits)]
    assert [field.name for field in settings + limits if not field.text] == []
