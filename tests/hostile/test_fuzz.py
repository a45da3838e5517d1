"""Frames by a grammar, and what chance makes of them: errors, and nothing else."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.grammar import check_turn
from tests.conformance.raw import Door, Socket
from tests.live import Server

from .conftest import Vitals

pytestmark = pytest.mark.stack

MIB = 1024 * 1024
ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**53, -(2**63), 10**40, "", "x", "\0", "\ud7ff\ue000", "é" * 50, [], {}, [[]], [{}]),
    *("resp_x", "auto", "none", "user", "message", "function_call_output", "input_text", ["x"] * 50, {"type": "x"}),
]
RAW = [
    "NaN",
    "1e999",
    "-1e999",
    "1" * 5000,
    "[" * 5000,
    '"\\ud800"',
    '"\\u0000"',
    "{",
    "nul",
    "0x1",
    '{"a":1,"a":2}',
    "\x0b",
]
NAMES = (
    *("stream_id", "previous_response_id", "tools", "tool_choice", "text", "reasoning", "metadata", "include", "input"),
    *("temperature", "max_output_tokens", "truncation", "conversation", "prompt", "background", "context_management"),
    *("moderation", "instructions", "stream", "model", "response_id", "user", "\ud7ff"),
)
TYPES = ["response.create", "response.steer", "response.append", "response.processed", "response.cancel", "", 7, None]


def item(chance: random.Random) -> dict[str, Any]:
    kinds = ["message", "function_call", "function_call_output", "reasoning", "item_reference", "compaction", "x"]
    return {
        "type": chance.choice(kinds),
        "role": chance.choice(["user", "assistant", "system", "developer", 7]),
        "content": chance.choice(["hello", [{"type": "input_text", "text": "hello"}], *ODD]),
        "id": chance.choice(ODD),
        "call_id": chance.choice(["c", *ODD]),
        "output": chance.choice(ODD),
    }


def event(chance: random.Random) -> dict[str, Any]:
    """One that is nearly right, in some way that chance decides."""
    made: dict[str, Any] = {
        "type": chance.choices(TYPES, [90, 5, 3, 3, 1, 1, 1, 1])[0],
        "model": "scripted",
        "store": False,
        "input": chance.choice(["!tokens 2", [item(chance) for _ in range(chance.randrange(4))]]),
        "generate": chance.choice([False, False, None]),
    }
    for _ in range(chance.randrange(4)):
        made[chance.choice(NAMES)] = chance.choice(ODD)
    return made


def frame(chance: random.Random) -> str:
    text = json.dumps(event(chance))
    way = chance.randrange(10)
    if way == 0:
        position = chance.randrange(len(text))
        return text[:position] + chance.choice(RAW) + text[position + chance.randrange(5) :]
    if way == 1:
        return text[: chance.randrange(len(text))]
    if way == 2:
        return text.replace('"scripted"', chance.choice(RAW), 1)
    return text


async def works(socket: Socket) -> bool:
    """Answers to all before may still be coming; this one has a lane of its own."""
    await socket.create(input="!tokens 1", store=False, stream_id="well")
    while True:
        told = json.loads(await socket.connection.recv())
        if told.get("stream_id") == "well" and told["type"] in ("response.completed", "error"):
            return bool(told["type"] == "response.completed")


async def fuzz(door: Door, server: Server, vitals: Vitals, figure: Callable[..., None], count: int) -> None:
    chance = random.Random(20261130)
    before, said = vitals.memory, len(server.output())
    sent = sockets = 0
    while sent < count:
        sockets += 1
        async with door.socket(ping_interval=None) as socket:
            for _ in range(min(500, count - sent)):
                sent += 1
                await socket.connection.send(frame(chance))
                if chance.randrange(20) == 0:
                    # Read, or the server would wait for us.
                    assert await works(socket), f"after frame {sent}"
            assert await works(socket)
    async with door.socket() as socket:
        check_turn(await socket.turn(input="hello", store=False))
    grown = vitals.memory - before

    trouble = server.trouble(said)
    figure(
        9,
        f"{count} frames by chance",
        target="0 tracebacks, 0 closes, RSS + < 20 MB",
        measured=f"{len(trouble)} tracebacks, RSS + {grown / 1e6:.1f} MB",
        sockets=sockets,
    )
    assert trouble == []
    assert grown < 60e6


async def test_frames_by_chance(door: Door, server: Server, vitals: Vitals, figure: Callable[..., None]) -> None:
    await fuzz(door, server, vitals, figure, 2000)


@pytest.mark.chaos
async def test_very_many_frames_by_chance(
    door: Door, server: Server, vitals: Vitals, figure: Callable[..., None]
) -> None:
    await fuzz(door, server, vitals, figure, 20_000)
