"""``python -m tests.browser.pictures [NAME…]``: the pictures of the documentation, in docs/images, light and dark.

They are taken of a real server with the scripted model, so times in them differ from run to run; all else is the same.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, Page, async_playwright
from websockets.asyncio.client import connect

from .chromium import FLAGS, found_chromium
from .looks import shoot
from .site import Site, prepare, running

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
COLOURS = 256
"""Enough for text and lines; a picture is half as large."""
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}

SLOW = "!tokens 9000 !rate 40"
PLAYGROUND = "/admin/responses_ws/playground/"


async def dashboard(page: Page, _site: Site, _held: AsyncExitStack) -> None:
    await page.goto("/admin/responses_ws/dashboard/")
    await page.wait_for_load_state("networkidle")


async def invoice(page: Page, site: Site, _held: AsyncExitStack) -> None:
    await page.goto(f"/admin/responses_ws/invoice/{site.seeded['invoice']}/document.html")


async def live(page: Page, site: Site, held: AsyncExitStack) -> None:
    """A socket of each key, and a turn on some of them."""
    keys = site.seeded["keys"]
    for number, key in enumerate(keys):
        headers = {"Authorization": f"Bearer {key}"}
        socket = await held.enter_async_context(connect(site.socket_url, additional_headers=headers, close_timeout=0.1))
        if number % 3 != 2:
            asked = {"type": "response.create", "model": "scripted", "input": SLOW, "stream_id": "main"}
            await socket.send(json.dumps(asked))
    await page.goto("/admin/responses_ws/live/")
    await page.locator("#rws-live-rows tr").nth(len(keys) - 1).wait_for()
    await page.locator("#rws-live-generating", has_text=str(len(keys) - len(keys) // 3)).wait_for()


async def open_playground(page: Page) -> None:
    await page.goto(PLAYGROUND)
    await page.wait_for_selector("#connection.open")


async def say(page: Page, words: str) -> None:
    turns = await page.locator(".turn").count()
    await page.fill("#say", words)
    await page.press("#say", "Enter")
    await page.locator(".turn").nth(turns).locator(".foot", has_text="$").wait_for()


async def playground(page: Page, _site: Site, _held: AsyncExitStack) -> None:
    """A chain with a function call whose result a human has typed, and its events."""
    await open_playground(page)
    await say(page, "!reason 12 !rate 90 Is a **kept connection** worth it?")
    has_one_column = await page.locator(".columns").is_visible()
    if has_one_column:
        await page.click("[data-show=settings]")
    await page.click("summary:has-text('Function tools')")
    await page.select_option("#tool-example", "weather")
    if has_one_column:
        await page.click("[data-show=chat]")
    await say(page, "What is the weather in Paris?")
    await page.fill(".call textarea", '{"sky": "light rain", "celsius": 12}')
    await page.press(".call textarea", "Enter")
    await page.locator(".turn").nth(2).locator(".foot", has_text="$").wait_for()


async def race(page: Page, _site: Site, _held: AsyncExitStack) -> None:
    """An agent's loop over the three doors."""
    await open_playground(page)
    await page.get_by_role("button", name="Side by side").click()
    await page.click("#race-start")
    await page.wait_for_selector("#verdict strong")


# In this order: what the playground does is usage, which the dashboard would show.
PICTURES: dict[str, Callable[[Page, Site, AsyncExitStack], Awaitable[None]]] = {
    "dashboard": dashboard,
    "invoice": invoice,
    "live": live,
    "playground": playground,
    "playground-race": race,
}


ON_PAPER = {"invoice"}
"""What is printed is neither dark nor narrow."""


def shrink(path: Path) -> int:
    """Fewer colours; gives the size in bytes."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    return path.stat().st_size


async def take(browser: Browser, site: Site, name: str, directory: Path) -> None:
    """The picture for a desktop and a phone, each in light and dark."""
    on_paper = name in ON_PAPER
    for width, viewport in (("", DESKTOP), ("-phone", PHONE))[: 1 if on_paper else 2]:
        for shade in ("", "-dark")[: 1 if on_paper else 2]:
            scheme = "dark" if shade else "light"
            context = await browser.new_context(
                base_url=site.url, viewport=viewport, color_scheme=scheme, reduced_motion="reduce"
            )
            await site.log_in(context)
            page = await context.new_page()
            async with AsyncExitStack() as held:
                await PICTURES[name](page, site, held)
                path = await shoot(page, directory / f"{name}{width}{shade}.png")
            print(f"{path.name} {shrink(path):,} bytes")
            await context.close()


async def main(names: list[str], directory: Path = IMAGES) -> None:
    with tempfile.TemporaryDirectory() as home:
        prepared = prepare(Path(home) / "prepared")
        seeded = {"seed": "tests.browser.seeds.pictures", "environment": {"PLAYGROUND": "1"}}
        with running(prepared, Path(home) / "site", **seeded) as site:
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=found_chromium(), args=list(FLAGS))
                for name in names or PICTURES:
                    await take(browser, site, name, directory)
                await browser.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
