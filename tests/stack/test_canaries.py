"""What nobody may keep is nowhere: no file, no database, no Redis, no message, no log, no metric."""

import asyncio
import gzip
import io
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis
from websockets.exceptions import ConnectionClosed

from tests.conformance.raw import Door, Socket
from tests.fakes.moderation_server import ModerationServer
from tests.live import McpServer, ModelServer, Redis, Server, until

pytestmark = pytest.mark.stack

# Letters that do not stand beside each other by chance: in no word, no id, and in no hexadecimal digits.
ALPHABET = "qzxjkvw"
CANARY = re.compile(rb"[qzxjkvw]{12,}")
KEPT = "qzxjkvw" * 4
"""The one that is kept on purpose, to see that it would be found."""
MIB = 1024 * 1024


def canary(*, seed: list[int] = [0]) -> str:  # noqa: B006  a different one each time
    seed[0] += 1
    return "".join(random.Random(seed[0]).choices(ALPHABET, k=28))


class Monitor:
    """Everything that a Redis is told, while the block runs."""

    def __init__(self, server: Redis) -> None:
        self._client = server.client()
        self.heard: list[bytes] = []

    def __enter__(self) -> "Monitor":
        self._monitor = self._client.monitor().__enter__()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def _listen(self) -> None:
        try:
            while True:
                self.heard.append(str(self._monitor.next_command()).encode())
        except (redis.RedisError, OSError, ValueError, AttributeError):
            pass

    def __exit__(self, *_exc_info: object) -> None:
        self._client.close()


@pytest.fixture
def persistent_redis(tmp_path: Path) -> Iterator[Redis]:
    """One that keeps everything, as plain as it can."""
    options = ["--appendonly", "yes", "--rdbcompression", "no", "--slowlog-log-slower-than", "0"]
    with Redis(*options, directory=tmp_path / "redis") as running:
        yield running


@pytest.fixture
async def moderation_server() -> Any:
    async with ModerationServer({"spam": (ALPHABET[0], 0.4), "violence": ("killing", 0.9)}).running() as running:
        yield running


@pytest.fixture(params=["commit", pytest.param("journal", marks=pytest.mark.chaos)])
def watched(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    persistent_redis: Redis,
    moderation_server: ModerationServer,
    mcp_server: McpServer,
) -> Iterator[Server]:
    with ModelServer(directory=tmp_path / "models") as models:
        server = Server(
            directory=tmp_path / "web",
            engine_url=models.url,
            redis_url=persistent_redis.url,
            tools={"mcp": {"TOOL": "responses_ws.tools.mcp.Mcp", "TRUSTED": [mcp_server.origin]}},
        )
        server.environment |= {
            "DJANGO_SETTINGS_MODULE": "tests.stack.canary_settings",
            "CELERY_BROKER_URL": persistent_redis.url.replace("/0", "/1"),
            "MODERATION_URL": moderation_server.url,
            "DURABILITY": request.param,
            "OPENED": str(tmp_path / "opened.txt"),
            # In a fresh clone it would write what it compiles.
            "PYTHONDONTWRITEBYTECODE": "1",
            "METRICS_TOKEN": "tests",
        }
        server.migrate()
        with server:
            yield server


def everywhere(item: str) -> dict[str, Any]:
    """A request with a canary in every field that takes words."""
    return {
        "instructions": f"Be brief. {canary()}",
        "metadata": {canary(): canary()},
        "tools": [{"type": "function", "name": f"f_{canary()}", "description": canary(), "parameters": {}}],
        "user": canary(),
        "safety_identifier": canary(),
        "prompt_cache_key": canary(),
        "input": [
            {"type": "function_call", "call_id": "c", "name": canary(), "arguments": json.dumps({"a": canary()})},
            {"type": "function_call_output", "call_id": "c", "output": canary()},
            {"type": "message", "role": "user", "content": item},
        ],
    }


async def plain(door: Door, **told: Any) -> None:
    """JSON and streams; compressed, large, refused, abandoned and broken ones."""
    for model in ("scripted", "fake-chat"):
        await door.post(model, **everywhere(canary()), **told)
        await door.post(model, input=f"!tokens 30 !break 10 {canary()}", **told)
        await door.post(model, input=f"!fail rate_limited {canary()}", **told)
        await door.post(model, input=f"!reason 5 killing {canary()}", **told)
    await door.compact(input=[{"role": "user", "content": f"{canary()} " + "many words " * 2000}])
    async with door.http() as client:
        url = "/v1/responses"
        for body in (
            {"model": "scripted", "input": canary(), "temperature": canary(), **told},
            {"model": canary(), "input": "x", **told},
            {"model": "scripted", "input": [{"type": "message", "role": canary(), "content": ""}], **told},
            # Not within the id: whatever looks like one is looked for, and Redis is asked for it by its name.
            {"model": "scripted", "input": canary(), "previous_response_id": "resp_x", **told},
            {"model": "scripted", "input": canary(), "background": True, "conversation": canary(), **told},
        ):
            await (await client.post(url, json=body)).read()
        for data in (
            f'{{"input": "{canary()}"'.encode(),
            canary().encode() + b"\xff",
            b"[" * 10**5 + canary().encode(),
        ):
            await (await client.post(url, data=data)).read()
        whole = json.dumps({"model": "scripted", "input": canary(), **told}).encode()
        await (await client.post(url, data=gzip.compress(whole), headers={"Content-Encoding": "gzip"})).read()
        await (await client.post(url, data=whole, headers={"Content-Encoding": "zstd"})).read()
        await (await client.post(url, data=whole, headers={"Idempotency-Key": "once"})).read()
        await (await client.post(f"{url}/input_tokens", json={"model": "scripted", "input": canary()})).read()
        try:
            for size in (3, 15, 17):
                # A model that there is not: the body is read to its end, and then refused.
                large = json.dumps({"model": "nobody", "input": canary() + "x" * (size * MIB), **told}).encode()
                await (await client.post(url, data=io.BytesIO(large))).read()
            await client.post(url, data=endless())
        except aiohttp.ClientError:
            pass
        leaving = {"model": "scripted", "input": f"!tokens 100000 !rate 100 {canary()}", "stream": True, **told}
        async with client.post(url, json=leaving) as answer:
            await answer.content.readline()
            answer.close()


async def endless() -> Any:
    """A body of no told length."""
    while True:
        yield canary().encode() + bytes(MIB)


async def on_sockets(door: Door, mcp_url: str, **told: Any) -> None:
    async with door.socket() as socket:
        first = await socket.turn(**everywhere(canary()), **told)
        last = first[-1]["response"]["id"]
        await socket.turn(previous_response_id=last, input=f"!fail overloaded {canary()}", **told)
        await socket.turn(input=canary(), generate=False, **told)
        await socket.turn(model=canary(), input="x", **told)
        await socket.create(input=f"!tokens 200 !rate 100 {canary()}", **told)
        running = (await socket.wait_for("response.created"))["response"]["id"]
        await socket.send({"type": "response.steer", "previous_response_id": running, "input": canary()})
        await socket.rest_of_turn()
        for frame in (canary(), json.dumps({"type": canary()}), json.dumps({"type": "response.create", "input": 7})):
            await socket.connection.send(frame)
        await with_a_hosted_tool(socket, mcp_url, **told)
    async with door.socket() as socket:
        await socket.create(input=f"!tokens 100000 !rate 100 {canary()}", **told)
        await socket.wait_for("response.output_text.delta")
        await socket.drop()
    for frame in (canary() * (17 * MIB // 28), canary().encode() + b"\xff"):
        async with door.socket() as socket:
            try:
                await socket.connection.send(frame, text=True)
                await socket.close_code()
            except ConnectionClosed:
                pass


async def with_a_hosted_tool(socket: Socket, url: str, **told: Any) -> None:
    tool = {"type": "mcp", "server_label": "notes", "server_url": url, "require_approval": "never"}
    tool |= {"headers": {"X-Canary": canary()}}
    await socket.turn(input=f'!call search {{"query": "{canary()}"}}', tools=[tool], **told)


def places(server: Server, store: Redis, monitor: Monitor, tmp_path: Path) -> dict[str, bytes]:
    """Everything that was written, said or counted, by where it is. The engines' own logs are theirs."""
    found = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and "models" not in path.parts
    }
    client = store.client()
    found["redis monitor"] = b"\n".join(monitor.heard)
    found["redis slowlog"] = str(client.slowlog_get(1000)).encode()
    return found


async def test_nothing_that_was_said_without_store_is_anywhere(
    watched: Server,
    persistent_redis: Redis,
    mcp_server: McpServer,
    tmp_path: Path,
    figure: Callable[..., None],
) -> None:
    client = persistent_redis.client()
    plain_key = watched.create_key("plain")
    marked_key = watched.manage("responses_ws_createkey", "marked", "--project", "nothing", "--zero-retention").strip()
    with Monitor(persistent_redis) as monitor:
        for key, told in ((plain_key, {"store": False}), (marked_key, {"store": True})):
            door = Door(watched, key)
            await plain(door, **told)
            await on_sockets(door, mcp_server.url, **told)
        kept = (await Door(watched, plain_key).post(input=KEPT))[1]
        async with Door(watched, plain_key).http() as http:
            metrics = await http.get("/metrics", headers={"Authorization": "Bearer tests"})
            counted = await metrics.read()
        await asyncio.to_thread(watched.usage, kept["id"])
        client.save()
        until(lambda: any(b"RPUSH" in line or b"rpush" in line.lower() for line in monitor.heard), "Redis to be told")
    watched.stop()
    found = {**places(watched, persistent_redis, monitor, tmp_path), "metrics": counted}

    leaks = {
        where: sorted({hit.decode()[:40] for hit in CANARY.findall(content) if KEPT.encode() not in hit})
        for where, content in found.items()
    }
    leaks = {where: hits for where, hits in leaks.items() if hits}
    holders = {where for where, content in found.items() if KEPT.encode() in content}
    figure(28, "canaries found", target="0", measured=sum(map(len, leaks.values())), places=len(found))
    assert leaks == {}
    # It would have been found: the same words, stored on purpose.
    assert any("sqlite3" in where for where in holders)
    assert {"redis monitor", "redis slowlog"} & holders
    assert any(where.startswith("redis/") for where in holders)
    assert len(counted) > 1000
    # Nor was any file made that has gone since: Django spools large bodies to those.
    opened = set((tmp_path / "opened.txt").read_text().splitlines())
    journals = {path for path in opened if Path(path).parent.name == "journal"}
    assert bool(journals) == (watched.environment["DURABILITY"] == "journal")
    assert {Path(path).name for path in opened - journals} <= {watched.tokens.path.name, "opened.txt", "null"}
