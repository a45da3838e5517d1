import asyncio
import threading

import pytest

from responses_ws.protocol.errors import ServerError
from responses_ws.runtime import dbpool


async def test_reads_run_side_by_side() -> None:
    meeting = threading.Barrier(3)

    await asyncio.gather(*(dbpool.run(meeting.wait, 10) for _ in range(3)))

    assert not meeting.broken


async def test_a_database_that_does_not_answer_is_a_server_error(settings) -> None:
    settings.RESPONSES_WS = {"LIMITS": {"database_seconds": 0.05}}
    release = threading.Event()

    with pytest.raises(ServerError):
        await dbpool.run(release.wait, 10)

    release.set()
