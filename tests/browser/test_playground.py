"""The playground, as somebody uses it: over each door, with the keyboard, and with words that mean no good."""

import base64
import json

import pytest

from tests.waiting import until

from .canaries import ALL
from .looks import barriers, overflow

SITE = {"environment": {"PLAYGROUND": "1"}}
SEED = "tests.browser.seeds.playground"
PEOPLE = {"player": ["use_playground"], "stranger": ["view_usagerecord"]}
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
PATH = "/admin/responses_ws/playground/"


async def enter(new_context, **options):
    """The page, connected."""
    context = await new_context(**{"user": "player", **options})
    page = await context.new_page()
    await page.goto(PATH)
    await page.wait_for_selector("#connection.open")
    return page


async def ask(page, words):
    """Say it and wait for the end of the turn; gives the turn's article."""
    turns = await page.locator(".turn").count()
    await page.fill("#say", words)
    await page.press("#say", "Enter")
    turn = page.locator(".turn").nth(turns)
    await turn.locator(".foot").get_by_text("Inspect").wait_for()
    return turn


async def sent(page):
    """The body of the request that is looked at, as it went out."""
    async with page.expect_download() as download:
        await page.click("#download")
    path = await (await download.value).path()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("way", ["websocket", "sse", "json"])
async def test_a_question_is_answered_over(new_context, way):
    page = await enter(new_context)
    await page.check(f"input[value={way}]", force=True)

    turn = await ask(page, "How are **you**?")

    assert await turn.locator(".text strong").inner_text() == "you"
    figures = await turn.locator(".foot").inner_text()
    await turn.locator(".foot", has_text="$0.0000").wait_for()
    assert {"websocket": "WebSocket", "sse": "SSE", "json": "JSON"}[way] in figures
    types = await page.locator("#events .type").all_inner_texts()
    assert types[-1] == "response.completed"
    assert types[0] == ("response.create" if way == "websocket" else "request")


async def test_a_human_plays_the_tool_and_the_chain_goes_on_with_what_is_new(new_context):
    page = await enter(new_context)
    await page.get_by_role("button", name="What is the weather in Paris?").click()

    await page.fill(".call textarea", "rain, 12 °C")
    await page.press(".call textarea", "Enter")

    await page.get_by_text('The tool returned "rain, 12 °C".').wait_for()
    requests = [line["event"] for line in await sent(page) if line["direction"] == "out"]
    assert [item["type"] for item in requests[1]["input"]] == ["function_call_output"]
    assert requests[1]["previous_response_id"].startswith("resp_")


async def test_a_picture_goes_with_the_words(new_context):
    page = await enter(new_context)
    await page.set_input_files("#picture", files=[{"name": "dot.png", "mimeType": "image/png", "buffer": DOT}])
    await page.wait_for_selector("#pictures img")

    await ask(page, "What is this?")

    (request,) = [line["event"] for line in await sent(page) if line["direction"] == "out"]
    assert [part["type"] for part in request["input"][0]["content"]] == ["input_text", "input_image"]
    assert await page.locator(".said img").count() == 1


async def test_one_long_response_takes_the_result_within_it(new_context):
    page = await enter(new_context)
    await page.click("summary:has-text('Parameters')")
    await page.check("#append")
    await page.get_by_role("button", name="What is the weather in Paris?").click()

    await page.fill(".call textarea", "sun")
    await page.press(".call textarea", "Enter")

    await page.get_by_text('The tool returned "sun".').wait_for()
    assert await page.locator(".turn").count() == 1


async def test_an_earlier_answer_is_continued_on_a_branch_of_its_own(new_context):
    page = await enter(new_context)
    first = await ask(page, "one")
    await ask(page, "two")

    await first.get_by_text("Continue from here").click()
    third = await ask(page, "three")

    assert await page.locator(".turn").count() == 2
    assert "three" in await third.inner_text()
    branches = [text.replace("WebSocket", "").strip() for text in await page.locator(".branch").all_inner_texts()]
    assert branches == ["one", "two", "three"]


@pytest.mark.parametrize("way", ["websocket", "sse"])
async def test_escape_stops_and_the_next_question_is_answered(new_context, way):
    page = await enter(new_context)
    await page.check(f"input[value={way}]", force=True)
    await page.fill("#say", "!tokens 5000 !rate 20 go on")
    await page.press("#say", "Enter")
    await page.wait_for_selector(".turn .text")

    await page.keyboard.press("Escape")

    await page.wait_for_selector(".turn .broken")
    turn = await ask(page, "hello again")
    assert 'You said: "hello again"' in await turn.inner_text()


async def test_a_running_answer_is_steered(new_context):
    page = await enter(new_context)
    await page.fill("#say", "!tokens 5000 !rate 20 go on")
    await page.press("#say", "Enter")
    await page.wait_for_selector(".turn .text")

    await page.fill("#say", "stop, say hello")
    await page.get_by_role("button", name="Steer").click()

    await page.get_by_text('You said: "stop, say hello"').wait_for()
    assert await page.locator(".turn .note").inner_text() == "Steered."


async def test_side_by_side_a_kept_connection_sends_what_is_new(new_context):
    page = await enter(new_context)
    await page.get_by_role("button", name="Side by side").click()
    await page.fill("#race-turns", "4")

    await page.click("#race-start")

    await page.wait_for_selector("#verdict strong")
    again = [await lane.locator("dd").nth(3).inner_text() for lane in await page.locator(".lane").all()]
    assert again[0] == "0"
    assert again[1] == again[2] != "0"


async def test_nothing_that_is_said_runs_or_leaves(new_context):
    page = await enter(new_context)
    await page.fill("#instructions", ALL)
    turn = await ask(page, ALL)

    # Told back in the answer, in a tool's arguments and result, in errors, the branches and the inspector.
    assert "__canary('script')" in await turn.locator(".text").inner_text()
    arguments = json.dumps({"city": ALL})
    await page.fill("#say", f"!call get_weather {arguments}")
    await page.click("summary:has-text('Function tools')")
    await page.fill(
        "#tools", json.dumps([{"type": "function", "name": "get_weather", "description": ALL, "parameters": {}}])
    )
    await page.press("#say", "Enter")
    await page.fill(".call textarea", ALL)
    await page.click(".results button")
    await page.get_by_text("The tool returned").wait_for()
    await page.fill("#tools", ALL)
    for _ in range(6):
        await page.evaluate("document.querySelectorAll('#events details').forEach((one) => { one.open = true; })")
        await page.evaluate("new Promise(requestAnimationFrame)")

    assert await page.locator("a:not([href^=http]):not([href^='/admin/'])").count() == 0
    assert await page.locator("main :is(script, iframe, svg[onload], link, style)").count() == 0
    assert await page.evaluate(
        "[...document.querySelectorAll('*')].every((one) => ![...one.attributes].some((a) => a.name.startsWith('on')))"
    )


async def test_the_key_is_in_no_place_where_it_could_be_read(new_context):
    page = await enter(new_context)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    await ask(page, "hello")

    seen = await page.content() + page.url + json.dumps(asked) + json.dumps(await sent(page))
    kept = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")

    assert "sk-proj-" not in seen.replace('placeholder="sk-proj-…"', "")
    assert "sk-proj-" not in kept


async def test_the_key_ends_with_the_page(new_context, site):
    page = await enter(new_context)
    newest = "SELECT id, revoked_at FROM responses_ws_apikey ORDER BY id DESC LIMIT 1"
    (key,) = site.rows(newest)

    await page.goto("/admin/")

    revoked = await until(lambda: [row for row in site.rows(newest) if row["revoked_at"]], "the key to be revoked")
    assert key["revoked_at"] is None
    assert [row["id"] for row in revoked] == [key["id"]]


async def test_a_pasted_key_is_used(new_context, site):
    page = await enter(new_context)
    await page.click("summary:has-text('Key')")

    await page.fill("#pasted", site.seeded["key"])
    await page.press("#pasted", "Enter")

    await page.get_by_text("Your key is used.").wait_for()
    await page.wait_for_selector("#connection.open")
    await ask(page, "hello")
    (row,) = site.rows(
        "SELECT name FROM responses_ws_apikey WHERE id = (SELECT api_key_id FROM responses_ws_usagerecord "
        "ORDER BY id DESC LIMIT 1)"
    )
    assert row["name"] == "pasted"


async def test_a_refused_key_is_told_and_the_pages_own_opens_again(new_context, watch):
    watch.allow("401")
    page = await enter(new_context)
    await page.click("summary:has-text('Key')")

    await page.fill("#pasted", "sk-wrong")
    await page.press("#pasted", "Enter")
    await page.wait_for_selector("#trouble:has-text('Incorrect API key')")
    await page.wait_for_selector("#connection.closed")
    await page.click("#own-key")

    await page.wait_for_selector("#connection.open")
    assert await page.locator("#trouble").is_hidden()


async def test_who_may_not_play_is_turned_away(new_context, watch):
    watch.allow("403")
    page = await (await new_context(user="stranger")).new_page()

    answer = await page.goto(PATH)

    assert answer.status == 403


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
async def test_nobody_is_barred(new_context, phone, dark):
    page = await enter(new_context, phone=phone, dark=dark)
    await ask(page, "!reason 3 Look at `this`")

    assert await barriers(page) == []
    assert await overflow(page) <= 0
    for column in ("settings", "inspect") if phone else ():
        await page.click(f"[data-show={column}]")
        assert await barriers(page) == []
        assert await overflow(page) <= 0
