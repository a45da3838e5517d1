import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from responses_ws.engines.base import EngineError
from responses_ws.protocol.sampling import Delta, Finished, Progress, Started, TextDelta
from responses_ws.serving.mailbox import READ_AHEAD, Mailbox
from responses_ws.serving.sampling import SamplingStep, Sign, Word


class Call:
    """An engine call whose pieces the test sends; it notes whether it is open."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[list[Delta] | Exception | None] = asyncio.Queue()
        self.accepting = asyncio.Event()
        self.is_open = False
        self.read = 0

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[AsyncIterator[list[Delta]]]:
        self.is_open = True
        try:
            await self.accepting.wait()
            yield self._batches()
        finally:
            self.is_open = False

    async def _batches(self) -> AsyncIterator[list[Delta]]:
        while (piece := await self.pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            self.read += 1
            yield piece


@pytest.fixture
def call() -> Call:
    call = Call()
    call.accepting.set()
    return call


@pytest.fixture
def limits(settings: Any) -> Any:
    def set_limits(**limits: float) -> None:
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": limits}

    return set_limits


async def test_everything_is_told_in_order(call: Call) -> None:
    mailbox: Mailbox[Word] = Mailbox()
    step = SamplingStep(call(), mailbox)
    batch: list[Delta] = [TextDelta("a"), Finished("stop")]
    for piece in (batch, None):
        call.pieces.put_nowait(piece)

    words = [await mailbox.get() for _ in range(3)]

    assert words == [Sign.ACCEPTED, batch, Sign.ENDED]
    await step.leave()
    assert not call.is_open


async def test_leaving_closes_the_call_before_it_was_accepted(call: Call, limits: Any) -> None:
    limits(created_seconds=0.01)
    call.accepting.clear()
    mailbox: Mailbox[Word] = Mailbox()
    step = SamplingStep(call(), mailbox)
    assert await mailbox.get() is Sign.CREATED_IS_DUE

    await step.leave()

    assert not call.is_open


async def test_leaving_closes_the_call_while_it_is_silent(call: Call) -> None:
    mailbox: Mailbox[Word] = Mailbox()
    step = SamplingStep(call(), mailbox)
    assert await mailbox.get() is Sign.ACCEPTED and call.is_open

    await step.leave()
    await step.leave()

    assert not call.is_open


async def test_what_breaks_is_told(call: Call) -> None:
    mailbox: Mailbox[Word] = Mailbox()
    step = SamplingStep(call(), mailbox)
    call.pieces.put_nowait(EngineError("engine", "broken"))
    await mailbox.get()

    word = await mailbox.get()

    assert isinstance(word, EngineError) and not call.is_open
    await step.leave()


@pytest.mark.parametrize(
    ("given", "pieces"),
    [
        pytest.param({"engine_first_delta_seconds": 0.02}, [], id="before the first delta"),
        pytest.param({"engine_next_delta_seconds": 0.02}, [[TextDelta("a")]], id="between deltas"),
    ],
)
async def test_a_silence_too_long_is_a_timeout(call: Call, limits: Any, given: Any, pieces: Any) -> None:
    limits(**given)
    mailbox: Mailbox[Word] = Mailbox()
    step = SamplingStep(call(), mailbox)
    for piece in pieces:
        call.pieces.put_nowait(piece)

    words = [await mailbox.get() for _ in range(len(pieces) + 2)]

    assert isinstance(words[-1], EngineError) and words[-1].kind == "timeout"
    await step.leave()


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="before the first delta"),
        pytest.param([[TextDelta("a")]], id="between deltas"),
    ],
)
async def test_telling_a_silence_does_not_end_it(call: Call, limits: Any, pieces: Any) -> None:
    """Every sign began the engine's time anew: a dead engine was waited for without end."""
    limits(keep_alive_seconds=0.02, engine_first_delta_seconds=0.1, engine_next_delta_seconds=0.1)
    mailbox: Mailbox[Word] = Mailbox()
    step = SamplingStep(call(), mailbox)
    for piece in pieces:
        call.pieces.put_nowait(piece)

    words: list[Word] = []
    async with asyncio.timeout(10):
        while not words or not isinstance(words[-1], Exception):
            words.append(await mailbox.get())

    assert isinstance(words[-1], EngineError) and words[-1].kind == "timeout"
    assert Sign.SILENT in words
    await step.leave()


async def test_reading_a_long_prompt_is_no_silence_between_deltas(call: Call, limits: Any) -> None:
    limits(engine_first_delta_seconds=30, engine_next_delta_seconds=0.02)
    mailbox: Mailbox[Word] = Mailbox()
    step = SamplingStep(call(), mailbox)
    for piece in ([Started(10)], [Progress(5, 10)]):
        call.pieces.put_nowait(piece)
    words = [await mailbox.get() for _ in range(3)]
    # Long enough for several deadlines.
    await asyncio.sleep(0.1)

    call.pieces.put_nowait([TextDelta("a")])
    words.append(await mailbox.get())

    assert words == [Sign.ACCEPTED, [Started(10)], [Progress(5, 10)], [TextDelta("a")]]
    await step.leave()


async def test_a_silence_is_told_again_and_again(call: Call, limits: Any) -> None:
    limits(keep_alive_seconds=0.02)
    mailbox: Mailbox[Word] = Mailbox()
    step = SamplingStep(call(), mailbox)

    words = [await mailbox.get() for _ in range(4)]

    assert words == [Sign.ACCEPTED, Sign.SILENT, Sign.SILENT, Sign.SILENT]
    await step.leave()


async def test_a_slow_reader_holds_the_engine_back(call: Call, limits: Any) -> None:
    limits(engine_next_delta_seconds=0.01)
    mailbox: Mailbox[Word] = Mailbox()
    step = SamplingStep(call(), mailbox)
    batch: list[Delta] = [TextDelta("a")]
    for _ in range(4 * READ_AHEAD):
        call.pieces.put_nowait(batch)
    while call.read < READ_AHEAD - 1:  # noqa: ASYNC110
        await asyncio.sleep(0)
    # Long enough for several deadlines: nobody is waiting for the engine, so none has passed.
    await asyncio.sleep(0.05)
    read_ahead = call.read

    words = [await mailbox.get() for _ in range(4 * READ_AHEAD + 1)]

    assert read_ahead <= READ_AHEAD
    assert words == [Sign.ACCEPTED] + [batch] * (4 * READ_AHEAD)
    await step.leave()
