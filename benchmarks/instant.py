"""An engine inside of the server's process that costs nothing: what is left is the way from a delta to the wire."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from responses_ws.engines.base import ChatRequest, Engine, EngineModel
from responses_ws.protocol.sampling import Delta, Finished, TextDelta
from responses_ws.protocol.usage import Usage

NAME = re.compile(r"instant-t(\d+)-b(\d+)")


class Instant(Engine):
    """The model ``instant-t1000-b10`` says 1,000 words, ten of them in each read."""

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[list[Delta]]]:  # type: ignore[override]
        name = NAME.fullmatch(request.model)
        assert name, "a name that says how much"
        yield _reads(int(name[1]), int(name[2]))

    async def models(self) -> list[EngineModel]:
        return []


async def _reads(tokens: int, each: int) -> AsyncIterator[list[Delta]]:
    for _ in range(tokens // each):
        # As a read from a socket would: others have their turn, and what is written leaves.
        await asyncio.sleep(0)
        yield [TextDelta("another ") for _ in range(each)]
    yield [Finished("stop", Usage(input_tokens=10, output_tokens=tokens))]
