import asyncio
import contextlib
import random

import pytest

from responses_ws.engines import pool, wire
from responses_ws.engines.base import EngineError
from responses_ws.engines.http import STALE_TRIES
from tests.waiting import until

from .wires import DEADLINE, OK, always, answered, chunked, served

MIB = 1024 * 1024
HEAD_TOO_LONG = b"x" * (wire.MAX_HEAD_BYTES // 8)


async def call(client, body=b"{}"):
    """Status and body of a call that is read to its end."""
    answer = await client.post("/x", body)
    try:
        return answer.status, await answer.read_all(64 * MIB)
    finally:
        answer.give_back()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (answered(b"hello"), b"hello"),
        (answered(b""), b""),
        (answered(b"hello", start=b"HTTP/1.0 200 OK"), b"hello"),
        (answered(b"hello", start=b"HTTP/1.1 200"), b"hello"),
        (answered(b"hello", b"X-Empty:", b"Content-Encoding: identity"), b"hello"),
        (chunked(b"hel", b"lo"), b"hello"),
        (chunked(b"hel", b"lo", trailers=b"X-After: all\r\n"), b"hello"),
        (OK + b'Transfer-Encoding: chunked\r\n\r\n5;why=not;so="x"\r\nhello\r\n0\r\n\r\n', b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answered(b"hello"), b"hello"),
        (b"HTTP/1.1 103 Early Hints\r\nContent-Length: 7\r\n\r\nHTTP/1.1 102 P\r\n\r\n" + chunked(b"hello"), b"hello"),
    ],
    ids=[
        "length",
        "nothing",
        "1.0",
        "wordless",
        "odd fields",
        "chunks",
        "trailers",
        "extensions",
        "100",
        "103 and 102",
    ],
)
@pytest.mark.parametrize("by_byte", [False, True], ids=["at once", "byte by byte"])
async def test_an_answer_is_read_however_it_comes(answer, body, by_byte):
    async def conduct(caller):
        while True:
            await caller.asked()
            for start in range(0, len(answer), 1 if by_byte else len(answer)):
                await caller.say(answer[start:][: 1 if by_byte else None])
                await asyncio.sleep(0)

    async with served(conduct) as (_, client):
        for _ in range(2):
            assert await call(client) == (200, body)


@pytest.mark.parametrize("start", [OK, b"HTTP/1.0 200 OK\r\n"])
async def test_a_body_may_end_with_its_connection(start):
    async def conduct(caller):
        await caller.asked()
        await caller.say(start + b"Content-Type: text/plain\r\n\r\nhel")
        await caller.say(b"lo")

    async with served(conduct) as (server, client):
        assert await call(client) == await call(client) == (200, b"hello")
        assert server.connections == 2


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_without_a_body_has_none_whatever_it_says(status):
    answer = b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\n"
    async with served(always(answer)) as (server, client):
        assert await call(client) == await call(client) == (int(status[:3]), b"")
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>what?</html>",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"HTTP/1.1 9999 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nhi" + answered(b"hi"),
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi!",
        OK + b"Content-Length: -2\r\n\r\nhi",
        OK + b"Content-Length: 0x2\r\n\r\nhi",
        OK + b"Content-Length: 99999999999999999999\r\n\r\nhi",
        OK + b"Transfer-Encoding: gzip\r\n\r\nhi",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        OK + b"Content-Length : 2\r\n\r\nhi",
        OK + b"X: a\x00b\r\nContent-Length: 2\r\n\r\nhi",
        OK + b"X: a\r\n folded\r\nContent-Length: 2\r\n\r\nhi",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-2\r\nhi\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\nhi\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhi\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi!!0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
        OK + b"Content-Length: 5\r\n\r\nhel",
        OK + b"Content-Le",
        b"H",
    ],
)
async def test_what_is_no_answer_is_told_and_asked_once(answer):
    async def conduct(caller):
        await caller.asked()
        await caller.say(answer)

    async with served(conduct) as (server, client):
        with pytest.raises(EngineError) as caught:
            await call(client)

        assert caught.value.kind == "unavailable"
        assert "the connection to the engine broke" in caught.value.message
        assert server.connections == 1


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"HTTP/1.1 200 ", HEAD_TOO_LONG),
        (OK + b"X: ", HEAD_TOO_LONG),
        (OK, b"X: " + HEAD_TOO_LONG + b"\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\nX: " + HEAD_TOO_LONG + b"\r\n\r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5;", HEAD_TOO_LONG),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: ", HEAD_TOO_LONG),
    ],
    ids=["status line", "field", "fields", "100s", "chunk extension", "trailer"],
)
async def test_what_is_said_beside_the_body_has_a_bound(begin, more):
    async def conduct(caller):
        await caller.asked()
        await caller.say(begin)
        while True:
            await caller.say(more)

    async with served(conduct) as (server, client):
        with pytest.raises(EngineError, match="without any of a body"):
            await call(client)

        assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (answered(b"mine"), 1),
        (chunked(b"mine", trailers=b"X-After: all\r\n"), 1),
        (answered(b"mine", b"Connection: keep-alive", start=b"HTTP/1.0 200 OK"), 1),
        (answered(b"mine", start=b"HTTP/1.0 200 OK"), 2),
        (answered(b"mine", b"Connection: close"), 2),
        (answered(b"mine") + answered(b"not mine"), 2),
        (chunked(b"mine") + answered(b"not mine"), 2),
        (answered(b"mine") + b"!", 2),
        (answered(b"mine") + b"HTTP/1.1 200 OK\r\nContent-Le", 2),
    ],
    ids=["length", "chunks", "1.0 keeps", "1.0", "close", "two", "chunks and one", "garbage", "a beginning"],
)
async def test_a_connection_serves_again_only_where_the_next_answer_is_sure_to_be_the_next(answer, connections):
    async with served(always(answer)) as (server, client):
        assert await call(client) == await call(client) == (200, b"mine")
        assert server.connections == connections


async def test_fields_behind_a_body_are_of_no_answer():
    async def conduct(caller):
        await caller.asked()
        await caller.say(chunked(b"a", trailers=b"Content-Type: text/html\r\n"))
        await caller.asked()
        await caller.say(answered(b"b"))

    async with served(conduct) as (_, client):
        first = await client.post("/x", b"{}")
        await first.read_all(MIB)
        told = first.headers
        first.give_back()
        second = await client.post("/x", b"{}")

        assert (told, second.headers) == ({"transfer-encoding": "chunked"}, {"content-length": "1"})


@pytest.mark.parametrize("said", [answered(b"not mine"), b"!"], ids=["an answer", "garbage"])
async def test_what_is_said_between_two_calls_is_no_answer_to_the_second(said):
    has_spoken = asyncio.Event()

    async def conduct(caller):
        await caller.asked()
        await caller.say(answered(b"mine"))
        if caller.number == 1:
            await caller.say(said)
            await caller.left()
            has_spoken.set()

    async with served(conduct) as (server, client):
        await call(client)
        await has_spoken.wait()

        assert await call(client) == (200, b"mine")
        assert server.connections == 2


async def test_a_server_that_speaks_first_is_not_listened_to():
    async def conduct(caller):
        await caller.say(answered(b"not mine"))
        await caller.left()

    async with served(conduct) as (_, client):
        fresh = client.new_pool()
        connection = await fresh.connect()
        await until(lambda: not fresh.connections, "its end")

        with pytest.raises(ConnectionError):
            await connection.send(b"POST / HTTP/1.1\r\n\r\n", (), 0)


@pytest.mark.parametrize("rude", [False, True], ids=["closed", "reset"])
async def test_a_connection_that_ends_without_a_word_is_tried_again_and_again_but_not_for_ever(rude):
    async def conduct(caller):
        await caller.asked()
        if rude:
            caller.reset()

    async with served(conduct) as (server, client):
        with pytest.raises(EngineError) as caught:
            await call(client)

        assert caught.value.kind == "unavailable"
        assert server.connections == 1 + STALE_TRIES


async def test_what_came_before_a_reset_counts():
    async def conduct(caller):
        await caller.asked()
        await caller.say(OK + b"Content-Length: 99\r\n\r\nhello")
        await caller.head()
        caller.reset()

    async with served(conduct) as (server, client):
        answer = await client.post("/x", b"{}")
        read = await answer.read()
        answer._transport.write(b"go on\r\n\r\n")

        with pytest.raises(EngineError) as caught:
            await answer.read()

        assert (read, caught.value.kind, server.connections) == (b"hello", "unavailable", 1)


async def test_a_server_that_closes_while_nobody_asks_fails_no_call():
    ended = asyncio.Event()

    async def conduct(caller):
        await caller.asked()
        await caller.say(answered(b"hello"))
        # Half of it: the server would still read.
        caller.writer.write_eof()
        await caller.left()
        ended.set()

    async with served(conduct) as (server, client):
        for number in (1, 2, 3):
            assert await call(client) == (200, b"hello")
            await ended.wait()
            ended.clear()
            assert server.connections == number


async def test_a_connection_idle_for_long_is_closed(monkeypatch):
    monkeypatch.setattr(pool, "SECONDS_IDLE", 0.05)
    left = asyncio.Queue()

    async def conduct(caller):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await caller.asked():
                await caller.say(answered(b"hello"))
        left.put_nowait(caller.number)

    async with served(conduct) as (_, client):
        await asyncio.gather(call(client), call(client))

        assert {await left.get(), await left.get()} == {1, 2}


@pytest.mark.parametrize("ends", [True, False])
async def test_the_end_of_a_body_is_waited_for_for_a_moment(monkeypatch, ends):
    monkeypatch.setattr(wire, "SECONDS_TO_DRAIN", DEADLINE if ends else 0.05)
    may_end = asyncio.Event()

    async def conduct(caller):
        while True:
            await caller.asked()
            await caller.say(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            if ends:
                await may_end.wait()
                await caller.say(b"5\r\nagain\r\n0\r\n\r\n")
            else:
                await caller.left()

    async with served(conduct) as (server, client):
        answer = await client.post("/x", b"{}")
        assert await answer.read() == b"hello"
        answer.give_back(is_done=True)
        (connection,) = client._pool.connections
        may_end.set()
        await until(lambda: not connection._is_busy or connection not in client._pool.connections, "its end")
        (await client.post("/x", b"{}")).close()

        assert server.connections == (1 if ends else 2)


async def test_a_thousand_calls_take_one_connection():
    async with served(always(chunked(b"hello"))) as (server, client):
        for _ in range(1000):
            assert await call(client) == (200, b"hello")
        assert server.connections == 1


async def echo(caller):
    while True:
        _, body = await caller.asked()
        await caller.say(chunked(body[:3], body[3:]))


async def test_two_hundred_calls_at_once_get_their_own_answers():
    async with served(echo) as (server, client):
        bodies = [b"call %d" % number for number in range(200)]

        assert await asyncio.gather(*(call(client, body) for body in bodies)) == [(200, body) for body in bodies]
        assert server.connections <= 200


async def test_calls_that_are_cancelled_at_any_moment_leave_no_answer_to_the_next():
    dice = random.Random(7)

    async def cancelled(client, number):
        task = asyncio.create_task(call(client, b"lost %d" % number))
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async with served(echo) as (_, client):
        for round in range(40):
            await asyncio.gather(*(cancelled(client, number) for number in range(10)))
            assert await call(client, b"kept %d" % round) == (200, b"kept %d" % round)
        kept = client._pool
        await until(lambda: len(kept.connections) == len(kept._idle), "no connection but idle ones")
