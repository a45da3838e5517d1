"""The live view's socket: who may open it, what it shows, and that it ends when its reason does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import Permission, User
from django.test import AsyncClient, Client

from responses_ws.models import ApiKey, UsageRecord
from responses_ws.routing import websocket_application
from responses_ws.runtime import connections, drain, live
from responses_ws.runtime.watching import watching
from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports.live import NOT_ALLOWED, is_of_this_site
from tests.waiting import until

PATH = "/admin/responses_ws/live/socket/"
HOST, ORIGIN = "testserver", "http://testserver"
SECONDS = 30


def make_staff(*codenames: str, **fields: Any) -> tuple[User, Client]:
    user = User.objects.create(**{"username": f"staff{User.objects.count()}", "is_staff": True, **fields})
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return user, client


@pytest.fixture
async def staff(transactional_db: None, settings: Any) -> tuple[User, Client]:
    """Somebody who may see usage, logged in."""
    settings.ALLOWED_HOSTS = [HOST]
    return await sync_to_async(make_staff)("view_usagerecord")


class Watcher(ApplicationCommunicator):
    async def picture(self, holds: Callable[[dict[str, Any]], Any] = lambda _picture: True) -> dict[str, Any]:
        """The next one of which this holds."""
        async with asyncio.timeout(SECONDS):
            while True:
                message = await self.receive_output(SECONDS)
                assert message["type"] == "websocket.send", message
                picture: dict[str, Any] = msgspec.json.decode(message["text"])
                if holds(picture):
                    return picture

    async def close(self) -> tuple[int, str]:
        """How it is closed from the other side, pictures aside."""
        async with asyncio.timeout(SECONDS):
            while (message := await self.receive_output(SECONDS))["type"] == "websocket.send":
                pass
        assert message["type"] == "websocket.close"
        return message.get("code", 1000), message.get("reason", "")


def connections_of(picture: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for process in picture["processes"] for one in process["connections"]]


def has_said_something(picture: Mapping[str, Any]) -> bool:
    return any(turn["tokens"] for connection in connections_of(picture) for turn in connection["turns"])


@asynccontextmanager
async def opened(client: Client | None, origin: str | None = ORIGIN, path: str = PATH) -> AsyncIterator[Watcher]:
    cookie = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items()) if client else ""
    given = {"host": HOST, "cookie": cookie, **({"origin": origin} if origin is not None else {})}
    headers = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "websocket", "path": path, "query_string": b"", "headers": headers, "subprotocols": []}
    watcher = Watcher(websocket_application, scope)
    await watcher.send_input({"type": "websocket.connect"})
    yield watcher
    await watcher.send_input({"type": "websocket.disconnect", "code": 1001})
    await watcher.wait(SECONDS)


async def test_a_member_of_staff_sees_sockets_with_their_turns(staff: tuple[User, Client], api_key: ApiKey) -> None:
    headers = {"User-Agent": "codex/1.0"}
    async with ResponsesCommunicator(api_key.secret, headers=headers) as socket, opened(staff[1]) as watcher:
        assert (await watcher.receive_output(SECONDS))["type"] == "websocket.accept"
        await socket.create(model="scripted", input="!tokens 4000 !rate 100", stream_id="main", store=False)

        picture = await watcher.picture(has_said_something)

        (connection,) = connections_of(picture)
        (turn,) = connection["turns"]
        assert (connection["id"], connection["agent"]) == (socket.headers["x-request-id"], "codex/1.0")
        assert (connection["transport"], connection["lanes"]) == ("websocket", 1)
        assert connection["key"] == api_key.redacted
        assert picture["keys"] == {str(api_key.pk): api_key.name}
        assert picture["projects"] == {str(api_key.project_id): "Acme / agents"}
        assert (turn["model"], turn["lane"]) == ("scripted", "main")
        assert 0 < turn["first_token_seconds"] <= turn["seconds"]
        assert picture["totals"] == {"processes": 1, "sockets": 1, "lanes": 1, "generating": 1, "waiting": 0}


async def test_a_turn_over_http_is_a_connection_of_its_own(staff: tuple[User, Client], api_key: ApiKey) -> None:
    async def post() -> None:
        content = msgspec.json.encode({"model": "scripted", "input": "!tokens 4000 !rate 100", "stream": True})
        headers = {"Authorization": f"Bearer {api_key.secret}", "User-Agent": "curl"}
        answer = await AsyncClient().post("/v1/responses", content, content_type="application/json", headers=headers)
        async for _ in answer.streaming_content:
            pass

    async with opened(staff[1]) as watcher:
        await watcher.receive_output(SECONDS)
        reading = asyncio.ensure_future(post())
        (connection,) = connections_of(await watcher.picture(has_said_something))
        live.cancel(connection["id"])
        await asyncio.wait_for(reading, SECONDS)

    assert (connection["transport"], connection["agent"], connection["key"]) == ("sse", "curl", api_key.redacted)
    record = await UsageRecord.objects.aget()
    assert (record.response_id, record.status) == (connection["id"], "cancelled")
    assert record.reason == "cancelled_by_the_operator"


@pytest.mark.parametrize(
    ("origin", "allowed", "trusted", "is_ours"),
    [
        pytest.param("http://testserver", ["testserver"], [], True, id="the host"),
        pytest.param("https://testserver", ["testserver"], [], True, id="behind a proxy that speaks TLS"),
        pytest.param("http://testserver:80", ["testserver"], [], True, id="its port said"),
        pytest.param("http://TestServer", ["testserver"], [], True, id="in other letters"),
        pytest.param(None, ["testserver"], [], False, id="none"),
        pytest.param("null", ["*"], [], False, id="of a sandbox or a file"),
        pytest.param("http://evil.example", ["*"], [], False, id="another, though all hosts are allowed"),
        pytest.param("http://evil.example", ["testserver", "evil.example"], [], False, id="another of ours"),
        pytest.param("http://testserver.evil.example", ["testserver"], [], False, id="one that begins alike"),
        pytest.param("http://testserver:8000", ["testserver"], [], False, id="another port"),
        pytest.param("http://testserver@evil.example", ["testserver"], [], False, id="a user of that name"),
        pytest.param("http://testserver", ["other"], [], False, id="a host that is not ours"),
        pytest.param("file://testserver", ["testserver"], [], False, id="no web page"),
        pytest.param("http://[evil", ["testserver"], [], False, id="no URL"),
        pytest.param("https://office.example", ["testserver"], ["https://office.example"], True, id="trusted"),
        pytest.param("http://office.example", ["testserver"], ["https://office.example"], False, id="in plain text"),
        pytest.param("https://a.office.example", ["testserver"], ["https://*.office.example"], True, id="below"),
        pytest.param("https://evil.example", ["testserver"], ["https://*.office.example"], False, id="not below"),
    ],
)
async def test_only_pages_of_this_site_open_it_whoever_is_logged_in(
    staff: tuple[User, Client], settings: Any, origin: str | None, allowed: list[str], trusted: list[str], is_ours: bool
) -> None:
    settings.ALLOWED_HOSTS, settings.CSRF_TRUSTED_ORIGINS = allowed, trusted

    async with opened(staff[1], origin) as watcher:
        answer = await watcher.receive_output(SECONDS)

    assert answer["type"] == ("websocket.accept" if is_ours else "websocket.close")
    assert is_of_this_site(origin or "", {"host": HOST}) is is_ours


@pytest.mark.parametrize(
    ("codenames", "fields"),
    [
        pytest.param(["close_socket"], {}, id="without the permission"),
        pytest.param(["view_usagerecord"], {"is_staff": False}, id="not of the staff"),
        pytest.param(["view_usagerecord"], {"is_active": False}, id="switched off"),
    ],
)
async def test_who_may_not_see_usage_is_shown_nothing(staff: Any, codenames: list[str], fields: dict[str, Any]) -> None:
    _, client = await sync_to_async(make_staff)(*codenames, **fields)

    async with opened(client) as watcher:
        await watcher.receive_output(SECONDS)
        assert await watcher.receive_output(SECONDS) == {
            "type": "websocket.close",
            "code": NOT_ALLOWED,
            "reason": "not allowed",
        }


async def test_nobody_is_shown_nothing(staff: Any) -> None:
    async with opened(None) as watcher:
        await watcher.receive_output(SECONDS)
        assert (await watcher.receive_output(SECONDS))["code"] == NOT_ALLOWED


def log_out(user: User, client: Client) -> None:
    client.logout()


def demote(user: User, client: Client) -> None:
    User.objects.filter(pk=user.pk).update(is_staff=False)


def take_permission(user: User, client: Client) -> None:
    user.user_permissions.clear()


def change_password(user: User, client: Client) -> None:
    user.set_password("another")
    user.save()


@pytest.mark.parametrize("end", [log_out, demote, take_permission, change_password])
async def test_it_closes_within_seconds_for_who_may_look_no_more(staff: tuple[User, Client], end: Any) -> None:
    async with opened(staff[1]) as watcher:
        await watcher.receive_output(SECONDS)
        await watcher.picture()

        await sync_to_async(end)(*staff)
        began = asyncio.get_running_loop().time()
        code, _ = await watcher.close()

    assert code == NOT_ALLOWED
    # Seconds, not minutes: with room for a busy machine.
    assert asyncio.get_running_loop().time() - began < SECONDS


async def test_a_server_that_drains_sends_its_watchers_elsewhere(
    staff: tuple[User, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(staff[1]) as watcher:
        await watcher.receive_output(SECONDS)
        await watcher.picture()
        monkeypatch.setattr(drain, "_is_draining", True)

        assert (await watcher.close())[0] == 1012


async def test_while_nobody_watches_nothing_is_looked_at(staff: tuple[User, Client], api_key: ApiKey) -> None:
    before = live.snapshots
    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.turn(model="scripted", input="Hello", store=False)
        unwatched = live.snapshots - before

        async with opened(staff[1]) as one, opened(staff[1]) as other:
            for watcher in (one, other):
                await watcher.receive_output(SECONDS)
            first, second = await one.picture(), await other.picture()
        watched = live.snapshots - before - unwatched
        await socket.turn(model="scripted", input="Hello again", store=False)

    assert unwatched == 0
    # Made once for both.
    assert 1 <= len({first["at"], second["at"]}) <= watched
    assert live.snapshots - before == watched
    assert watching._tasks == []


async def test_a_closed_socket_is_told_that_it_may_come_back(api_key: ApiKey) -> None:
    async with ResponsesCommunicator(api_key.secret) as closed, ResponsesCommunicator(api_key.secret) as other:
        connections.close(closed.headers["x-request-id"])

        told = await closed.receive()
        events = await other.turn(model="scripted", input="Hello", store=False)

    assert told == {"type": "websocket.close", "code": 1012, "reason": "closed by the operator"}
    assert events[-1]["type"] == "response.completed"


async def test_what_a_busy_process_shows_is_bounded(api_key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_SHOWN", 2)
    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(ResponsesCommunicator(api_key.secret)) for _ in range(4)]
        await sockets[3].create(model="scripted", input="!tokens 4000 !rate 100", store=False)
        await until(lambda: live.totals().generating, "the turn")

        snapshot = live.snapshot()

    assert snapshot.totals.sockets == 4
    assert len(snapshot.connections) == 2
    assert snapshot.connections[0].id == sockets[3].headers["x-request-id"]
