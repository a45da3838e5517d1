"""Keys are kept as digests and shown in part."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from responses_ws.models import ApiKey, ControlMessage, Project
from responses_ws.models.accounts import digest_of, generate_key
from tests.billing.rows import NOON, make_key, make_project

pytestmark = pytest.mark.django_db


def test_the_secret_is_on_the_new_instance_and_nowhere_else():
    key = make_key(make_project())
    secret = key.secret

    again = ApiKey.objects.get()

    assert secret.startswith("sk-proj-")
    assert again.secret is None
    assert bytes(again.digest) == digest_of(secret)
    assert secret not in str(again.__dict__)
    assert again.redacted == f"{secret[:12]}…{secret[-4:]}"


@pytest.mark.parametrize(
    ("key", "redacted"),
    [
        pytest.param("sk-demo", "s…o", id="seven"),
        pytest.param("abc", "…", id="three"),
        pytest.param("sk-proj-0123456789", "sk-p…6789", id="eighteen"),
    ],
)
def test_a_short_key_is_never_half_given_away(key, redacted):
    instance = ApiKey.objects.create_with_secret(project=make_project(), name="short", key=key)

    assert instance.redacted == redacted


@pytest.mark.parametrize(
    ("fields", "usable"),
    [
        pytest.param({}, True, id="plain"),
        pytest.param({"expires_at": NOON + timedelta(seconds=1)}, True, id="expires later"),
        pytest.param({"expires_at": NOON}, False, id="expired"),
        pytest.param({"revoked_at": NOON - timedelta(days=1)}, False, id="revoked"),
    ],
)
def test_only_usable_keys_are_found(fields, usable):
    key = ApiKey.objects.create_with_secret(project=make_project(), name="k", **fields)

    assert (ApiKey.objects.find(key.secret, now=NOON) == key) is usable


def test_an_unknown_key_is_not_found():
    make_key(make_project())

    assert ApiKey.objects.find(generate_key()) is None


@pytest.mark.parametrize("table", [ApiKey, Project])
def test_no_rate_is_below_one(table):
    make_key(make_project())

    with pytest.raises(IntegrityError), transaction.atomic():
        table.objects.update(tokens_per_minute=0)
    table.objects.update(tokens_per_minute=1, open_sockets=None)


def test_the_keys_of_a_project_are_told_when_it_changes():
    project = make_project()
    key = make_key(project)

    project.save()

    assert [message.body for message in ControlMessage.objects.all()] == [{"api_key_id": key.pk}]
