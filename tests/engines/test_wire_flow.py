import asyncio

import pytest

from responses_ws.engines.base import EngineError

from .wires import DEADLINE, OK, always, answered, served

MIB = 1024 * 1024


async def test_an_engine_that_is_not_read_is_held_back():
    size, sent = 64 * MIB, 0

    async def conduct(caller):
        nonlocal sent
        if caller.number > 1:
            return await always(answered(b"hello"))(caller)
        await caller.asked()
        await caller.say(OK + b"Content-Length: %d\r\n\r\n" % size)
        while sent < size:
            await caller.say(b"x" * MIB)
            sent += MIB

    async with served(conduct) as (_, client):
        answer = await client.post("/x", b"{}")
        for _ in range(200):
            await client.ask("/x", b"{}", seconds=DEADLINE)
        sent_unread = sent
        body = await answer.read_all(2 * size)
        answer.give_back()

        # What the kernel holds for both sides is some MiB.
        assert sent_unread < 32 * MIB
        assert len(body) == size


@pytest.mark.parametrize("mib", [1, 2, 48])
async def test_a_large_body_arrives_as_fast_as_it_is_taken(mib):
    body = [b"[", b"x" * (mib * MIB), b"]"]
    client_holds = []

    async def conduct(caller):
        head = await caller.head()
        (connection,) = client._pool.connections
        size = 0
        while size < mib * MIB + 2:
            size += len(await caller.reader.read(MIB))
            client_holds.append(connection._transport.get_write_buffer_size())
        assert b"Content-Length: %d\r\n" % size in head
        await caller.say(answered(b"%d" % size))

    async with served(conduct) as (_, client):
        assert await client.ask("/x", body, seconds=DEADLINE) == b"%d" % (mib * MIB + 2)
        assert max(client_holds) <= MIB + 1024


async def test_a_refusal_of_a_body_that_is_still_being_sent_is_heard():
    async def conduct(caller):
        await caller.head()
        await caller.say(answered(b'{"error":"too large"}', start=b"HTTP/1.1 413 Content Too Large"))
        await asyncio.Event().wait()

    async with served(conduct) as (server, client):
        for _ in range(2):
            with pytest.raises(EngineError) as caught:
                await client.ask("/x", b"x" * (64 * MIB), seconds=DEADLINE)

            assert (caught.value.status, caught.value.message) == (413, "too large")
        assert server.connections == 2


async def test_an_answer_that_begins_before_the_body_is_sent_stops_nothing():
    size = 16 * MIB

    async def conduct(caller):
        await caller.head()
        await caller.say(OK + b"Content-Length: 5\r\n\r\n")
        await caller.reader.readexactly(size)
        await caller.say(b"hello")

    async with served(conduct) as (_, client):
        assert await client.ask("/x", b"x" * size, seconds=DEADLINE) == b"hello"
