from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from responses_ws.models import ApiKey
from responses_ws.protocol.errors import Unauthorized
from responses_ws.transports import authentication
from responses_ws.transports.authentication import ApiKeyAuthenticator


def bearer(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_key_speaks_for_its_project(api_key: ApiKey) -> None:
    principal = await ApiKeyAuthenticator().authenticate(bearer(api_key.secret))

    assert (principal.project_id, principal.api_key_id) == (api_key.project_id, api_key.pk)
    assert principal.organization_id == api_key.project.organization_id
    assert api_key.secret not in principal.name


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"revoked_at": timezone.now()}, id="revoked"),
        pytest.param({"expires_at": timezone.now() - timedelta(seconds=1)}, id="expired"),
    ],
)
async def test_a_key_past_its_time_is_refused(api_key: ApiKey, change: dict[str, Any]) -> None:
    await ApiKey.objects.aupdate(**change)

    with pytest.raises(Unauthorized):
        await ApiKeyAuthenticator().authenticate(bearer(api_key.secret))


async def test_answers_good_and_bad_are_cached(api_key: ApiKey) -> None:
    authenticator = ApiKeyAuthenticator()
    await authenticator.authenticate(bearer(api_key.secret))
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(bearer("sk-wrong"))
    await ApiKey.objects.all().adelete()

    assert await authenticator.authenticate(bearer(api_key.secret))
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(bearer("sk-wrong"))


async def test_a_cached_answer_is_believed_for_a_while_only(api_key: ApiKey, monkeypatch: Any) -> None:
    monkeypatch.setattr(authentication, "SECONDS_CACHED", 0.0)
    authenticator = ApiKeyAuthenticator()
    await authenticator.authenticate(bearer(api_key.secret))
    await ApiKey.objects.aupdate(revoked_at=timezone.now())

    with pytest.raises(Unauthorized):
        await authenticator.authenticate(bearer(api_key.secret))


async def test_a_refusal_never_quotes_the_key(api_key: ApiKey) -> None:
    with pytest.raises(Unauthorized) as caught:
        await ApiKeyAuthenticator().authenticate(bearer("sk-proj-almost-right-0123456789"))

    assert "almost" not in caught.value.message
