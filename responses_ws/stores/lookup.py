"""Where a stored response is looked for, once it is not in memory: Redis, then the database."""

from responses_ws.conf import app_settings
from responses_ws.connection.chain import CONTINUABLE
from responses_ws.runtime import background, metrics

from .base import StoredChain
from .database import DatabaseStore
from .memory import hot_tier
from .redis import RedisStore

redis_store = RedisStore()
database_store = DatabaseStore()


async def find_stored(project_id: int, response_id: str) -> StoredChain | None:
    """The stored response of this project with its context, or None. What only the database has, Redis gets back."""
    tier, stored = "redis", await redis_store.load(project_id, response_id)
    if stored is None:
        tier, stored = "database", await database_store.load(project_id, response_id)
    # Deleted while it was being read; or Redis could not be told yet.
    if stored is None or hot_tier.has_forgotten(project_id, response_id):
        metrics.lookups.add(("none",))
        return None
    metrics.lookups.add((tier,))
    if tier == "database" and app_settings.REDIS_URL and stored.response["status"] in CONTINUABLE:
        background.spawn(redis_store.put_back(project_id, stored))
    return stored
