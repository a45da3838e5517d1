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
        self._servers: dict[str, asyncio.Server] = {}
        """By what they tell."""

    def meet_in(self, directory: Path) -> None:
        """This is where all of them are."""
        self._directory = directory

    async def join(self, tell: Callable[[], bytes], what: str = "") -> None:
        """Answer those that want to know ``what`` from now on, with what ``tell`` gives."""
        if self._directory is None:
            return

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # One who asks and does not wait for the answer is no concern of ours.
            with contextlib.suppress(OSError):
                writer.write(tell())
                await writer.drain()
                writer.close()
                await writer.wait_closed()

        self._servers[what] = await asyncio.start_unix_server(answer, self._own(what))

    async def ask(self, what: str = "", *, within: float = SECONDS_TO_ANSWER) -> list[bytes]:
        """What the others tell of it, those that answer in time."""
        if self._directory is None:
            return []
        own = self._own(what)
        others = [path for path in self._directory.iterdir() if path != own and path.suffix == own.suffix]
        told = await asyncio.gather(*(_ask(path, within) for path in others))
        return [answer for answer in told if answer]

    def leave(self) -> None:
        for what, server in self._servers.items():
            server.close()
            self._own(what).unlink(missing_ok=True)
        self._servers = {}

    def _own(self, what: str) -> Path:
        assert self._directory is not None, "it is not alone"
        return self._directory / f"{os.getpid()}{what and '.'}{what}"


async def _ask(path: Path, within: float) -> bytes:
    try:
        async with asyncio.timeout(within):
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
