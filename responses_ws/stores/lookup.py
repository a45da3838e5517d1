"""Where a stored response is looked for, once it is not in memory: Redis, then the database."""

from responses_ws.runtime import metrics

from .base import StoredChain
from .database import DatabaseStore
from .redis import RedisStore

redis_store = RedisStore()
database_store = DatabaseStore()


async def find_stored(project_id: int, response_id: str) -> StoredChain | None:
    """The stored response of this project with its context, or None."""
    for tier, store in (("redis", redis_store), ("database", database_store)):
        stored = await store.load(project_id, response_id)
        if stored is not None:
            metrics.lookups.add((tier,))
            return stored
    metrics.lookups.add(("none",))
    return None
