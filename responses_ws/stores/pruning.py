"""What nobody can use any more is deleted, a little at a time. Plain ORM, for Celery and the command line."""

from collections import Counter
from datetime import timedelta
from uuid import UUID

from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.models import Exists, F, OuterRef
from django.utils import timezone

from responses_ws.conf import app_settings
from responses_ws.models import (
    Chain,
    ControlMessage,
    Conversation,
    Flag,
    IdempotencyKey,
    ResponseEvents,
    StoredItem,
    StoredResponse,
)
from responses_ws.runtime import redis

from .lookup import redis_store
from .rows import Deleted

TREES_AT_ONCE = 200  # in one transaction: on SQLite nobody else can write meanwhile


def prune() -> Counter[str]:
    """Delete it all. Returns how many of what."""
    Flag.objects.forget_before(timezone.now() - timedelta(days=app_settings.STORE_DAYS))
    deleted: Counter[str] = Counter()
    written_before = timezone.now() - timedelta(hours=app_settings.EVENT_HOURS)
    deleted["rows of events"] = ResponseEvents.objects.outdated(written_before).delete()[0]
    deleted["idempotency keys"] = IdempotencyKey.objects.expired().delete()[0]
    deleted["control messages"] = ControlMessage.objects.outdated().delete()[0]
    while trees := _prune_trees():
        deleted += trees
    return +deleted


def _prune_trees() -> Counter[str]:
    """Some of the chains of which no response is left that could be found: a living one needs all of its past."""
    counts, deleted = _prune_some_trees()
    if deleted and app_settings.REDIS_URL:
        async_to_sync(_tell_redis)(deleted)
    return counts


async def _tell_redis(deleted: list[tuple[int, Deleted]]) -> None:
    """Once more, of what clients have deleted: no process may have lived long enough to. The rest has expired there."""
    for project_id, of_a_tree in deleted:
        await redis_store.forget(project_id, of_a_tree)
    await redis.aclose()


@transaction.atomic
def _prune_some_trees() -> tuple[Counter[str], list[tuple[int, Deleted]]]:
    """How many of what, and what clients had deleted of it, with its project."""
    visible = StoredResponse.objects.filter(
        chain__root=OuterRef("root"), deleted_at=None, expires_at__gt=timezone.now()
    )
    dead = Chain.objects.filter(id=F("root")).exclude(Exists(visible))
    roots = list(dead.values_list("id", flat=True)[:TREES_AT_ONCE])
    chains = list(Chain.objects.filter(root__in=roots).values_list("id", flat=True))
    if not chains:
        return Counter(), []
    told = _deleted_in(chains) if app_settings.REDIS_URL else []
    Conversation.objects.filter(chain_id__in=chains).update(chain=None, chain_end=0)
    counts = Counter(
        items=StoredItem.objects.filter(chain_id__in=chains).delete()[0],
        responses=StoredResponse.objects.filter(chain_id__in=chains).count(),
    )
    Chain.objects.filter(id__in=chains).delete()
    return counts, told


def _deleted_in(chains: list[UUID]) -> list[tuple[int, Deleted]]:
    """A deletion for each of these trees in which there was one: of all its chains."""
    by_root: dict[UUID, tuple[int, Deleted]] = {}
    rows = StoredResponse.objects.filter(chain_id__in=chains).exclude(deleted_at=None)
    for project_id, root, response_id in rows.values_list("project_id", "chain__root", "id"):
        by_root.setdefault(root, (project_id, Deleted(set(), {}, root)))[1].response_ids.add(response_id)
    for root, chain_id in Chain.objects.filter(root__in=by_root).values_list("root", "id"):
        by_root[root][1].chains[chain_id] = 0
    return list(by_root.values())
