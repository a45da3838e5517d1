"""The watch hears what it should: each of these pages does one thing that no page of ours may do."""

import pytest

from .canaries import CANARIES, ELSEWHERE
from .looks import barriers, overflow
from .site import BOSS, PASSWORD


async def test_the_boss_opens_the_office_and_nothing_is_seen(page, watch):
    await page.goto("/admin/")

    assert await page.title() == "Site administration | Django site admin"
    assert watch.faults == []


async def test_a_password_opens_the_office(new_context):
    page = await (await new_context(user=None)).new_page()
    await page.goto("/admin/")
    await page.fill("#id_username", BOSS)
    await page.fill("#id_password", PASSWORD)

    await page.click("input[type=submit]")

    await page.wait_for_selector("text=Site administration")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("<script>throw new Error('broken')</script>", "uncaught: broken"),
        ("<script>console.error('an error')</script>", "console: an error"),
        (f"<img src='{ELSEWHERE}/pixel.png' alt=''>", f"asked elsewhere: {ELSEWHERE}/pixel.png"),
        ("<script>new WebSocket('ws://elsewhere.example/s')</script>", "asked elsewhere: ws://elsewhere.example/s"),
        (CANARIES[0], 'a canary ran: ["script"]'),
        (CANARIES[1], 'a canary ran: ["img"]'),
        ("<script>alert('hello')</script>", "a dialog: hello"),
        (
            '<meta http-equiv="Content-Security-Policy" content="script-src none"><script>1</script>',
            "content security policy: script-src-elem inline",
        ),
    ],
    ids=["exception", "console", "request", "socket", "script", "img", "dialog", "policy"],
)
async def test_it_sees(page, watch, content, fault):
    await page.route("**/provoked", lambda route: route.fulfill(body=content, content_type="text/html"))

    await page.goto("/provoked")
    await watch.sees(fault)
    watch.allow("")


async def test_barriers_are_found(page):
    await page.set_content("<html lang=en><title>t</title><main><h1>h</h1><input><p style='color:#aaa'>pale</p></main>")

    found = {barrier.split(":")[0] for barrier in await barriers(page)}

    assert found == {"label", "color-contrast"}


async def test_a_page_wider_than_its_window_is_told(page):
    await page.set_content("<body style='margin:0'><div style='width:1500px'>wide</div>")

    assert await overflow(page) == 60
