"""Stored chains in a real Redis: how they are found again, and what is never found."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.utils import timezone
from redis.asyncio import Redis

from responses_ws.connection.chain import Link
from responses_ws.connection.log import SharedLog
from responses_ws.runtime import redis
from responses_ws.stores.base import Place, StoredChain
from responses_ws.stores.redis import RedisStore
from responses_ws.stores.rows import Deleted

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
ROOT = Place(A, A, (), 2)
TIP = Place(A, A, (), 4)
FORK = Place(B, A, ((A, 2),), 4)
TWIG = Place(C, A, ((A, 2), (B, 4)), 6)
TREE = f"responses_ws:2:{{1:{A.hex}}}"
POINTER = "responses_ws:2:1:response:"


@pytest.fixture
async def store(settings: Any, redis_url: str) -> AsyncIterator[RedisStore]:
    # The machine may be busy.
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": redis_url, "LIMITS": {"redis_seconds": 10}}
    await server().flushall()
    yield RedisStore()
    await redis.aclose()


def server() -> Redis:
    client = redis.client()
    assert client is not None
    return client


def items(letters: str) -> list[dict[str, Any]]:
    return [{"type": "message", "role": "user", "content": letter, "id": letter} for letter in letters]


def link(name: str, place: Place, letters: str) -> Link:
    log = SharedLog(items(letters))
    return Link(
        response_id=name,
        project_id=1,
        response={"id": name, "output": []},
        items=log,
        input_end=place.end - 1,
        open_calls={},
        place=place,
    )


async def save(store: RedisStore, name: str, place: Place, letters: str, parent: Place | None = None) -> None:
    before = None if parent is None else link("", parent, letters[: parent.end])
    await store.save(link(name, place, letters), before)


def read(name: str, place: Place, letters: str, *, seconds: float = 3600) -> StoredChain:
    """As the database has it."""
    expires_at = (timezone.now() + timedelta(seconds=seconds)).timestamp()
    bodies = [json.dumps(item) for item in items(letters)]
    return StoredChain({"id": name, "output": []}, items(letters), place.end - 1, place, expires_at, bodies)


async def letters(store: RedisStore, name: str, *, project_id: int = 1) -> str | None:
    stored = await store.load(project_id, name)
    return None if stored is None else "".join(entry["content"] for entry in stored.items)


async def test_a_chain_and_its_forks_are_found_again(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")
    await save(store, "tip", TIP, "abcd", ROOT)
    await save(store, "fork", FORK, "abef", ROOT)
    await save(store, "twig", TWIG, "abefgh", FORK)

    found = [await letters(store, name) for name in ("root", "tip", "fork", "twig")]
    assert found == ["ab", "abcd", "abef", "abefgh"]
    stored = await store.load(1, "tip")
    assert stored is not None
    assert (stored.place, stored.response["output"]) == (TIP, items("d"))


class Relay:
    """Counts what goes to a server and how often somebody waits for an answer of it. A context manager."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2].partition("/")[0])
        self.sent = 0
        self.round_trips = 0
        self._is_answering = True
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks)

    def reset(self) -> None:
        self.sent = self.round_trips = 0
        self._is_answering = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._pump(reader, to_server, is_answer=False), self._pump(from_server, writer))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool = True
    ) -> None:
        while data := await reader.read(1 << 20):
            if not is_answer:
                self.sent += len(data)
                self.round_trips += self._is_answering
            self._is_answering = is_answer
            writer.write(data)
        writer.close()


@pytest.fixture
async def relay(store: RedisStore, settings: Any, redis_url: str) -> AsyncIterator[Relay]:
    async with Relay(redis_url) as relay:
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": relay.url}
        assert await redis.answers()
        relay.reset()
        yield relay
        await redis.aclose()


async def test_a_chain_of_any_length_takes_two_round_trips_and_a_turn_writes_what_is_new(
    store: RedisStore, relay: Relay
) -> None:
    chain, log = Place(A, A, (), 0), SharedLog[Any]()
    round_trips, sent = {}, {}
    for turn in range(1, 1001):
        parent, chain = chain, Place(A, A, (), 2 * turn)
        log = log.extended(items("ab"))
        relay.reset()
        before = link("", parent, "")
        await store.save(msgspec.structs.replace(link(f"{turn:04}", chain, ""), items=log), before)
        sent[turn] = relay.sent
        if turn in (10, 100, 1000):
            relay.reset()
            assert await letters(store, f"{turn:04}") == "ab" * turn
            round_trips[turn] = relay.round_trips

    assert round_trips == {10: 2, 100: 2, 1000: 2}
    # The numbers in it become longer.
    assert sent[1000] - sent[10] < 20


async def test_forks_of_forks_take_two_round_trips_too(store: RedisStore, relay: Relay) -> None:
    place = None
    for depth in range(1, 101):
        path = tuple((UUID(int=older), 2 * older) for older in range(1, depth))
        parent, place = place, Place(UUID(int=depth), UUID(int=1), path, 2 * depth)
        await save(store, str(depth), place, "ab" * depth, parent)
    relay.reset()

    assert await letters(store, "100") == "ab" * 100
    assert relay.round_trips == 2


async def test_that_there_is_nothing_is_told_in_one_round_trip(store: RedisStore, relay: Relay) -> None:
    assert await store.load(1, "none") is None
    assert relay.round_trips == 1


async def test_what_the_database_had_is_put_back(store: RedisStore) -> None:
    await store.put_back(1, read("twig", TWIG, "abefgh"))

    assert await letters(store, "twig") == "abefgh"
    # Its past is there for the others, too, and what comes next goes behind it.
    await save(store, "fork2", Place(B, A, ((A, 2),), 6), "abefij", FORK)
    assert await letters(store, "fork2") == "abefij"


async def test_of_what_is_there_nothing_is_sent_again(store: RedisStore, relay: Relay) -> None:
    await store.put_back(1, read("root", ROOT, "ab"))
    await server().delete(f"{POINTER}root")
    relay.reset()

    await store.put_back(1, read("root", ROOT, "ab"))

    sent_again = relay.sent
    assert await letters(store, "root") == "ab"
    assert await server().lrange(f"{TREE}:items:{A.hex}", 0, -1) != []
    await server().flushall()
    relay.reset()
    await store.put_back(1, read("root", ROOT, "ab"))
    assert relay.sent - sent_again > sum(len(json.dumps(item)) for item in items("ab"))


async def test_a_gap_is_a_miss_and_is_never_filled_wrongly(store: RedisStore) -> None:
    await save(store, "tip", TIP, "abcd", ROOT)

    assert await letters(store, "tip") is None
    await store.put_back(1, read("root", ROOT, "ab"))
    assert await letters(store, "tip") is None


async def test_two_that_copy_the_same_make_one_copy(store: RedisStore) -> None:
    await store.put_back(1, read("tip", TIP, "abcd"))
    await save(store, "root", ROOT, "ab")
    await save(store, "tip", TIP, "abcd", ROOT)

    assert await server().llen(f"{TREE}:items:{A.hex}") == 4
    assert [await letters(store, name) for name in ("root", "tip")] == ["ab", "abcd"]


async def test_a_response_without_items_of_its_own_is_its_parent_s_context(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")
    await save(store, "warm", Place(A, A, (), 2), "ab", ROOT)
    await save(store, "empty", Place(B, B, (), 0), "")

    assert (await letters(store, "warm"), await letters(store, "empty")) == ("ab", "")


async def test_another_project_finds_nothing(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")

    assert await letters(store, "root", project_id=2) is None


async def test_an_expired_response_is_not_found(store: RedisStore) -> None:
    await store.put_back(1, read("root", ROOT, "ab", seconds=-1))

    assert await letters(store, "root") is None


POINTING = {"version": 2, "project_id": 1, "response_id": "root", "place": ROOT, "input_end": 1, "expires_at": 2e10}
STRANGE_VALUES = [
    pytest.param(b"\x80\x04.", id="a pickle"),
    pytest.param(b"", id="nothing"),
    pytest.param(msgspec.msgpack.encode({**POINTING, "version": 1}), id="an older version"),
    pytest.param(msgspec.msgpack.encode({**POINTING, "version": 3}), id="a newer version"),
    pytest.param(msgspec.msgpack.encode({**POINTING, "place": None}), id="another shape"),
    pytest.param(msgspec.msgpack.encode({**POINTING, "project_id": 2}), id="another owner"),
    pytest.param(msgspec.msgpack.encode({**POINTING, "response_id": "other"}), id="another response"),
    pytest.param(msgspec.msgpack.encode({**POINTING, "expires_at": 1}), id="an expired one"),
    pytest.param(msgspec.msgpack.encode({**POINTING, "place": TIP}), id="a longer chain"),
    pytest.param(msgspec.msgpack.encode({**POINTING, "place": FORK}), id="another chain"),
]


@pytest.mark.parametrize("value", STRANGE_VALUES)
async def test_a_strange_pointer_is_a_miss(store: RedisStore, value: bytes) -> None:
    await save(store, "root", ROOT, "ab")
    await server().set(f"{POINTER}root", value)

    assert await letters(store, "root") is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"\x80\x04.", id="a pickle"),
        pytest.param(msgspec.msgpack.encode({"project_id": 2, "response": {"id": "root"}}), id="another owner's"),
        pytest.param(msgspec.msgpack.encode({"project_id": 1, "response": {"id": "other"}}), id="another response's"),
        pytest.param(msgspec.msgpack.encode({"project_id": 1}), id="another shape"),
    ],
)
async def test_a_strange_body_is_a_miss(store: RedisStore, value: bytes) -> None:
    await save(store, "root", ROOT, "ab")
    await server().set(f"{TREE}:body:root", value)

    assert await letters(store, "root") is None


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="evicted"),
        pytest.param([0], id="truncated"),
        pytest.param([0, b'{"type":"message","content":"x"}'], id="an entry without its owner"),
        pytest.param([0, b"12345678{}"], id="another owner's entry"),
        pytest.param([0, 0.5], id="half an entry"),
    ],
)
async def test_a_list_that_is_not_as_it_was_written_is_a_miss(store: RedisStore, entries: list[Any]) -> None:
    await save(store, "root", ROOT, "ab")
    key = f"{TREE}:items:{A.hex}"
    written = await server().lrange(key, 0, -1)
    await server().delete(key)
    for entry in entries:
        if isinstance(entry, float):
            entry = written[1][: int(len(written[1]) * entry)]
        await server().rpush(key, written[entry] if isinstance(entry, int) else entry)

    assert await letters(store, "root") is None


@pytest.mark.parametrize("key", [f"{POINTER}root", f"{TREE}:body:root", f"{TREE}:items:{A.hex}"])
async def test_a_value_of_another_type_is_a_miss_and_does_no_harm(store: RedisStore, key: str) -> None:
    await save(store, "root", ROOT, "ab")
    await server().delete(key)
    await server().hset(key, "field", "value")

    assert await letters(store, "root") is None
    await save(store, "tip", TIP, "abcd", ROOT)
    await store.put_back(1, read("root", ROOT, "ab"))
    # It still answers, so it is asked.
    assert await redis.answers()


async def test_a_forgotten_response_is_gone(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")

    assert await store.forget(1, Deleted({"root"}, {A: 0}, A))

    assert await letters(store, "root") is None
    content = [key for key in await server().keys() if b":body:" not in key and b":bytes:" not in key]
    assert content == [] and await server().get(f"{TREE}:body:root") == b""


async def test_of_a_chain_whose_end_was_deleted_the_beginning_stays(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")
    await save(store, "tip", TIP, "abcd", ROOT)

    await store.forget(1, Deleted({"tip"}, {A: 2}, A))

    assert (await letters(store, "root"), await letters(store, "tip")) == ("ab", None)


async def test_what_is_written_behind_its_deletion_does_not_come_back(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")
    await store.forget(1, Deleted({"tip", "fork"}, {A: 2, B: 0}, A))

    # The copy of a turn that had ended before; and of what somebody had read before.
    await save(store, "tip", TIP, "abcd", ROOT)
    await store.put_back(1, read("tip", TIP, "abcd"))
    await store.put_back(1, read("fork", FORK, "abef"))

    assert (await letters(store, "tip"), await letters(store, "fork")) == (None, None)
    assert await letters(store, "root") == "ab"
    assert await server().llen(f"{TREE}:items:{A.hex}") == 2
    assert not await server().exists(f"{TREE}:items:{B.hex}")


async def test_copies_go_by_themselves(store: RedisStore) -> None:
    await save(store, "root", ROOT, "ab")

    assert {await server().ttl(key) for key in await server().keys()} <= {86_400, 86_399}


async def test_a_chain_that_is_too_long_is_not_kept(store: RedisStore, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"redis_seconds": 10, "redis_chain_bytes": 400}}
    await save(store, "root", ROOT, "ab")
    assert await letters(store, "root") == "ab"

    await save(store, "tip", Place(A, A, (), 9), "abcdefghi", ROOT)

    assert await letters(store, "tip") is await letters(store, "root") is None
    await store.put_back(1, read("tip", Place(A, A, (), 9), "abcdefghi"))
    assert not await server().exists(f"{TREE}:items:{A.hex}")
    # Of what is short enough nothing is counted twice.
    for _again in range(5):
        await store.put_back(1, read("root", ROOT, "ab"))
    assert await letters(store, "root") == "ab"


async def test_nor_is_a_chain_with_a_value_that_is_too_long(store: RedisStore, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"redis_seconds": 10, "redis_value_bytes": 10}}

    await save(store, "root", ROOT, "ab")
    await store.put_back(1, read("root", ROOT, "ab"))

    assert await server().dbsize() == 0


@pytest.mark.parametrize("refusal", ["OOM", "READONLY"])
async def test_a_redis_that_takes_no_writes_is_read_all_the_same(
    store: RedisStore, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    await save(store, "root", ROOT, "ab")
    if refusal == "OOM":
        await server().config_set("maxmemory", 1)
    else:
        await server().replicaof("127.0.0.1", 1)
    try:
        await save(store, "tip", TIP, "abcd", ROOT)
        await store.put_back(1, read("tip", TIP, "abcd"))

        assert await letters(store, "root") == "ab"
        assert await letters(store, "tip") is None
    finally:
        await server().config_set("maxmemory", 0)
        await server().replicaof("NO", "ONE")


async def test_a_dead_redis_is_a_miss(store: RedisStore, settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": "redis://127.0.0.1:1/0"}

    await save(store, "root", ROOT, "ab")

    assert await letters(store, "root") is None
    assert not await store.forget(1, Deleted({"root"}, {A: 0}, A))


async def test_without_redis_nothing_is_looked_up(settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "REDIS_URL": ""}

    assert await RedisStore().load(1, "root") is None
