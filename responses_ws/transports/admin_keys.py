"""Who may ask for an organisation's figures: admin keys, which open nothing else."""

from datetime import timedelta

from django.http import HttpRequest
from django.utils import timezone

from responses_ws.models import AdminKey, ApiKey
from responses_ws.protocol.errors import PermissionDenied, Unauthorized
from responses_ws.runtime import dbpool

NOTED_EVERY = timedelta(minutes=1)


async def admin_key_of(request: HttpRequest) -> AdminKey:
    """The usable admin key behind the request's ``Authorization``, asked for anew each time.

    Raises:
        Unauthorized: no key, or one that is not good.
        PermissionDenied: the key speaks for a project.
    """
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        raise Unauthorized(
            "You didn't provide an admin key. Send it in an Authorization header: 'Authorization: Bearer KEY'."
        )
    return await dbpool.run(_found, key)


def _found(key: str) -> AdminKey:
    found: AdminKey | None = AdminKey.objects.find(key)
    if found is not None:
        now = timezone.now()
        if found.last_used_at is None or found.last_used_at < now - NOTED_EVERY:
            AdminKey.objects.filter(pk=found.pk).update(last_used_at=now)
        return found
    if ApiKey.objects.find(key) is not None:
        raise PermissionDenied("This is the API key of a project. An organization's figures need an admin key.")
    raise Unauthorized(f"Incorrect admin key provided: {key[:3]}…{key[-2:]}.")
