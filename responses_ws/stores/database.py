"""The database: the truth about stored responses."""

from responses_ws.runtime import dbpool

from . import rows
from .base import ResponseStore, StoredChain


class DatabaseStore(ResponseStore):
    """Reads through the pool. Writing is the group writer's, see `rows.save`."""

    async def load(self, project_id: int, response_id: str) -> StoredChain | None:
        return await dbpool.run(rows.load, project_id, response_id)
