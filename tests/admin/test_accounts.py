"""Keys are shown once, and then never again."""

import re

import pytest
from django.urls import reverse

from responses_ws.connection.rates import Rates
from responses_ws.models import ApiKey, ControlMessage, Project, WebSocketShare
from tests.billing.rows import make_key, make_project

pytestmark = pytest.mark.django_db

ADD = "admin:responses_ws_apikey_add"
CHANGE = "admin:responses_ws_apikey_change"
LIST = "admin:responses_ws_apikey_changelist"


def create(client, **fields):
    """Post the form and read the page it leads to."""
    data = {
        "project": make_project().pk,
        "name": "laptop",
        "allowed_models": "",
        "expires_at_0": "",
        "expires_at_1": "",
    }
    return client.post(reverse(ADD), data | fields, follow=True).content.decode()


def test_a_new_key_is_shown_once(boss):
    page = create(boss)

    key = ApiKey.objects.get()
    (secret,) = re.findall(r"<code>(sk-proj-[\w-]+)</code>", page)
    assert ApiKey.objects.find(secret) == key
    for path in (reverse(LIST), reverse(CHANGE, args=(key.pk,))):
        later = boss.get(path).content.decode()
        assert secret not in later
        assert key.redacted in later


def test_models_are_written_one_a_line(boss):
    create(boss, allowed_models="small\n\n  large \n")

    key = ApiKey.objects.get()
    assert key.allowed_models == ["small", "large"]
    assert "small\nlarge</textarea>" in boss.get(reverse(CHANGE, args=(key.pk,))).content.decode()


def test_changing_a_key_leaves_its_secret_and_project(boss):
    key = make_key(make_project())
    other = make_project("globex")

    boss.post(
        reverse(CHANGE, args=(key.pk,)),
        {"name": "renamed", "project": other.pk, "allowed_models": "", "digest": "x", "last4": "x"},
    )

    changed = ApiKey.objects.find(key.secret)
    assert (changed.name, changed.project, changed.last4) == ("renamed", key.project, key.last4)


def test_keys_are_revoked_from_the_list(boss):
    revoked, kept = make_key(make_project(), "a"), make_key(make_project(), "b")

    boss.post(reverse(LIST), {"action": "revoke", "_selected_action": [revoked.pk]})

    assert ApiKey.objects.find(revoked.secret) is None
    assert ApiKey.objects.find(kept.secret) == kept


def test_revoking_again_keeps_the_first_moment(boss):
    key = make_key(make_project())
    boss.post(reverse(LIST), {"action": "revoke", "_selected_action": [key.pk]})
    first = ApiKey.objects.get().revoked_at

    boss.post(reverse(LIST), {"action": "revoke", "_selected_action": [key.pk]})

    assert ApiKey.objects.get().revoked_at == first


def test_who_may_only_view_cannot_revoke(log_in):
    key = make_key(make_project())

    log_in("view_apikey").post(reverse(LIST), {"action": "revoke", "_selected_action": [key.pk]})

    assert ApiKey.objects.find(key.secret) == key


def test_keys_are_not_deleted(boss):
    key = make_key(make_project())

    answer = boss.post(reverse("admin:responses_ws_apikey_delete", args=(key.pk,)), {"post": "yes"})

    assert answer.status_code == 403
    assert ApiKey.objects.count() == 1


@pytest.mark.parametrize(("usable", "names"), [("yes", ["kept"]), ("no", ["revoked"])])
def test_the_list_is_filtered_by_state(boss, usable, names):
    make_key(make_project(), "kept")
    make_key(make_project(), "revoked")
    ApiKey.objects.filter(name="revoked").revoke()

    shown = boss.get(reverse(LIST), {"usable": usable}).context["cl"].result_list

    assert [key.name for key in shown] == names


def test_a_key_is_given_rates_of_its_own(boss):
    create(boss, requests_per_minute="60", open_sockets="")

    key = ApiKey.objects.get()
    assert (key.rates, key.project.rates) == (Rates(requests_per_minute=60), Rates())


def test_a_rate_of_nothing_is_refused(boss):
    page = create(boss, concurrent_turns="0")

    assert "greater than or equal to 1" in page
    assert not ApiKey.objects.exists()


def test_a_project_is_given_rates_and_its_keys_hear_of_it(boss):
    key = make_key(make_project())
    fields = {"name": key.project.name, "tokens_per_minute": "5000"}

    boss.post(reverse("admin:responses_ws_project_change", args=(key.project_id,)), fields)

    assert Project.objects.get().rates == Rates(tokens_per_minute=5000)
    assert ControlMessage.objects.get().body == {"api_key_id": key.pk}


def test_servers_are_told_of_a_share_that_is_made_changed_or_deleted(boss):
    pages = "admin:responses_ws_websocketshare"
    told = []

    def post(page, data, *args):
        boss.post(reverse(f"{pages}_{page}", args=args), data)
        told.append(ControlMessage.objects.filter(kind="websocket_shares_changed").count())

    post("add", {"project": "", "percent": 5})
    share = WebSocketShare.objects.get()
    post("change", {"project": "", "percent": 20}, share.pk)
    post("changelist", {"action": "delete_selected", "_selected_action": share.pk, "post": "yes"})

    assert told == [1, 2, 3]
    assert not WebSocketShare.objects.exists()


@pytest.mark.parametrize(
    ("project", "percent", "complaint"),
    [
        pytest.param("", 101, "less than or equal to 100", id="more than all"),
        pytest.param("", 5, "There is a share for these already", id="a second one for all"),
    ],
)
def test_a_share_that_makes_no_sense_is_refused(boss, project, percent, complaint):
    WebSocketShare.objects.create(project=None, percent=50)

    page = boss.post(reverse("admin:responses_ws_websocketshare_add"), {"project": project, "percent": percent})

    assert complaint in page.content.decode()
    assert WebSocketShare.objects.get().percent == 50
