"""A response's own page: what became of it, and when."""

import json
import logging

import pytest
from django.urls import reverse

from responses_ws.billing import ledger
from responses_ws.models import ResponseEvents
from tests.billing.rows import make_key, make_prices, make_project, make_record

from .conftest import SCRIPT, say

pytestmark = pytest.mark.django_db


def page_of(response_id):
    return reverse("admin:responses_ws_dashboard_response", args=(response_id,))


@pytest.fixture
def told(db):
    """A background response whose log has two events, billed."""
    make_prices()
    project = make_project("acme", "chat")
    record = make_record(
        project, response_id="resp_told", api_key=make_key(project), checks_ms=2.0, render_ms=3.0,
        first_token_ms=105.0, duration_ms=2_000.0,
    )  # fmt: skip
    ledger.bill_all()
    say(project, "resp_told", [])
    events = [
        {"type": "response.created", "sequence_number": 0},
        {"type": "response.output_text.delta", "sequence_number": 1, "delta": SCRIPT},
    ]
    ResponseEvents.objects.create(
        project=project, response_id="resp_told", first_number=0, count=2, frames="\n".join(map(json.dumps, events))
    )
    return record


def test_it_says_where_the_time_went_and_what_it_cost(boss, told):
    page = boss.get(page_of("resp_told")).content.decode()

    for words in ("2.0 ms", "3.0 ms", "100.0 ms", "1,895.0 ms", "5.0%", "in the ledger", "0.0028 USD"):
        assert words in page, words


def test_events_are_told_by_type_and_what_was_said_only_to_who_may(log_in, told, caplog):
    caplog.set_level(logging.INFO, "responses_ws.admin.timeline")
    seen = log_in("view_usagerecord").get(page_of("resp_told")).content.decode()
    assert "response.output_text.delta" in seen and "alert(" not in seen
    assert not caplog.records

    seen = log_in("view_usagerecord", "view_content").get(page_of("resp_told")).content.decode()

    assert "&lt;script&gt;alert(" in seen and SCRIPT not in seen
    assert "resp_told" in caplog.text


def test_a_response_that_is_not_there_leads_back(boss):
    answer = boss.get(page_of("resp_nowhere"))

    assert answer.status_code == 302
