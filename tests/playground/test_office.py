"""What the playground's page asks of the office: keys for minutes, and prices."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from responses_ws.models import ApiKey, Project
from tests.billing.rows import make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:responses_ws_playground_changelist")
KEY = reverse("admin:responses_ws_playground_key")
REVOKE = reverse("admin:responses_ws_playground_revoke")
PRICE = reverse("admin:responses_ws_playground_price")


def member(*codenames: str) -> Client:
    user = User.objects.create(username=f"staff{User.objects.count()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def staff():
    return member("use_playground")


def issue(client: Client, project: Project) -> ApiKey:
    answer = client.post(KEY, {"project": project.pk}).json()
    key = ApiKey.objects.find(answer["key"])
    assert key is not None and key.pk == answer["id"]
    return key


def test_a_key_speaks_for_the_chosen_project_and_ends_by_itself(staff):
    project = make_project("acme", "trial")

    key = issue(staff, project)

    assert (key.project, key.name) == (project, "Playground of staff0")
    assert timedelta(minutes=14) < key.expires_at - timezone.now() <= timedelta(minutes=15)


def test_a_key_that_was_given_is_stored_by_no_cache_and_shown_on_no_page(staff):
    answer = staff.post(KEY, {"project": make_project().pk})

    assert "no-store" in answer["Cache-Control"]
    assert answer.json()["key"] not in staff.get(PAGE).content.decode()


@pytest.mark.parametrize("project", ["", "x", "0", "-1", "999999", "1 OR 1=1", "²"])
def test_there_is_no_key_for_a_project_that_is_not_there(staff, project):
    assert staff.post(KEY, {"project": project}).status_code == 404
    assert not ApiKey.objects.exists()


def test_a_key_is_revoked_by_the_page_that_had_it(staff):
    key = issue(staff, make_project())

    assert staff.post(REVOKE, {"id": key.pk}).status_code == 204

    assert not ApiKey.objects.usable().exists()


def test_nobody_revokes_a_key_that_was_not_made_for_their_page(staff):
    theirs = issue(member("use_playground"), make_project())
    kept = make_key(make_project())

    answers = [staff.post(REVOKE, {"id": pk}).status_code for pk in (theirs.pk, kept.pk, "", "x")]

    assert answers == [404] * 4
    assert ApiKey.objects.usable().count() == 2


def test_the_office_asks_for_its_token(staff):
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = staff.cookies

    assert strict.post(KEY, {"project": make_project().pk}).status_code == 403


def test_a_response_of_the_page_has_its_price_before_it_is_billed(staff):
    make_prices()
    project = make_project()
    record = make_record(project, api_key=issue(staff, project), cached_tokens=400)

    price = staff.get(PRICE, {"response": record.response_id}).json()

    # 600 × $2, 400 × $0.50 and 100 × $8, each for a million
    assert (price["amount_nano"], price["currency"]) == (600 * 2000 + 400 * 500 + 100 * 8000, "USD")
    assert {line["component"]: line["quantity"] for line in price["lines"]} == {
        "input": 600,
        "cached_input": 400,
        "output": 100,
    }


def test_prices_of_others_responses_take_the_permission_to_see_usage(staff):
    make_prices()
    record = make_record(api_key=make_key(make_project()))
    running = make_record(status="in_progress")

    assert staff.get(PRICE, {"response": record.response_id}).json() is None
    seeing = member("use_playground", "view_usagerecord")
    assert seeing.get(PRICE, {"response": record.response_id}).json()["amount_nano"] > 0
    for unknown in (running.response_id, "resp_nobody", ""):
        assert seeing.get(PRICE, {"response": unknown}).json() is None


def test_where_it_is_off_there_is_nothing(settings):
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "PLAYGROUND": None}
    boss = Client()
    boss.force_login(User.objects.create_superuser("boss"))

    assert [boss.get(PAGE).status_code, boss.post(KEY).status_code, boss.get(PRICE).status_code] == [404] * 3
    assert "playground" not in boss.get(reverse("admin:index")).content.decode().lower()
    settings.DEBUG = True
    assert boss.get(PAGE).status_code == 200


def test_its_policy_lets_nothing_in(staff):
    policy = dict(part.split(" ", 1) for part in staff.get(PAGE)["Content-Security-Policy"].split("; "))

    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["connect-src"] == "'self' ws://testserver"
    assert "unsafe" not in str(policy)


def test_names_are_text_in_the_page(staff):
    make_project('"><script>alert(1)</script>', "</script>'{{7*7}}")

    page = staff.get(PAGE).content.decode()

    assert "<script>alert" not in page
    assert "{{7*7}}" in page
