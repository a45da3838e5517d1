"""Where a stored response is looked for, once it is not in memory: Redis, then the database."""

from .base import StoredChain
from .database import DatabaseStore
from .redis import RedisStore

redis_store = RedisStore()
database_store = DatabaseStore()


async def find_stored(project_id: int, response_id: str) -> StoredChain | None:
    """The stored response of this project with its context, or None."""
    return await redis_store.load(project_id, response_id) or await database_store.load(project_id, response_id)
