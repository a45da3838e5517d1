"""The dashboard dressed by django-unfold: as complete as in Django's own admin, under a policy its scripts bear."""

from pathlib import Path

import pytest

from . import site as sites
from .canaries import SHORT
from .looks import barriers, overflow
from .test_dashboard import CARDS, OURS, PANELS, assert_inert, opened, ranked, titles, trail

# A site of its own: another set of static files.
pytestmark = pytest.mark.chaos

SEED = "tests.browser.seeds.dashboard"
UNFOLD = {"UNFOLD": "1"}
SITE = {"environment": UNFOLD}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sites.prepare(tmp_path_factory.mktemp("prepared_with_unfold"), UNFOLD)


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_all_of_it_is_shown_and_bars_nobody(new_context, phone, dark):
    page = await opened(new_context, phone=phone, dark=dark)

    assert await page.locator(".rws-in-unfold").count() == 1
    assert await titles(page) == CARDS + PANELS
    assert await overflow(page) <= 0
    assert await barriers(page, OURS) == []


async def test_one_goes_down_to_the_events_of_a_response(new_context, site):
    page = await opened(new_context)

    for step in ("owner", "project", "key"):
        await ranked(page, f"{SHORT}{step}").click()
        await trail(page, f"{SHORT}{step}").wait_for()
    await page.locator(f"a[href$='/{site.seeded['told']}/']").click()
    await page.locator("summary", has_text="response.output_text.delta").click()

    assert "__canary" in await page.locator("pre:visible").inner_text()
    await assert_inert(page)
