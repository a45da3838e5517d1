"""Turns on a model with several replicas: who is asked, who after whom, and for how long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from responses_ws.connection.chain import Chains
from responses_ws.engines.health import State
from responses_ws.engines.registry import registry
from responses_ws.protocol.errors import InvalidRequest, Overloaded, ServerError
from responses_ws.serving.admission import Principal
from tests.fakes.chat_server import MODEL, ChatServer
from tests.fakes.faults import FAULTS, Fault, chunk
from tests.waiting import until

from .replicas import replicas
from .turns import asked, events_of, response_of

EARLY = {
    "cut-early": Fault(end="abort"),
    "cut-after-head": Fault(pieces=[b": reading\n\n"], end="abort"),
    "cut-role-only": Fault(pieces=[chunk({"role": "assistant", "content": ""})], end="abort"),
    "error-first": Fault(pieces=[b'data: {"error":{"message":"full","code":503}}\n\n']),
}

IMPATIENT = {"engine_first_delta_seconds": 1.0}


@pytest.fixture
async def servers() -> AsyncIterator[list[ChatServer]]:
    async with asyncio.timeout(30), AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ChatServer(faults={**FAULTS, **EARLY})) for _ in range(2)]


def station(number: int) -> Any:
    return registry.station(str(number))


async def turn(principal: Principal, given: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return await response_of(asked(principal, given, model="m", store=False, **fields))


async def test_a_chain_and_its_forks_stay_where_they_are(principal: Principal, servers: list[ChatServer]) -> None:
    async with replicas(*servers):
        for _ in range(8):
            chains = Chains()
            first = await turn(principal, chains=chains)
            asked_before = [len(server.requests) for server in servers]

            for lane in ("one", "two", "three"):
                fork = await turn(principal, chains=chains, stream_id=lane, previous_response_id=first["id"])
                await turn(principal, chains=chains, stream_id=lane, previous_response_id=fork["id"])

            more = [len(server.requests) - before for server, before in zip(servers, asked_before, strict=True)]
            assert sorted(more) == [0, 6]


async def test_new_chains_are_spread_by_weight(principal: Principal, servers: list[ChatServer]) -> None:
    async with replicas(*servers, WEIGHT=[1, 3]):
        for _ in range(80):
            await turn(principal)

    # Drawn one by one, since nothing else runs: 20 and 60, and within reason.
    assert sum(len(server.requests) for server in servers) == 80
    assert 5 <= len(servers[0].requests) <= 38


async def test_new_chains_go_where_less_is_done(principal: Principal, servers: list[ChatServer]) -> None:
    async with replicas(*servers):
        busy = asyncio.create_task(turn(principal, "!tokens 100000 !rate 20 Go on"))
        await until(lambda: any(server.requests for server in servers), "the long turn")
        idle = next(server for server in servers if not server.requests)

        for _ in range(5):
            await turn(principal)

        assert len(idle.requests) == 5
        busy.cancel()
        await asyncio.wait([busy])


@pytest.mark.parametrize(
    "fault", ["overloaded", *EARLY], ids=["503", "cut before the head", "cut after it", "cut after a role", "error"]
)
async def test_another_replica_takes_what_one_has_not_begun(
    principal: Principal, servers: list[ChatServer], fault: str
) -> None:
    async with replicas(*servers, WEIGHT=[1000, 1], UPSTREAM=[f"fault:{fault}", MODEL]):
        chains = Chains()
        first = await turn(principal, "Say this", chains=chains)
        second = await turn(principal, "And that", chains=chains, previous_response_id=first["id"])

    assert (first["status"], second["status"]) == ("completed", "completed")
    assert first["model"] == "m"
    # The chain has moved: it does not go back to the first.
    assert [len(server.requests) for server in servers] == [1, 2]
    assert servers[0].requests[0]["messages"] == servers[1].requests[0]["messages"]


async def test_another_replica_takes_what_one_cannot_be_reached_for(
    principal: Principal, servers: list[ChatServer]
) -> None:
    async with replicas(*servers, WEIGHT=[1000, 1]):
        await servers[0].aclose()

        responses = [await turn(principal) for _ in range(5)]

        assert {response["status"] for response in responses} == {"completed"}
        assert station(0).condition.state is State.DOWN
        assert len(servers[1].requests) == 5


async def test_no_other_replica_goes_on_with_what_one_has_begun(
    principal: Principal, servers: list[ChatServer]
) -> None:
    async with replicas(*servers, WEIGHT=[1000, 1], UPSTREAM=["fault:cut", MODEL]):
        events = await events_of(asked(principal, "Hi", model="m", store=False))

        assert events[-1]["type"] == "response.failed"
        assert servers[1].requests == []
        # It may have been that one answer: a probe and a call will tell.
        await until(lambda: station(0).condition.state is State.TRIAL, "the probe")


async def test_a_replica_that_does_not_speak_is_not_given_one_chain_after_the_other(
    principal: Principal, servers: list[ChatServer]
) -> None:
    """It takes calls and lists its models, as a server does whose device hangs."""
    async with replicas(*servers, WEIGHT=[1000, 1], UPSTREAM=["fault:slow-head", MODEL], limits=IMPATIENT):
        with pytest.raises(ServerError):
            await turn(principal)
        await until(lambda: station(0).condition.state is State.TRIAL, "the probe")

        endings = await asyncio.gather(*(turn(principal) for _ in range(10)), return_exceptions=True)

    # The one that tried it, and the nine that did not.
    assert [type(ending) for ending in endings if isinstance(ending, Exception)] == [ServerError]
    assert [len(server.requests) for server in servers] == [2, 9]


async def test_a_refusal_of_the_call_itself_is_not_passed_on(principal: Principal, servers: list[ChatServer]) -> None:
    async with replicas(*servers, WEIGHT=[1000, 1], UPSTREAM=["fault:overlong", MODEL]):
        with pytest.raises(InvalidRequest, match="too long"):
            await turn(principal)

    assert servers[1].requests == []


async def test_where_all_are_down_the_answer_is_fast_and_says_when_to_come_back(principal: Principal) -> None:
    calls = 0

    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        # A probe is a GET.
        calls += (await reader.readline()).startswith(b"POST")
        writer.close()

    broken = [ChatServer(), ChatServer()]
    listeners = [await asyncio.start_server(slam, "127.0.0.1", 0) for _ in broken]
    for server, listener in zip(broken, listeners, strict=True):
        server.port = listener.sockets[0].getsockname()[1]
    async with replicas(*broken):
        with pytest.raises(Overloaded):
            await turn(principal)
        tried = calls

        # Down as they are, nobody is called for the turns that follow.
        for _ in range(20):
            with pytest.raises(Overloaded) as refused:
                await turn(principal)

        assert calls == tried
        assert int(refused.value.headers["retry-after"]) >= 1
    for listener in listeners:
        listener.close()
        await listener.wait_closed()


async def test_a_replica_that_is_back_is_found_by_a_probe(principal: Principal, servers: list[ChatServer]) -> None:
    port = servers[0].port
    async with replicas(servers[0]):
        await servers[0].aclose()
        with pytest.raises(Overloaded):
            await turn(principal)

        await servers[0].start(port)
        await until(lambda: station(0).condition.state is State.TRIAL, "the probe")
        response = await turn(principal)

        assert response["status"] == "completed"
        assert station(0).condition.state is State.WELL


async def test_a_chain_without_its_replica_moves_and_stays(principal: Principal, servers: list[ChatServer]) -> None:
    async with replicas(*servers):
        chains = Chains()
        response = await turn(principal, chains=chains)
        own, other = sorted(servers, key=lambda server: len(server.requests), reverse=True)
        port = own.port
        await own.aclose()
        response = await turn(principal, chains=chains, previous_response_id=response["id"])
        await own.start(port)
        await until(lambda: station(servers.index(own)).condition.state is State.TRIAL, "the probe")

        await turn(principal, chains=chains, previous_response_id=response["id"])

        assert [len(own.requests), len(other.requests)] == [1, 2]


async def test_an_engine_runs_no_more_calls_than_it_has_slots_for(
    principal: Principal, servers: list[ChatServer]
) -> None:
    async with replicas(servers[0], options=[{"CONCURRENCY": 1, "QUEUE": 1}]):
        running = asyncio.create_task(turn(principal, "!tokens 100000 !rate 20 Go on"))
        await until(lambda: servers[0].requests, "the first call")
        waiting = asyncio.create_task(turn(principal, "I can wait"))
        await until(lambda: station(0).slots.waiting, "the second one in line")

        with pytest.raises(Overloaded) as refused:
            await turn(principal)
        calls_meanwhile = len(servers[0].requests)
        running.cancel()
        response = await waiting

        assert (calls_meanwhile, response["status"]) == (1, "completed")
        assert int(refused.value.headers["retry-after"]) >= 1
        # That it is full says nothing of its health.
        assert station(0).condition.state is State.WELL
        assert (station(0).slots.running, station(0).slots.waiting) == (0, 0)
        await asyncio.wait([running])


async def test_what_one_replica_has_no_room_for_goes_to_another(
    principal: Principal, servers: list[ChatServer]
) -> None:
    async with replicas(*servers, options=[{"CONCURRENCY": 1, "QUEUE": 0}] * 2, WEIGHT=[1000, 1]):
        chains = Chains()
        first = await turn(principal, chains=chains)
        running = asyncio.create_task(turn(principal, "!tokens 100000 !rate 20", chains=chains, stream_id="other"))
        await until(lambda: len(servers[0].requests) == 2, "the call that fills it")

        second = await turn(principal, chains=chains, previous_response_id=first["id"])

        assert second["status"] == "completed"
        assert len(servers[1].requests) == 1
        running.cancel()
        await asyncio.wait([running])


async def test_a_client_that_leaves_the_line_leaves_no_trace(principal: Principal, servers: list[ChatServer]) -> None:
    async with replicas(servers[0], options=[{"CONCURRENCY": 1}]):
        running = asyncio.create_task(turn(principal, "!tokens 100000 !rate 20 Go on"))
        await until(lambda: servers[0].requests, "the first call")
        waiting = asyncio.create_task(turn(principal))
        await until(lambda: station(0).slots.waiting, "the second one in line")

        waiting.cancel()
        await asyncio.wait([waiting])
        left = station(0).slots.waiting
        running.cancel()
        await asyncio.wait([running])

        assert left == 0
        assert (await turn(principal))["status"] == "completed"
        assert len(servers[0].requests) == 2
