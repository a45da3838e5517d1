"""What nobody can use any more is deleted, a little at a time. Plain ORM, for Celery and the command line."""

from collections import Counter
from datetime import timedelta

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
    ResponseEvent,
    StoredItem,
    StoredResponse,
)

TREES_AT_ONCE = 200  # in one transaction: on SQLite nobody else can write meanwhile


def prune() -> Counter[str]:
    """Delete it all. Returns how many of what."""
    Flag.objects.forget_before(timezone.now() - timedelta(days=app_settings.STORE_DAYS))
    deleted: Counter[str] = Counter()
    deleted["events"] = ResponseEvent.objects.filter(response__in=StoredResponse.objects.gone()).delete()[0]
    deleted["idempotency keys"] = IdempotencyKey.objects.expired().delete()[0]
    deleted["control messages"] = ControlMessage.objects.outdated().delete()[0]
    while trees := _prune_trees():
        deleted += trees
    return +deleted


@transaction.atomic
def _prune_trees() -> Counter[str]:
    """Some of the chains of which no response is left that could be found: a living one needs all of its past."""
    visible = StoredResponse.objects.filter(
        chain__root=OuterRef("root"), deleted_at=None, expires_at__gt=timezone.now()
    )
    dead = Chain.objects.filter(id=F("root")).exclude(Exists(visible))
    roots = list(dead.values_list("id", flat=True)[:TREES_AT_ONCE])
    chains = list(Chain.objects.filter(root__in=roots).values_list("id", flat=True))
    if not chains:
        return Counter()
    Conversation.objects.filter(chain_id__in=chains).update(chain=None, chain_end=0)
    deleted = Counter(
        items=StoredItem.objects.filter(chain_id__in=chains).delete()[0],
        responses=StoredResponse.objects.filter(chain_id__in=chains).count(),
    )
    Chain.objects.filter(id__in=chains).delete()
    return deleted
