"""Keys are kept as digests and shown in part."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from responses_ws.models import AdminKey, ApiKey, ControlMessage, Project
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


@pytest.mark.parametrize("table", [ApiKey, AdminKey])
def test_a_key_opens_what_is_its_own_and_an_unknown_one_nothing(table):
    owners = [make_project("acme"), make_project("globex")]
    given = [{"project": one} if table is ApiKey else {"organization": one.organization} for one in owners]
    keys = [table.objects.create_with_secret(name="k", **owner) for owner in given]

    assert [table.objects.find(key.secret) for key in keys] == keys
    assert table.objects.find(generate_key()) is None
    assert table.objects.find("") is None
    assert table.objects.find(keys[0].secret[:-1]) is None


@pytest.mark.parametrize("field", ["expires_at", "revoked_at"])
def test_an_admin_key_past_its_time_is_not_found(field):
    owner = make_project().organization
    key, other = (AdminKey.objects.create_with_secret(organization=owner, name=name) for name in "ab")

    AdminKey.objects.filter(pk=key.pk).update(**{field: timezone.now() - timedelta(seconds=1)})

    assert (AdminKey.objects.find(key.secret), AdminKey.objects.find(other.secret)) == (None, other)


def test_keys_are_usable_or_not_and_never_both():
    project = make_project()
    names = {"plain": {}, "later": {"expires_at": NOON + timedelta(seconds=1)}, "expired": {"expires_at": NOON}}
    names["revoked"] = {"revoked_at": NOON + timedelta(days=1)}
    for name, fields in names.items():
        ApiKey.objects.create_with_secret(project=project, name=name, **fields)

    assert [key.name for key in ApiKey.objects.usable(NOON).order_by("pk")] == ["plain", "later"]
    assert [key.name for key in ApiKey.objects.unusable(NOON).order_by("pk")] == ["expired", "revoked"]
    now = timezone.now()
    assert ApiKey(digest=b"", expires_at=now + timedelta(hours=1)).is_usable
    assert not ApiKey(digest=b"", expires_at=now - timedelta(seconds=1)).is_usable
    assert not ApiKey(digest=b"", revoked_at=now).is_usable


def test_a_key_is_revoked_once_and_everybody_hears_of_it():
    project = make_project()
    first, second = make_key(project, "first"), make_key(project, "second")
    assert ApiKey.objects.filter(pk=first.pk).revoke(NOON) == 1
    ControlMessage.objects.all().delete()

    assert ApiKey.objects.all().revoke(NOON + timedelta(days=1)) == 1

    assert list(ApiKey.objects.order_by("pk").values_list("revoked_at", flat=True)) == [NOON, NOON + timedelta(days=1)]
    assert [message.body for message in ControlMessage.objects.filter(kind="key_changed")] == [
        {"api_key_id": second.pk}
    ]


def test_admin_keys_are_revoked_once_and_say_what_they_are():
    key = AdminKey.objects.create_with_secret(organization=make_project().organization, name="k")

    assert key.secret.startswith("sk-admin-")
    assert [AdminKey.objects.all().revoke(), AdminKey.objects.all().revoke()] == [1, 0]
    assert not AdminKey.objects.get().is_usable


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


def test_a_project_that_is_new_is_told_to_nobody_and_keeps_excerpts_where_it_says_so():
    project, other = make_project("acme", "chat"), make_project("acme", "lab")
    Project.objects.filter(pk=project.pk).update(keeps_excerpts=True)

    assert not ControlMessage.objects.filter(kind="key_changed").exists()
    assert [Project.objects.keeps_excerpts(one.pk) for one in (project, other)] == [True, False]
    assert not make_key(project).zero_retention and not project.zero_retention
