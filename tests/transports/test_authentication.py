from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from responses_ws.models import ApiKey, Project
from responses_ws.protocol.errors import Unauthorized
from responses_ws.transports import authentication
from responses_ws.transports.authentication import ApiKeyAuthenticator, scope_headers


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


async def test_a_principal_may_what_its_key_and_its_project_may(api_key: ApiKey) -> None:
    await ApiKey.objects.aupdate(allowed_models=["m", "n"], requests_per_minute=5)
    await Project.objects.aupdate(requests_per_minute=9, tokens_per_minute=7, sealed_fallback=True)

    principal = await ApiKeyAuthenticator().authenticate(bearer(api_key.secret))

    assert principal.allowed_models == frozenset({"m", "n"})
    assert (principal.rates.requests_per_minute, principal.rates.tokens_per_minute) == (5, 7)
    assert (principal.zero_retention, principal.sealed_fallback) == (False, True)
    assert principal.name == api_key.redacted


@pytest.mark.parametrize("of", [ApiKey, Project])
async def test_who_keeps_nothing_keeps_no_fallback_either(api_key: ApiKey, of: Any) -> None:
    await Project.objects.aupdate(sealed_fallback=True)
    await of.objects.aupdate(zero_retention=True)

    principal = await ApiKeyAuthenticator().authenticate(bearer(api_key.secret))

    assert (principal.zero_retention, principal.sealed_fallback) == (True, False)


@pytest.mark.parametrize(
    "header",
    ["Bearer {}", "bearer {}", "BEARER   {}  "],
)
async def test_a_key_is_taken_from_its_header(api_key: ApiKey, header: str) -> None:
    principal = await ApiKeyAuthenticator().authenticate({"authorization": header.format(api_key.secret)})

    assert principal.api_key_id == api_key.pk


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": "Bearer  "}]
)
async def test_without_a_key_nobody_is_asked(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized) as refused:
        await ApiKeyAuthenticator().authenticate(headers)

    assert refused.value.message == (
        "You didn't provide an API key. Send it in an Authorization header: 'Authorization: Bearer KEY'."
    )


async def test_another_scheme_is_no_key(api_key: ApiKey) -> None:
    with pytest.raises(Unauthorized, match="didn't provide"):
        await ApiKeyAuthenticator().authenticate({"authorization": f"Basic {api_key.secret}"})


async def test_a_changed_key_is_forgotten_and_no_other(api_key: ApiKey) -> None:
    authenticator = ApiKeyAuthenticator()
    other = await sync_to_async(ApiKey.objects.create_with_secret)(project=api_key.project, name="other")
    for key in (api_key.secret, other.secret):
        await authenticator.authenticate(bearer(key))
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(bearer("sk-wrong"))
    await ApiKey.objects.aupdate(revoked_at=timezone.now())

    authenticator.forget_key(api_key.pk)

    with pytest.raises(Unauthorized):
        await authenticator.authenticate(bearer(api_key.secret))
    assert (await authenticator.authenticate(bearer(other.secret))).api_key_id == other.pk


async def test_the_oldest_answers_are_forgotten_first(api_key: ApiKey, monkeypatch: Any) -> None:
    monkeypatch.setattr(authentication, "_MAX_CACHED", 2)
    authenticator = ApiKeyAuthenticator()
    await authenticator.authenticate(bearer(api_key.secret))
    for key in ("sk-wrong-1", "sk-wrong-2"):
        with pytest.raises(Unauthorized):
            await authenticator.authenticate(bearer(key))
        assert len(authenticator._cache) == 2

    await ApiKey.objects.aupdate(revoked_at=timezone.now())

    with pytest.raises(Unauthorized):
        await authenticator.authenticate(bearer(api_key.secret))


def test_names_of_headers_are_lowered_and_the_first_of_several_counts() -> None:
    headers = [(b"Authorization", b"Bearer a"), (b"X-Odd", "\u00e9".encode("latin-1")), (b"authorization", b"Bearer b")]

    assert scope_headers({"headers": headers}) == {"authorization": "Bearer a", "x-odd": "\u00e9"}


def test_one_authenticator_serves_a_process(settings: Any) -> None:
    first = authentication.authenticator()
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "AUTHENTICATOR": f"{__name__}.Another"}

    assert isinstance(first, ApiKeyAuthenticator)
    assert isinstance(authentication.authenticator(), Another)
    assert authentication.authenticator() is authentication.authenticator()


class Another(ApiKeyAuthenticator):
    """A host's own."""


async def test_a_refusal_never_quotes_the_key(api_key: ApiKey) -> None:
    with pytest.raises(Unauthorized) as caught:
        await ApiKeyAuthenticator().authenticate(bearer("sk-proj-almost-right-0123456789"))

    assert caught.value.message == "Incorrect API key provided: sk-…89."
