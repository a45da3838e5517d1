"""Responses that their clients may have been told of, and the database not yet: the other side of running ahead."""

import asyncio

from responses_ws.conf import app_settings
from responses_ws.models import UsageRecord
from responses_ws.protocol.errors import Overloaded
from responses_ws.runtime import dbpool

from .replay import replay

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1


async def may_have_come(project_id: int, response_id: str) -> bool:
    """Whether a response that was not found is worth another look, after waiting for it where that has a sense.

    Only with ``DURABILITY = "journal"``. Its usage record was durable before its first output, and its end is written
    in one commit with the response. So as long as that record is open the response may be on its way: from a process
    that lives, or from the journal of one that died, which is replayed here and now.

    Raises:
        Overloaded: it is still to come, after all this time.
    """
    if app_settings.DURABILITY != "journal":
        return False
    loop = asyncio.get_running_loop()
    gives_up_at = loop.time() + app_settings.limits.arrival_seconds
    pause = _SHORTEST_PAUSE
    while await dbpool.run(_is_open, project_id, response_id):
        if loop.time() > gives_up_at:
            raise Overloaded("The response is still being written. Please try again.", headers={"retry-after": "1"})
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        if pause == _LONGEST_PAUSE:
            # Nobody takes so long who lives and has a database.
            await dbpool.run(replay)
    # Whether there was such a record or not: unknown ids take no other way than those of others.
    return True


def _is_open(project_id: int, response_id: str) -> bool:
    return UsageRecord.objects.in_progress().filter(project_id=project_id, response_id=response_id).exists()
