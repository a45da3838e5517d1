"""``python -m tests.browser.filling JSON``, beside a site's server: people, their sessions, and rows to look at."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import django

from .site import BOSS, PASSWORD


def session_of(user: Any) -> str:
    """The cookie of a browser in which ``user`` is logged in."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore

    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    assert store.session_key is not None, "it was created"
    return store.session_key


def make_people(people: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Session cookies by user name; each may do what is said, the boss everything."""
    from django.contrib.auth.models import Permission, User

    sessions = {BOSS: session_of(User.objects.create_superuser(BOSS, password=PASSWORD))}
    for name, codenames in people.items():
        user = User.objects.create(username=name, is_staff=True)
        found = Permission.objects.filter(content_type__app_label="responses_ws", codename__in=codenames)
        assert {permission.codename for permission in found} == set(codenames), codenames
        user.user_permissions.set(found)
        sessions[name] = session_of(user)
    return sessions


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    django.setup()

    from django.utils.module_loading import import_string

    told = {
        "sessions": make_people(asked["people"]),
        "seeded": import_string(asked["seed"])() if asked["seed"] else None,
    }
    print(json.dumps(told))
