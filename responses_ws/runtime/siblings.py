"""The workers behind one listening socket, and how whichever is asked can tell what each of them has counted.

Each of them answers at a Unix socket of its own, in a directory that only their supervisor and they can open.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

SECONDS_TO_ANSWER = 2.0
"""A worker that does not answer by then is left out: its loop is blocked, or it is on its way out."""


class Siblings:
    """This process among them. Without `meet_in` it is alone."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._server: asyncio.Server | None = None

    def meet_in(self, directory: Path) -> None:
        """This is where all of them are."""
        self._directory = directory

    async def join(self, tell: Callable[[], bytes]) -> None:
        """Answer from now on, with what ``tell`` gives."""
        if self._directory is None:
            return

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # One who asks and does not wait for the answer is no concern of ours.
            with contextlib.suppress(OSError):
                writer.write(tell())
                await writer.drain()
                writer.close()
                await writer.wait_closed()

        self._server = await asyncio.start_unix_server(answer, self._own)

    async def ask(self) -> list[bytes]:
        """What the others tell, of those that answer in time."""
        if self._directory is None:
            return []
        others = [path for path in self._directory.iterdir() if path != self._own]
        told = await asyncio.gather(*map(_ask, others))
        return [answer for answer in told if answer]

    def leave(self) -> None:
        if self._server is not None:
            self._server.close()
            self._own.unlink(missing_ok=True)
            self._server = None

    @property
    def _own(self) -> Path:
        assert self._directory is not None, "it is not alone"
        return self._directory / str(os.getpid())


async def _ask(path: Path) -> bytes:
    try:
        async with asyncio.timeout(SECONDS_TO_ANSWER):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return await reader.read(-1)
            finally:
                writer.close()
    except ConnectionRefusedError:
        # It was killed.
        path.unlink(missing_ok=True)
        return b""
    except (OSError, TimeoutError):
        return b""


siblings = Siblings()
