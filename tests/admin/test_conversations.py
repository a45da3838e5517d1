"""Conversations in the office: what is in them is for those who may read it."""

import pytest
from django.urls import reverse

from .conftest import SCRIPT

pytestmark = pytest.mark.django_db


def page_of(client):
    return client.get(reverse("admin:responses_ws_conversation_change", args=("conv_kept",))).content.decode()


def test_items_need_a_permission_of_their_own_and_are_escaped(log_in, filled):
    without = page_of(log_in("view_conversation"))
    allowed = page_of(log_in("view_conversation", "view_content"))

    assert "conv_kept" in without and "msg_kept" not in without
    assert "msg_kept" in allowed and SCRIPT not in allowed
