"""What a turn costs, counted: without a clock, so that a regression fails on any machine.

Where a figure has become smaller, make it smaller here. One that has grown is to be explained.
"""

import asyncio
import gc
import threading
import tracemalloc
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from responses_ws.engines.registry import EngineRegistry
from responses_ws.models import ApiKey
from responses_ws.protocol.items import calls_left_open, check_media_sizes, input_items
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tokenizer import Tokenizer
from responses_ws.rendering.tokens import TokenLog
from responses_ws.runtime import dbpool
from responses_ws.runtime.writer import writer
from responses_ws.serving.safety import Screening
from responses_ws.serving.sealed import opened_context, opened_input
from responses_ws.stores.memory import hot_tier
from responses_ws.stores.redis import RedisStore
from responses_ws.transports.authentication import _principal_of

from .counting import Calls, Client, Work, serving

EARLY, LATE = 5, 60
"""Turns of a chain that are compared."""
SECONDS = 30.0


def line(number: int) -> str:
    """What a turn brings: as long as every other, and like no other."""
    return f"[{number:04}] " + "The tool has found nothing of interest here. " * 8


def history(items: int) -> list[dict[str, str]]:
    """So many messages at once, as from a client that has been elsewhere."""
    return [{"role": "user" if number % 2 else "assistant", "content": line(number)} for number in range(items)]


def size_of(name: str) -> Any:
    """Note how long that argument of a call is."""
    return lambda frame: len(frame.f_locals[name])


async def turns_of(client: Client, calls: Calls, *, last: int, **fields: Any) -> list[Work]:
    """What each turn of a chain has done."""
    turns = []
    for number in range(last + 1):
        await client.turn(line(number), **fields)
        turns.append(calls.take())
    return turns


WATCHED = {
    Tokenizer.encode: lambda frame: frame.f_locals["text"],
    TokenLog.extended: lambda frame: (frame.f_locals["self"], len(frame.f_locals["ids"])),
    input_items: size_of("given"),
    **{check: size_of("items") for check in (check_media_sizes, calls_left_open, opened_input, opened_context)},
    Screening.admit: size_of("items"),
    ChatPrompt.extended: size_of("items"),
}
CHECKS = [check.__qualname__ for check in WATCHED if check not in (Tokenizer.encode, TokenLog.extended)]
_chains: dict[str, list[tuple[Work, int]]] = {}


@pytest.fixture
async def chain(settings: Any, api_key: ApiKey, journal: Any, model: str) -> list[tuple[Work, int]]:
    """Of each turn of a long chain what it has done, and how many bytes the client was sent. Made once."""
    if model not in _chains:
        turns = []
        async with serving(settings, api_key, **journal) as served, served.socket() as client:
            with Calls(WATCHED) as calls:
                for number in range(LATE + 1):
                    await client.turn(line(number), model=model)
                    turns.append((calls.take(), sum(client.frames)))
        _chains[model] = turns
    return _chains[model]


@pytest.mark.parametrize("model", ["ids"])
async def test_a_turn_encodes_what_is_new_and_nothing_is_encoded_twice(chain: list[tuple[Work, int]]) -> None:
    texts = [work.noted["Tokenizer.encode"] for work, _ in chain]
    extended = [work.noted["TokenLog.extended"] for work, _ in chain]

    assert [len(text) for text in texts[LATE]] == [len(text) for text in texts[EARLY]]
    everything = "".join(text for some in texts for text in some)
    assert [everything.count(line(number)) for number in range(LATE + 1)] == [1] * (LATE + 1)
    new = [sum(count for _, count in some) for some in extended]
    assert abs(new[LATE] - new[EARLY]) <= 4
    # The ids that an engine is sent are one piece of JSON, which grows where it lies.
    assert len({id(log.json().obj) for some in extended[1:] for log, _ in some}) == 1


@pytest.mark.parametrize("model", ["chat", "ids"])
async def test_a_turn_looks_at_what_is_new_and_sends_as_much_after_sixty_others(chain: list[tuple[Work, int]]) -> None:
    (early, sent_early), (late, sent_late) = chain[EARLY], chain[LATE]

    looked_at = {name: early.noted[name] for name in CHECKS}
    assert {name: late.noted[name] for name in CHECKS} == looked_at
    assert max(size for sizes in looked_at.values() for size in sizes) <= 2
    assert abs(sent_late - sent_early) <= 16


@pytest.mark.parametrize("model", ["chat", "ids"])
async def test_no_step_is_added_by_what_was_said_before(chain: list[tuple[Work, int]]) -> None:
    (early, _), (late, _) = chain[EARLY], chain[LATE]

    # There are 110 more items: of each a call at least, were they looked at. A coroutine may go on once more or less.
    assert abs(late.ours - early.ours) <= 55
    assert abs(late.made_by_us - early.made_by_us) <= 55


# 15 % above what it was when it was last looked at: 799 and 755, 1,210 and 1,214.
PER_TURN = [("chat", 919, 868), ("ids", 1392, 1396)]


@pytest.mark.parametrize(("model", "calls", "calls_of_c"), PER_TURN)
async def test_a_turn_makes_few_calls(chain: list[tuple[Work, int]], model: str, calls: int, calls_of_c: int) -> None:
    # The least of some: what is scheduled beside a turn may come to the next one.
    works = [work for work, _ in chain[EARLY : EARLY + 5]]

    assert min(work.ours for work in works) <= calls
    assert min(work.made_by_us for work in works) <= calls_of_c


async def test_a_chain_asks_one_post_a_turn_on_one_connection_and_looks_nothing_up_again(
    settings: Any, api_key: ApiKey, journal: Any
) -> None:
    looked_up = {EngineRegistry.resolve: lambda _frame: "route", _principal_of: lambda _frame: "key"}
    with Calls(looked_up) as calls:
        async with serving(settings, api_key, **journal) as served, served.socket() as client:
            first, *others = await turns_of(client, calls, last=10)

    assert set(first.noted) == {"EngineRegistry.resolve", "_principal_of"}
    assert [work.noted for work in others] == [{}] * 10
    assert (len(served.engine.bodies), served.engine.connections) == (11, 1)


UNSTORED = {"INSERT usagerecord": 1, "UPDATE usagerecord": 1}
STORED = UNSTORED | {"SELECT storeditem": 1, "UPDATE chain": 1, "INSERT storeditem": 1, "INSERT storedresponse": 1}
ELSEWHERE = STORED | {"SELECT storedresponse": 1, "SELECT storeditem": 2}
KINDS = {
    "unstored": ("commit", {"store": False}, False, UNSTORED, 2),
    "unstored, with a journal": ("journal", {"store": False}, False, {"INSERT usagerecord": 1}, 1),
    "stored": ("commit", {"store": True}, False, STORED, 2),
    # Sometimes the first commit takes the second one with it.
    "stored, with a journal": ("journal", {"store": True}, False, STORED, 2),
    "stored, continued from the database": ("commit", {"store": True}, True, ELSEWHERE, 2),
}


@pytest.mark.parametrize(("durability", "fields", "is_elsewhere", "statements", "commits"), KINDS.values(), ids=KINDS)
async def test_a_turn_costs_the_same_statements_at_any_length_and_none_in_the_event_loop(
    settings: Any,
    api_key: ApiKey,
    journal: Any,
    durability: str,
    fields: dict[str, Any],
    is_elsewhere: bool,
    statements: dict[str, int],
    commits: int,
) -> None:
    said: list[Counter[str]] = []
    began: list[int] = []
    sizes: list[int] = []
    async with serving(settings, api_key, **{**journal, "DURABILITY": durability}) as served:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(served.socket())
            for given in [line(0), line(1), line(2), history(200), line(4), line(5)]:
                if is_elsewhere:
                    hot_tier.clear()
                    client = await stack.enter_async_context(served.socket(after=client))
                served.statements.clear()
                await client.turn(given, **fields)
                await served.settled()
                said.append(served.statements.kinds())
                began.append(said[-1].pop("BEGIN"))
                sizes.append(sum(size for _, size in served.statements))

    # One of two: where the machine has stood still, a checkpoint was written as well.
    assert statements in said[1:3] and min(began[1:3]) <= commits
    assert statements in said[4:] and min(began[4:]) <= commits
    assert abs(min(sizes[4:]) - min(sizes[1:3])) <= 16
    assert served.statements.in_loop == []


async def test_turns_that_end_while_the_database_is_busy_share_one_commit(
    settings: Any, api_key: ApiKey, journal: Any
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def is_busy() -> None:
        has_begun.set()
        may_end.wait(SECONDS)

    async with serving(settings, api_key, **journal) as served, served.socket() as client:
        await client.turn(line(0))
        await served.settled()
        writer.submit(is_busy)
        assert await asyncio.to_thread(has_begun.wait, SECONDS)
        served.statements.clear()
        for number in range(1, 11):
            await client.turn(line(number))
        may_end.set()
        await served.settled()

    kinds = served.statements.kinds()
    assert (kinds["BEGIN"], kinds["INSERT usagerecord"]) == (1, 10)


TO_REDIS = {
    AbstractConnection.pack_command: lambda frame: frame.f_locals["args"],
    AbstractConnection.pack_commands: size_of("commands"),
}


def asked_of_redis(work: Work) -> tuple[int, int]:
    """(round trips, bytes) without what a new connection begins with. A pipeline is one."""
    said = [args for args in work.noted["AbstractConnection.pack_command"] if args[0] not in ("HELLO", "CLIENT")]
    pipelines = work.noted["AbstractConnection.pack_commands"]
    size = sum(len(word) for args in said for word in args if isinstance(word, str | bytes))
    return len(said) - sum(pipelines) + len(pipelines), size


async def test_a_turn_costs_the_same_round_trips_to_redis_at_any_length_and_two_more_elsewhere(
    settings: Any, api_key: ApiKey, redis_url: str
) -> None:
    rates = {"requests_per_minute": 10**6, "tokens_per_minute": 10**9, "concurrent_turns": 1000}
    here: list[tuple[int, int]] = []
    elsewhere: list[tuple[int, int]] = []
    with Calls(TO_REDIS) as calls:
        async with serving(settings, api_key, REDIS_URL=redis_url, RATES=rates) as served:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(served.socket())
                for given in [line(0), line(1), history(200), line(3)]:
                    for asked in (here, elsewhere):
                        await client.turn(given, store=True)
                        await served.settled()
                        asked.append(asked_of_redis(calls.take()))
                        client = await stack.enter_async_context(served.socket(after=client))
                        if asked is here:
                            hot_tier.clear()

    (trips, size), (late_trips, late_size) = here[1], here[3]
    assert trips == late_trips <= 5
    assert abs(late_size - size) <= 16
    assert elsewhere[1][0] == elsewhere[3][0] == trips + 2


async def test_only_what_is_new_is_sealed_for_a_client_that_may_come_back(
    settings: Any, api_key: ApiKey, journal: Any, redis_url: str
) -> None:
    api_key.project.sealed_fallback = True
    await dbpool.run(api_key.project.save)
    watched = {RedisStore._sealed: size_of("value"), RedisStore._opened: size_of("value")}
    with Calls(watched) as calls:
        async with serving(settings, api_key, **journal, REDIS_URL=redis_url) as served:
            async with served.socket() as client:
                turns = []
                for number in range(21):
                    await client.turn(line(number))
                    await served.settled()
                    turns.append(calls.take())

    # Its three items, the response and where that is.
    assert len(turns[EARLY].noted["RedisStore._sealed"]) == 5
    assert [work.noted for work in turns[EARLY:]] == [turns[EARLY].noted] * (21 - EARLY)


async def test_a_socket_is_one_task_a_running_turn_two_more_and_no_thread(
    settings: Any, api_key: ApiKey, journal: Any
) -> None:
    async with serving(settings, api_key, **journal) as served, served.socket() as client:
        for number in range(3):
            await client.turn(line(number))
        before, threads = asyncio.all_tasks(), set(threading.enumerate())
        async with AsyncExitStack() as stack:
            sockets = [await stack.enter_async_context(served.socket()) for _ in range(50)]
            idle = asyncio.all_tasks() - before
            served.engine.is_held = True
            for socket in sockets:
                await socket.create(input="Go on.")
                await socket.until(b"response.output_text.delta")
            running = asyncio.all_tasks() - before - idle
            more_threads = set(threading.enumerate()) - threads
        async with asyncio.timeout(SECONDS):
            # All of them go, or this test ends here.
            while asyncio.all_tasks() - before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    assert len(idle) == 50
    names = Counter(task.get_coro().__qualname__ for task in running)  # type: ignore[union-attr]
    # One of the process, which looks at all that run.
    names.pop("Checkpointer._run", None)
    assert names == {"ResponsesConsumer._run": 50, "SamplingStep._read": 50}
    # The pool for the database takes its time to be complete.
    assert len(more_threads) < 5


SENDING = ("wire.", "http.", "calls.", "sampling.")


def steps(work: Work) -> int:
    """Calls of ours but for those that send a prompt: a long one is many writes, each of which may have to wait."""
    return work.ours - sum(count for name, count in work.by_name.items() if name.startswith(SENDING))


MEMORY = [
    # Items, and the messages made of them.
    pytest.param("chat", 2.05, id="chat"),
    # And the ids, which are as long as the words that they stand for.
    pytest.param("ids", 3.2, id="ids", marks=pytest.mark.chaos),
]


@pytest.mark.parametrize(("model", "times"), MEMORY)
async def test_ten_megabytes_of_items_add_no_step_and_are_kept_so_many_times(
    settings: Any, api_key: ApiKey, journal: Any, model: str, times: float
) -> None:
    async with serving(settings, api_key, **journal) as served, served.socket() as client:
        with Calls() as calls:
            turns = await turns_of(client, calls, last=EARLY, model=model)
        size = 0
        tracemalloc.start()
        try:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for number in range(10):
                size += len(line(number)) * 2800
                await client.turn(line(number) * 2800, model=model)
            with Calls() as calls:
                turns += await turns_of(client, calls, last=2, model=model)
            await served.settled()
            async with asyncio.timeout(SECONDS):
                # It holds the turn that it has looked at last, until it finds that there is none.
                while any("Checkpointer" in str(task) for task in asyncio.all_tasks()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            gc.collect()
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()

    assert size > 10_000_000
    assert kept <= times * size
    assert steps(turns[-1]) <= 1.1 * steps(turns[EARLY])


@pytest.mark.chaos
@pytest.mark.parametrize("model", ["chat", "ids"])
async def test_five_hundred_turns_add_no_step(settings: Any, api_key: ApiKey, journal: Any, model: str) -> None:
    async with serving(settings, api_key, **journal) as served, served.socket() as client:
        with Calls() as calls:
            turns = await turns_of(client, calls, last=EARLY, model=model)
        for number in range(500):
            await client.turn(line(number), model=model)
        with Calls() as calls:
            turns += await turns_of(client, calls, last=2, model=model)

    assert turns[-1].ours <= 1.1 * turns[EARLY].ours
    assert turns[-1].made_by_us <= 1.1 * turns[EARLY].made_by_us
