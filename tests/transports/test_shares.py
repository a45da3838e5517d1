"""WebSocket mode for some: who, and that a change is heard by a process that runs."""

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError

from responses_ws.models import ApiKey, Project, WebSocketShare
from responses_ws.runtime import dbpool
from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports import control
from responses_ws.transports.shares import place_of, shares


async def may_open(key: ApiKey) -> bool:
    async with ResponsesCommunicator(key.secret) as socket:
        if socket.refusal is None:
            return True
        status, body = socket.refusal
        assert (status, body["error"]["code"]) == (426, "websocket_off")
        return False


async def set_share(project: Project | None, percent: int) -> None:
    shares.forget()
    await dbpool.run(WebSocketShare.objects.create, project=project, percent=percent)


@pytest.mark.parametrize(
    ("everybody", "own", "expected"),
    [
        pytest.param(None, None, True, id="nothing is said"),
        pytest.param(0, None, False, id="off for all"),
        pytest.param(100, None, True, id="on for all"),
        pytest.param(0, 100, True, id="on for this project"),
        pytest.param(100, 0, False, id="off for this project"),
        pytest.param(None, 0, False, id="off for this project alone"),
    ],
)
async def test_a_projects_own_share_goes_before_that_of_all(
    api_key: ApiKey, everybody: int | None, own: int | None, expected: bool
) -> None:
    if everybody is not None:
        await set_share(None, everybody)
    if own is not None:
        await set_share(api_key.project, own)

    assert await may_open(api_key) is expected


async def test_another_projects_share_is_not_ours(api_key: ApiKey) -> None:
    other = await Project.objects.acreate(organization_id=api_key.project.organization_id, name="other")
    await set_share(other, 0)

    assert await may_open(api_key)


async def test_a_key_is_in_from_its_own_place_on(api_key: ApiKey) -> None:
    place = place_of(f"Bearer {api_key.secret}")
    await set_share(api_key.project, place)
    before = await may_open(api_key)

    await WebSocketShare.objects.aupdate(percent=place + 1)
    shares.forget()

    assert (before, await may_open(api_key)) == (False, True)


def test_keys_stand_evenly_among_the_hundred() -> None:
    places = [place_of(f"Bearer sk-proj-{number}") for number in range(10_000)]

    assert set(places) == set(range(100))
    assert 2_300 < sum(place < 25 for place in places) < 2_700


def test_a_key_has_its_place_in_every_process() -> None:
    assert [place_of("Bearer sk-proj-a"), place_of("Bearer sk-proj-b")] == [15, 41]


async def test_a_change_is_heard_by_a_process_that_runs(api_key: ApiKey) -> None:
    await control.listen()
    assert await may_open(api_key)

    share = await sync_to_async(WebSocketShare.objects.create)(project=None, percent=0)
    async with asyncio.timeout(10):
        while await may_open(api_key):
            pass
        await sync_to_async(share.delete)()
        while not await may_open(api_key):
            pass


async def test_a_second_share_for_the_same_is_refused(api_key: ApiKey) -> None:
    await set_share(None, 10)
    with pytest.raises(IntegrityError):
        await set_share(None, 20)
