"""The live view's page, and what is posted from it."""

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from responses_ws.models import ApiKey, ControlMessage
from tests.billing.rows import make_key, make_project

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:responses_ws_live_changelist")
CLOSE, CANCEL, REVOKE = (reverse(f"admin:responses_ws_live_{name}") for name in ("close", "cancel", "revoke"))
SOCKET, RESPONSE = "req_" + "5a" * 24, "resp_" + "5a" * 24


@pytest.mark.parametrize(
    ("codenames", "orders"),
    [
        pytest.param([], "", id="who sees"),
        pytest.param(["close_socket"], "close cancel ", id="who closes"),
        pytest.param(["revoke_apikey"], "revoke ", id="who revokes"),
    ],
)
def test_only_what_one_may_do_is_offered(log_in, codenames, orders):
    page = log_in("view_usagerecord", *codenames).get(PAGE)

    assert f'data-orders="{orders}"' in page.content.decode()


def test_the_page_runs_nothing_that_stands_in_it(boss):
    page = boss.get(PAGE)

    policy = page.headers["Content-Security-Policy"]
    assert "unsafe" not in policy and "connect-src 'self'" in policy
    assert page.content.count(b"<script") == page.content.count(b"<script src=") + page.content.count(
        b'<script type="module" src='
    )


@pytest.mark.parametrize(
    ("path", "identity", "told", "word"),
    [
        (CLOSE, SOCKET, ("socket_closed", {"connection_id": SOCKET}), "Closed its connection."),
        (CANCEL, RESPONSE, ("turn_cancelled", {"response_id": RESPONSE}), "Cancelled its turn."),
    ],
)
def test_an_order_is_told_to_all_processes_and_written_down(log_in, path, identity, told, word):
    answer = log_in("close_socket").post(path, {"id": identity})

    assert answer.status_code == 200
    assert list(ControlMessage.objects.values_list("kind", "body")) == [told]
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.get_change_message(), entry.user.username) == (identity, word, "staff0")
    assert entry.content_type.model == "live"


def test_a_key_is_revoked_once_and_its_history_says_by_whom(log_in, django_capture_on_commit_callbacks):
    key = make_key(make_project())
    client = log_in("revoke_apikey")

    for _ in range(2):
        assert client.post(REVOKE, {"id": key.pk}).status_code == 200

    assert not ApiKey.objects.get().is_usable
    assert [message.kind for message in ControlMessage.objects.all()] == ["key_changed"]
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, entry.get_change_message()) == (str(key.pk), "Revoked in the live view.")


@pytest.mark.parametrize(
    ("path", "identity", "status"),
    [
        (CLOSE, "", 400),
        (CLOSE, "req_<script>", 400),
        (CLOSE, "req_" + "5" * 101, 400),
        (CANCEL, "12", 400),
        (REVOKE, "x", 400),
        (REVOKE, "9" * 30, 400),
        (REVOKE, "4711", 404),
    ],
)
def test_what_is_no_id_is_refused_and_leaves_no_trace(boss, path, identity, status):
    answer = boss.post(path, {"id": identity})

    assert answer.status_code == status
    assert not LogEntry.objects.exists() and not ControlMessage.objects.exists()


@pytest.mark.parametrize("path", [CLOSE, CANCEL, REVOKE])
def test_another_site_cannot_post_an_order(boss, path):
    client = Client(enforce_csrf_checks=True)
    client.cookies = boss.cookies

    assert client.post(path, {"id": SOCKET}).status_code == 403
    assert not ControlMessage.objects.exists()
