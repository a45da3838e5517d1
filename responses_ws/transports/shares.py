"""Which keys get WebSocket mode, while it is being introduced."""

import hashlib

from django.db import Error

from responses_ws.models import WebSocketShare
from responses_ws.protocol.errors import ApiError
from responses_ws.runtime import dbpool
from responses_ws.runtime.recent import Recent

SECONDS_BELIEVED = 30.0
"""Changes are heard of at once; this is for those that were made past the admin."""
DATABASE_SECONDS = 2.0


class Shares:
    """The table of shares as this process knows it."""

    def __init__(self) -> None:
        self._table = Recent(lambda: dbpool.run(WebSocketShare.objects.by_project), seconds=SECONDS_BELIEVED)
        self._known: dict[int | None, int] = {}

    async def admit(self, project_id: int, key: str) -> bool:
        """Whether this key of the project may open a socket."""
        try:
            self._known = await self._table.get(within=DATABASE_SECONDS)
        except (ApiError, Error, TimeoutError):
            # What was read last is the best there is.
            pass
        percent = self._known.get(project_id, self._known.get(None, 100))
        return place_of(key) < percent

    def forget(self) -> None:
        """They have changed."""
        self._table.forget()


def place_of(key: str) -> int:
    """Where a key stands among a hundred: the same in every process, and whatever the share becomes.

    So with a share that grows nobody goes back to HTTP who has left it.
    """
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % 100


shares = Shares()
