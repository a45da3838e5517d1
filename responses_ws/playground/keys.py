"""Keys for minutes: what the page speaks with, in the place of a key that somebody keeps."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from responses_ws.models import ApiKey, Project

LIFETIME = timedelta(minutes=15)
"""A page that needs longer asks for another one."""
_MOST = 20
_OWN = "responses_ws_playground_keys"


def issue(session: Any, project: Project, user_name: str) -> ApiKey:
    """A key of this project that nobody but the page sees; its ``secret`` is known once. The session is told which."""
    key = ApiKey.objects.create_with_secret(
        project=project, name=f"Playground of {user_name}"[:200], expires_at=timezone.now() + LIFETIME
    )
    session[_OWN] = [*own(session), key.pk][-_MOST:]
    return key


def own(session: Any) -> list[int]:
    """The keys that were made for this session, the newest last."""
    return session.get(_OWN, [])


def revoke(session: Any, key_id: int) -> bool:
    """Revoke a key of this session; False where it has none of this id."""
    if key_id not in own(session):
        return False
    ApiKey.objects.filter(pk=key_id).revoke()
    return True
