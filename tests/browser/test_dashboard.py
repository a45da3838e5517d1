"""The dashboard in a browser: all of it is there, it is narrowed without being loaded again, and names are only texts.

`Watch` sees to it that no page of these asks for anything elsewhere, breaks its policy or complains.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from .canaries import CANARIES, SHORT
from .looks import barriers, overflow

SEED = "tests.browser.seeds.dashboard"
PEOPLE = {"looker": ["view_usagerecord"], "stranger": ["view_price"]}
PATH = "/admin/responses_ws/dashboard/"
OURS = "div.rws"
CARDS = [
    "Spend this month", "Spend, last 30 days", "Responses, last 30 days", "Error rate",
    "Generating now", "First token", "Tokens per second", "Unbilled", "Books",
]  # fmt: skip
PANELS = [
    "Spend", "Tokens", "Responses", "Time to first token", "Organisations", "Projects", "API keys", "Models",
    "WebSocket mode and HTTP", "Errors by code", "Where a turn's time goes", "Where chains were found",
    "Budgets near their limit", "Flagged turns",
]  # fmt: skip


async def opened(new_context: Any, path: str = PATH, **options: Any) -> Any:
    page = await (await new_context(**options)).new_page()
    await page.goto(path)
    return page


async def titles(page: Any) -> list[str]:
    return await page.locator(f"{OURS} h3").all_inner_texts()


def trail(page: Any, words: str) -> Any:
    return page.locator(".rws-trail [aria-current=page]").get_by_text(words, exact=True)


def ranked(page: Any, words: str) -> Any:
    return page.locator(".rws-ranking a").get_by_text(words, exact=True)


async def assert_inert(page: Any) -> None:
    assert await page.locator(f"{OURS} :is(script, style, link, img, iframe, b, svg[onload])").count() == 0
    assert await page.locator(f"{OURS} a[href^='javascript']").count() == 0


@pytest.mark.parametrize(
    ("phone", "dark"),
    [
        pytest.param(False, False, id="desktop, light"),
        pytest.param(True, True, id="phone, dark"),
        pytest.param(False, True, id="desktop, dark", marks=pytest.mark.chaos),
        pytest.param(True, False, id="phone, light", marks=pytest.mark.chaos),
    ],
)
async def test_all_of_it_is_shown_and_bars_nobody(new_context, phone, dark):
    page = await opened(new_context, phone=phone, dark=dark)

    assert await titles(page) == CARDS + PANELS
    assert await page.locator(".rws-chart .rws-day").count() == 4 * 30
    assert await page.get_by_role("alert").get_by_text("The books do not agree").is_visible()
    assert await overflow(page) <= 0
    assert await barriers(page, OURS) == []


async def test_filters_show_what_they_say_and_the_way_back(new_context):
    page = await opened(new_context)
    responses = page.locator(".rws-card", has_text="Responses, last").locator(".rws-value")
    assert await responses.inner_text() == "7"
    await page.evaluate("window.isTheSame = true")

    await page.select_option("select[name=organization]", label="Acme")
    await trail(page, "Acme").wait_for()
    await page.select_option("select[name=model]", "small")
    await page.locator(".rws-trail", has_text="Last 30 days, small").wait_for()
    await page.select_option("select[name=period]", "24h")
    await page.locator(".rws-trail", has_text="Last 24 hours, small").wait_for()

    assert await responses.inner_text() == "2"
    assert await page.locator(".rws-chart .rws-day").count() == 4 * 24
    assert await page.locator(".rws-ranking tbody th").all_inner_texts() == ["Agents", "laptop Agents", "small"]
    await page.go_back()
    await page.locator(".rws-trail", has_text="Last 30 days, small").wait_for()
    assert await page.evaluate("window.isTheSame")
    await page.reload()
    assert await responses.inner_text() == "2"


async def test_days_are_chosen_by_their_dates(new_context):
    page = await opened(new_context)
    today = datetime.now(UTC).date()

    await page.click("summary:has-text('Other days')")
    await page.fill("input[name=from]", f"{today - timedelta(days=2)}")
    await page.fill("input[name=to]", f"{today}")

    await page.locator(".rws-trail", has_text=" to ").wait_for()
    assert await page.locator("#spend-title").locator("xpath=../..").locator(".rws-day").count() == 3
    assert await page.input_value("input[name=from]") == f"{today - timedelta(days=2)}"


async def test_one_goes_down_to_the_events_of_a_response_past_names_that_are_programs(new_context, site):
    page = await opened(new_context)

    for step in ("owner", "project", "key"):
        await ranked(page, f"{SHORT}{step}").click()
        await trail(page, f"{SHORT}{step}").wait_for()
        await assert_inert(page)
    assert await ranked(page, SHORT).count() == 1
    await page.locator(f"a[href$='/{site.seeded['told']}/']").click()
    await page.locator("summary", has_text="response.output_text.delta").click()

    said = await page.locator("pre:visible").inner_text()
    assert all(canary.splitlines()[0].replace('"', '\\"') in said for canary in CANARIES[:5])
    await assert_inert(page)
    await page.locator(".rws-trail a").click()
    await trail(page, f"{SHORT}key").wait_for()


async def test_it_works_without_scripts(new_context):
    page = await opened(new_context, java_script_enabled=False)

    await page.select_option("select[name=organization]", label="Acme")
    await page.get_by_role("button", name="Show").click()

    assert await trail(page, "Acme").is_visible()
    await ranked(page, "Agents").click()
    assert await trail(page, "Agents").is_visible()


async def test_it_keeps_itself_up_to_date_and_says_when_it_cannot(new_context, watch):
    watch.allow("ERR_FAILED")
    page = await (await new_context()).new_page()
    await page.clock.install()
    await page.goto(PATH)
    await page.locator("summary:has-text('As a table')").first.click()
    await page.evaluate("document.querySelector('.rws-cards').id = 'from-before'")

    await page.clock.run_for(31_000)

    await page.locator("#from-before").wait_for(state="detached")
    assert await page.locator(f"{OURS} details[open]").count() == 1
    assert await page.evaluate("document.activeElement.innerText") == "As a table"
    await page.route("**/dashboard/**", lambda route: route.abort())
    await page.clock.run_for(31_000)
    await page.get_by_text("could not be brought up to date").wait_for()
    assert await titles(page) == CARDS + PANELS


async def test_who_sees_usage_alone_sees_nothing_else(new_context, site):
    page = await opened(new_context, user="looker")

    shown = await titles(page)
    await page.goto(f"{PATH}responses/{site.seeded['told']}/")

    assert shown == [*CARDS, *PANELS[:-2]]
    assert await page.get_by_text("response.output_text.delta").is_visible()
    assert await page.locator("pre").count() == 0


async def test_who_may_not_see_usage_sees_none_of_it(new_context, site, watch):
    watch.allow("403")
    page = await opened(new_context, "/admin/", user="stranger")

    assert await page.get_by_role("link", name="Prices").count() > 0
    assert await page.get_by_role("link", name="Dashboard").count() == 0
    for path in (PATH, f"{PATH}responses/{site.seeded['told']}/"):
        answer = await page.goto(path)
        assert answer.status == 403
        assert "Acme" not in await page.content()
