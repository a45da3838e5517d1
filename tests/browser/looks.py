"""Looking at a page: what bars people from it, and pictures."""

from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


async def barriers(page: Page, within: str | None = None) -> list[str]:
    """What axe finds that bars people: names, roles, labels, contrast, order of headings. Empty: nothing.

    ``within`` is a selector, for what stands in pages that are not ours.
    """
    options: dict[str, Any] = {"runOnly": {"type": "tag", "values": list(_RULES)}, "resultTypes": ["violations"]}
    results = await Axe().run(page, context=within, options=options)
    return [
        f"{violation['id']}: {node['target']} {node['html'][:200]}"
        for violation in results.response["violations"]
        for node in violation["nodes"]
    ]


async def overflow(page: Page) -> int:
    """How many pixels a page is wider than its window."""
    return await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


async def shoot(page: Page, path: Path, *, full: bool = False) -> Path:
    """A picture of the page as it stands, of the whole length with ``full``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=path, full_page=full, animations="disabled", caret="hide", scale="css")
    return path
