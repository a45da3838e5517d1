"""Workers behind one socket tell each other what they have counted."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from responses_ws.runtime import siblings as module
from responses_ws.runtime.siblings import Siblings


async def serve_at(path: Path, answer: bytes | None) -> asyncio.Server:
    """Another worker; with None, one whose loop is blocked."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    return await asyncio.start_unix_server(handle, path)


async def test_everybody_else_is_asked(tmp_path: Path) -> None:
    ours = Siblings()
    ours.meet_in(tmp_path)
    await ours.join(lambda: b"ours")
    one, other = await serve_at(tmp_path / "1", b"one"), await serve_at(tmp_path / "2", b"x" * 1_000_000)

    answers = await ours.ask()

    assert sorted(answers) == [b"one", b"x" * 1_000_000]
    for server in (one, other):
        server.close()
    ours.leave()


async def test_the_others_are_answered(tmp_path: Path) -> None:
    ours = Siblings()
    ours.meet_in(tmp_path)
    await ours.join(lambda: b"ours")

    reader, writer = await asyncio.open_unix_connection(tmp_path / str(os.getpid()))

    assert await reader.read(-1) == b"ours"
    writer.close()
    ours.leave()
    assert list(tmp_path.iterdir()) == []


async def test_one_that_was_killed_is_left_out_and_forgotten(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        # The name stays behind, and nobody listens.
        left.bind(str(tmp_path / "1"))
    ours = Siblings()
    ours.meet_in(tmp_path)

    assert await ours.ask() == []
    assert not (tmp_path / "1").exists()


async def test_one_that_does_not_answer_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_ANSWER", 0.5)
    stuck, well = await serve_at(tmp_path / "1", None), await serve_at(tmp_path / "2", b"well")
    ours = Siblings()
    ours.meet_in(tmp_path)

    assert await ours.ask() == [b"well"]
    for server in (stuck, well):
        server.close()


async def test_a_server_of_one_process_is_alone() -> None:
    ours = Siblings()
    await ours.join(lambda: b"ours")

    assert await ours.ask() == []
    ours.leave()
