import asyncio

import pytest

from responses_ws.engines.base import EngineError
from responses_ws.engines.http import HttpClient
from responses_ws.engines.openai_chat import OpenAIChat
from responses_ws.protocol.sampling import Finished, TextDelta
from responses_ws.testing import chat_request, collect
from tests.fakes.faults import DONE, TEXT, chunk

from .wires import DEADLINE, OK, RawServer, always, answered, chunked, served

EVENTS = chunk(TEXT) + chunk(finish="stop") + DONE


@pytest.mark.parametrize("path", ["/x", "http://127.0.0.1:{port}/health"])
async def test_a_call_is_one_request_with_all_that_servers_want(path):
    seen = []

    async def conduct(caller):
        seen.append(await caller.asked())
        await caller.say(answered(b"hello"))

    async with served(conduct, api_key="secret", headers={"X-Team": "blue", "accept": "text/plain"}) as (
        server,
        client,
    ):
        path = path.format(port=server.port)
        assert await client.ask(path, [b'{"a":', b"1}"], seconds=DEADLINE) == b"hello"

        ((head, body),) = seen
        lines = head.decode().split("\r\n")
        assert body == b'{"a":1}'
        assert lines[0] == f"POST {'/v1/x' if path == '/x' else '/health'} HTTP/1.1"
        assert sorted(line for line in lines[1:] if not line.startswith("User-Agent: responses_ws/")) == [
            "",
            "",
            "Accept-Encoding: identity",
            "Authorization: Bearer secret",
            "Content-Length: 7",
            "Content-Type: application/json",
            f"Host: 127.0.0.1:{server.port}",
            "X-Team: blue",
            "accept: text/plain",
        ]


async def test_a_password_in_the_url_is_sent_and_not_told():
    seen = []

    async def conduct(caller):
        seen.append(await caller.head())

    async with RawServer(conduct) as server:
        client = HttpClient(server.url.replace("://", "://us%40er:pass@"))
        with pytest.raises(EngineError) as caught:
            await client.get("/models", seconds=DEADLINE)
        await client.aclose()

    assert b"\r\nAuthorization: Basic dXNAZXI6cGFzcw==\r\n" in seen[0]
    assert b"pass" not in seen[0] and "pass" not in caught.value.message


@pytest.mark.parametrize(
    "options",
    [
        {"HEADERS": {"X-Team": "blue\r\nX-Evil: 1"}},
        {"HEADERS": {"X-Team": "blue\n"}},
        {"HEADERS": {"X-Team": "blue\0"}},
        {"HEADERS": {"X-Team: blue\r\nX-Evil": "1"}},
        {"HEADERS": {"X Team": "blue"}},
        {"HEADERS": {"": "blue"}},
        {"HEADERS": {"Content-Length": "1"}},
        {"HEADERS": {"transfer-encoding": "chunked"}},
        {"API_KEY": "secret\n"},
    ],
)
def test_headers_that_would_be_more_than_headers_are_refused_in_the_settings(options):
    with pytest.raises(ValueError, match="HEADERS|header"):
        OpenAIChat("main", {"BASE_URL": "http://127.0.0.1/v1", **options})


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://a/v1",
        "http:///v1",
        "http://a:port/v1",
        "http://a:99999/v1",
        "http://a b/v1",
        "http://a/v1 ",
        "http://a/\r\nX-Evil: 1",
        "http://a/v1?key=1",
        "http://a/v1#here",
        f"http://{'a' * 64}/v1",
    ],
)
def test_urls_that_cannot_be_called_are_refused_in_the_settings(url):
    with pytest.raises(ValueError, match="BASE_URL"):
        OpenAIChat("main", {"BASE_URL": url})


async def test_a_header_of_one_call_that_would_be_more_is_refused():
    async with served(always(answered(b""))) as (server, client):
        with pytest.raises(EngineError, match="X-Id"):
            await client.post("/x", b"{}", {"X-Id": "a\r\nX-Evil: 1"})

        assert server.connections == 0


async def test_a_redirect_is_a_refusal():
    async with RawServer(always(answered(b"hello"))) as other:
        moved = answered(b"", b"Location: " + other.url.encode(), start=b"HTTP/1.1 307 Temporary Redirect")
        async with served(always(moved)) as (server, client):
            for call in (client.get("/models", seconds=DEADLINE), client.ask("/x", b"{}", seconds=DEADLINE)):
                with pytest.raises(EngineError) as caught:
                    await call

                assert (caught.value.kind, caught.value.status) == ("protocol", 307)
        assert other.connections == 0


@pytest.mark.parametrize(
    ("start", "kind", "message"),
    [
        (b"HTTP/1.1 200 OK", "protocol", "compresses its answer (gzip)"),
        (b"HTTP/1.1 503 Service Unavailable", "overloaded", "answered 503"),
    ],
)
async def test_what_is_compressed_is_not_read(start, kind, message):
    answer = answered(b"\x1f\x8b\x08\x00", b"Content-Type: text/event-stream", b"Content-Encoding: GZIP", start=start)
    async with RawServer(always(answer)) as server:
        engine = OpenAIChat("main", {"BASE_URL": server.url})
        with pytest.raises(EngineError) as caught:
            await collect(engine, chat_request("Hi", model="m"))
        await engine.aclose()

    assert caught.value.kind == kind
    assert message in caught.value.message


async def test_events_in_the_smallest_of_chunks_are_events():
    answer = chunked(*(EVENTS[at : at + 1] for at in range(len(EVENTS))))
    async with RawServer(always(answer)) as server:
        engine = OpenAIChat("main", {"BASE_URL": server.url})
        deltas = await collect(engine, chat_request("Hi", model="m"))
        await engine.aclose()

    assert deltas == [TextDelta("Hello"), Finished("stop", None)]


async def test_calls_that_run_when_the_client_is_closed_end():
    async with served(always(OK + b"Content-Length: 9\r\n\r\nhello")) as (_, client):
        answer = await client.post("/x", b"{}")
        await answer.read()
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        await client.aclose()

        with pytest.raises(EngineError):
            await reading


async def test_a_call_that_waits_when_the_client_is_closed_is_not_made_again():
    arrived = asyncio.Event()

    async def conduct(caller):
        await caller.asked()
        arrived.set()
        await caller.left()

    async with served(conduct) as (server, client):
        asking = asyncio.create_task(client.post("/x", b"{}"))
        await arrived.wait()
        await client.aclose()

        with pytest.raises(EngineError, match="was closed"):
            await asking
        assert server.connections == 1


async def test_a_call_that_is_left_before_its_head_is_whole_is_left_at_once():
    arrived, left = asyncio.Event(), asyncio.Event()

    async def conduct(caller):
        await caller.asked()
        await caller.say(OK)
        arrived.set()
        await caller.left()
        left.set()

    async with served(conduct) as (_, client):
        asking = asyncio.create_task(client.ask("/x", b"{}", seconds=DEADLINE))
        await arrived.wait()
        asking.cancel()

        await left.wait()
        assert asking.cancelled()


async def test_a_question_has_its_time():
    async with served(always(OK)) as (_, client):
        for asking in (client.ask("/x", b"{}", seconds=0.05), client.get("/x", seconds=0.05)):
            with pytest.raises(EngineError, match="TimeoutError") as caught:
                await asking

            assert caught.value.kind == "unavailable"
