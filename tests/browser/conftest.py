"""One browser for the run, one server a module, and a page that is watched.

Everything here and in the tests is asynchronous and runs on one loop of the session's: a browser outlives the loop of a
test, and Playwright's synchronous interface would leave a loop running in the thread of all other tests.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from . import site as sites
from .chromium import FLAGS, found_chromium
from .site import BOSS, Site
from .watch import Watch

HERE = Path(__file__).parent
NO_BROWSER = "no Chromium was found: name one by CHROMIUM=/path, or install one"
# A busy machine may take a good part of it.
PATIENCE_MS = 30_000
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1440, "height": 900}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if item.get_closest_marker("asyncio"):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if found_chromium() is None:
                item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if any(NO_BROWSER in str(report.longrepr) for report in skipped):
        terminalreporter.section("THE BROWSER TESTS DID NOT RUN", red=True, bold=True)
        terminalreporter.write_line(NO_BROWSER)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=found_chromium(), args=list(FLAGS))
        yield running
        await running.close()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sites.prepare(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The module's server. A module says what is in it by constants: ``PEOPLE``, ``SEED`` (see `Site`), and ``SITE``,
    more arguments of `sites.running`."""
    module = request.module
    options = {"people": getattr(module, "PEOPLE", {}), "seed": getattr(module, "SEED", "")}
    directory = tmp_path_factory.mktemp("site")
    with sites.running(prepared, directory, **options, **getattr(module, "SITE", {})) as running:
        yield running


@pytest.fixture
def watch(site: Site) -> Watch:
    return Watch(site.origin)


@pytest_asyncio.fixture(loop_scope="session")
async def new_context(browser: Browser, site: Site, watch: Watch) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Makes a browser window: ``await new_context(user="boss", phone=False, dark=False)``; ``user=None`` is nobody.

    Behind the test nothing may be left that `Watch` has seen in any of them.
    """
    contexts: list[BrowserContext] = []

    async def new_context(
        *, user: str | None = BOSS, phone: bool = False, dark: bool = False, **options: Any
    ) -> BrowserContext:
        context = await browser.new_context(
            base_url=site.url,
            viewport=PHONE if phone else DESKTOP,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            has_touch=phone,
            **options,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        await watch.over(context)
        if user is not None:
            await site.log_in(context, user)
        return context

    yield new_context
    for context in contexts:
        await context.close()
    assert not watch.faults, watch.faults


@pytest_asyncio.fixture(loop_scope="session")
async def page(new_context: Callable[..., Awaitable[BrowserContext]]) -> Page:
    """A page of the boss, in light colours, on a desktop."""
    context = await new_context()
    return await context.new_page()
