"""What the pages show can be read by who it is for, and what they point at is there."""

import ast
import json
import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

from .pages import PAGES, ROOT, Block, anchors_of, blocks_of, prose_of

READERS = {"python": ast.parse, "json": json.loads, "toml": tomllib.loads}
# Others are shown to people only.
KNOWN = {*READERS, "sh", "js", "nginx", "text", "sql", "yaml", "ini"}
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{block.line}") for page in PAGES for block in blocks_of(page)
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_says_what_it_is_and_parses_as_that(block: Block) -> None:
    assert block.language in KNOWN

    READERS.get(block.language, str)(block.text)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(prose_of(page)):
        path, _, fragment = unquote(target).partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        found = (page.parent / path).resolve() if path else page
        is_there = found.exists() and (not fragment or found.suffix != ".md" or fragment in anchors_of(found))
        if not is_there:
            broken.append(target)

    assert broken == []
