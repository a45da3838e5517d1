"""The Markdown pages of this repository, and what is in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
# README and CHANGELOG at the root, and everything in docs.
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md"), *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Code is not text: nothing in it is a link or a heading.
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line it begins in."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The path in a first line that is only that, as ``# mysite/settings.py``; or an empty string."""
        first = re.match(r"# (\S+/\S+\.\w+)$", self.text.partition("\n")[0])
        return first[1] if first else ""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 2) for found in _FENCE.finditer(text)]


def prose_of(page: Path) -> str:
    """The page without its code."""
    return _CODE.sub("", page.read_text())


def anchors_of(page: Path) -> set[str]:
    """The fragments that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
