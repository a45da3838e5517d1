"""The live view in a browser: what it shows, what it does, and that nothing that others have named runs in it."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from .canaries import CANARIES, SHORT
from .looks import barriers, overflow, shoot

PEOPLE = {"watcher": ["view_usagerecord"]}
SEED = f"{__name__}.seed"
SITE = {"environment": {"RATES": "{}"}}
PAGE = "/admin/responses_ws/live/"


def seed() -> dict[str, str]:
    from responses_ws.models import ApiKey, Organization, Project

    project = Project.objects.create(organization=Organization.objects.create(name="Acme"), name=SHORT)
    return {name: ApiKey.objects.create_with_secret(project=project, name=SHORT + name).secret for name in "abc"}


@asynccontextmanager
async def connected(site: Any, key: str, agent: str = "Agents/Python 0.24") -> Any:
    """A socket on which a turn runs; what it is told can be read from it."""
    url = f"{site.origin.replace('http', 'ws')}/v1/responses"
    headers = {"Authorization": f"Bearer {site.seeded[key]}"}
    # What nobody has read is in the way of the answer to a Close.
    options = {"user_agent_header": agent, "close_timeout": 0.1}
    async with connect(url, additional_headers=headers, **options) as socket:
        create = {"type": "response.create", "model": "scripted", "input": "!tokens 4000 !rate 40", "stream_id": "main"}
        await socket.send(json.dumps(create))
        yield socket


async def end_of(socket: Any) -> tuple[int, str]:
    async with asyncio.timeout(30):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed:
            return socket.close_code, socket.close_reason


async def terminal_of(socket: Any) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            event = json.loads(await socket.recv())
            if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                return event["response"]


async def test_a_turn_is_seen_cancelled_and_its_connection_closed(site, page):
    async with connected(site, "a") as socket:
        await page.goto(PAGE)
        row = page.locator("#rws-live-rows tr")
        await row.get_by_text("tokens,").wait_for()
        assert await page.locator("#rws-live-sockets").inner_text() == "1"

        await row.get_by_role("button", name="Cancel the turn").click()
        await page.locator("#rws-live-yes").click()
        response = await terminal_of(socket)
        await page.get_by_text("tokens,").wait_for(state="detached")
        await row.get_by_role("button", name="Close the connection").click()
        await page.locator("#rws-live-yes").click()

        assert response["status"] == "cancelled"
        assert await end_of(socket) == (1012, "closed by the operator")
        await page.get_by_text("Nobody is connected.").wait_for()


async def test_who_only_sees_is_offered_nothing(site, new_context):
    page = await (await new_context(user="watcher")).new_page()
    async with connected(site, "a"):
        await page.goto(PAGE)
        await page.get_by_text("tokens,").wait_for()

        assert await page.locator("#rws-live-rows button").count() == 0
        assert await page.locator("#rws-live-head th").count() == 7


async def test_names_that_are_programs_are_texts(site, page):
    agents = [canary for canary in CANARIES if "\n" not in canary and "\t" not in canary]
    async with connected(site, "a", agents[0]), connected(site, "a", agents[1]), connected(site, "c", agents[2]):
        await page.goto(PAGE)
        for agent in agents[:3]:
            await page.get_by_text(agent, exact=True).wait_for()

        assert await page.get_by_text(f"Acme / {SHORT}", exact=True).count() == 3
        assert await page.locator("#rws-live-rows :is(img, script, svg, iframe)").count() == 0


async def test_who_logs_out_elsewhere_is_told_so(site, new_context):
    context = await new_context(user="watcher")
    page, other = await context.new_page(), await context.new_page()
    await page.goto(PAGE)
    await page.get_by_text("Live, this host only").wait_for()

    await other.goto("/admin/")
    await other.click("#logout-form button")

    await page.get_by_text("You are logged out").wait_for()


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_it_bars_nobody_and_fits_its_window(site, new_context, tmp_path: Path, phone: bool, dark: bool):
    page = await (await new_context(phone=phone, dark=dark)).new_page()
    async with connected(site, "a"), connected(site, "c"):
        await page.goto(PAGE)
        await page.get_by_text("tokens,").first.wait_for()

        await shoot(page, tmp_path / "live.png")
        assert await barriers(page, "#rws-live") == []
        assert await overflow(page) == 0


async def test_a_revoked_key_loses_its_socket_when_its_turn_has_ended_and_others_do_not(site, page):
    async with connected(site, "b") as revoked, connected(site, "c") as spared:
        await page.goto(PAGE)
        await page.fill("#rws-live-filter", f"{SHORT}b")
        button = page.get_by_role("button", name="Revoke the key")
        await button.wait_for()
        assert await button.count() == 1

        await button.click()
        await page.locator("#rws-live-no").click()
        assert spared.close_code is revoked.close_code is None
        await button.click()
        await page.locator("#rws-live-yes").click()
        await page.locator("#rws-live-dialog[open]").wait_for(state="detached")
        await page.get_by_role("button", name="Cancel the turn").click()
        await page.locator("#rws-live-yes").click()

        assert (await end_of(revoked))[0] == 1008
        assert spared.close_code is None


async def test_a_server_that_goes_away_is_told_and_found_again(page, watch):
    watch.allow("WebSocket connection to")
    tries = []

    async def route(socket: Any) -> None:
        tries.append(socket)
        if len(tries) == 1:
            await socket.close(code=1012)
        else:
            socket.connect_to_server()

    await page.route_web_socket("**/socket/", route)
    await page.goto(PAGE)

    await page.get_by_text("Live, this host only").wait_for()
    assert len(tries) == 2
