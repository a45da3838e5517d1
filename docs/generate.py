"""Writes docs/reference/settings.md from the docstrings of the settings: ``python docs/generate.py``.

Reads the sources as text, so it needs neither Django nor the app.
"""

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "settings.md"
CONF = ROOT / "responses_ws" / "conf.py"
LIMITS = ROOT / "responses_ws" / "connection" / "limits.py"

HEAD = """\
<!-- Written by docs/generate.py; change the docstrings and run it again. -->
# Settings

All settings are keys of one dict, `RESPONSES_WS`, in your Django settings. Each is read when it is used. An unknown
key, or a value of a wrong type, is a system-check error ([E001](checks.md)): a typo never becomes a silent default.

"""
LIMITS_HEAD = """\
## The limits

Keys of `RESPONSES_WS["LIMITS"]`. Every wait and every size has one. Times are seconds, sizes are bytes.

"""


class Field(NamedTuple):
    """An annotated class attribute and the string below it."""

    name: str
    type: str
    default: str
    text: str


def fields_of(source: str, class_name: str) -> Iterator[Field]:
    """The public fields of a class, in the order of the source."""
    (definition,) = [
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == class_name
    ]
    for node, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = " ".join(str(following.value.value).split())
        yield Field(node.target.id, ast.unparse(node.annotation), default_of(node.value), text)


def default_of(value: ast.expr | None) -> str:
    """The default as one would write it into the settings."""
    if isinstance(value, ast.Call):
        (factory,) = [keyword.value for keyword in value.keywords if keyword.arg == "default_factory"]
        return {"dict": "{}", "list": "[]"}[ast.unparse(factory)]
    assert value is not None, "every setting has a default"
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return f'"{value.value}"'
    if isinstance(value, ast.BinOp):
        # Only products are written out.
        product = math.prod(part.value for part in ast.walk(value) if isinstance(part, ast.Constant))
        return f"{product:_}"
    return ast.unparse(value)


def markdown(text: str) -> str:
    """A docstring's markup as Markdown: doubled backticks, and single ones around names, become code."""
    return re.sub(r"``(.+?)``", r"`\1`", text)


def page() -> str:
    """The whole page."""
    parts = [HEAD, "| setting | type | default |\n|---|---|---|\n"]
    settings = list(fields_of(CONF.read_text(), "Settings"))
    for field in settings:
        kind = field.type.replace("|", r"\|")
        parts.append(f"| [`{field.name}`](#{field.name.lower()}) | `{kind}` | `{field.default}` |\n")
    parts += [f"\n### {field.name}\n\n{markdown(field.text)}\n" for field in settings]
    parts += ["\n", LIMITS_HEAD, "| limit | default | |\n|---|---|---|\n"]
    for field in fields_of(LIMITS.read_text(), "Limits"):
        parts.append(f"| `{field.name}` | `{field.default}` | {markdown(field.text)} |\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
