"""What was said is for those who may read it, and does nothing in their browser."""

import pytest
from django.urls import reverse

from responses_ws.models import StoredResponse
from responses_ws.stores import rows

from .conftest import SCRIPT

pytestmark = pytest.mark.django_db

PAGE = "admin:responses_ws_storedresponse_change"


def page_of(client):
    return client.get(reverse(PAGE, args=("resp_stored",))).content.decode()


def test_content_needs_a_permission_of_its_own(log_in, filled):
    without = page_of(log_in("view_storedresponse"))
    allowed = page_of(log_in("view_storedresponse", "view_content"))

    assert "resp_stored" in without
    assert [words in without for words in ("what was asked", "be secret", "msg_1")] == [False] * 3
    assert [words in allowed for words in ("what was asked", "be secret", "msg_1")] == [True] * 3


def test_the_permission_to_read_is_not_a_permission_to_list(log_in, filled):
    client = log_in("view_content")

    assert client.get(reverse(PAGE, args=("resp_stored",))).status_code == 403


def test_content_is_escaped(boss, filled):
    page = page_of(boss)

    assert SCRIPT not in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;" in page


def test_content_of_a_deleted_response_is_gone(boss, filled):
    rows.delete(filled.pk, "resp_stored")

    page = page_of(boss)

    assert "what was asked" not in page
    assert "No longer kept: deleted or expired." in page


def test_the_list_does_not_load_content(boss, filled):
    shown = boss.get(reverse("admin:responses_ws_storedresponse_changelist")).context["cl"].result_list

    assert [response.get_deferred_fields() for response in shown] == [{"body"}]
    assert StoredResponse.objects.count() == 1
