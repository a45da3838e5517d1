"""Every page of the office opens with rows in it, for whom it may, and in few queries."""

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from responses_ws.admin import base
from responses_ws.models import (
    Account,
    Journal,
    Organization,
    Posting,
    Project,
    PromptTemplate,
    PromptVersion,
    RatedLine,
    SafetyRule,
    StoredResponse,
    UsageRecord,
)
from responses_ws.stores import conversations
from tests.billing.rows import make_key, make_prices, make_project, make_record

from .conftest import make_flag

pytestmark = pytest.mark.django_db

LISTED = [
    "account",
    "adminkey",
    "apikey",
    "budget",
    "budgetalert",
    "conversation",
    "creditgrant",
    "delivery",
    "flag",
    "invoice",
    "journal",
    "organization",
    "price",
    "project",
    "prompttemplate",
    "promptversion",
    "reconciliation",
    "safetyrule",
    "storedresponse",
    "usagerecord",
    "websocketshare",
]
READ_ONLY = [
    "account",
    "budgetalert",
    "conversation",
    "delivery",
    "flag",
    "invoice",
    "journal",
    "reconciliation",
    "storedresponse",
    "usagerecord",
]
NEVER_REGISTERED = {
    "controlmessage",
    "heartbeat",
    "chain",
    "conversationitem",
    "storeditem",
    "responseevents",
    "backgroundrun",
    "idempotencykey",
    "grantuse",
    "invoiceline",
    "invoiceseries",
    "usagerollup",
    "latencyrollup",
    "endingrollup",
} | {
    "posting",
    "ratedline",
}


def changelist(model):
    return reverse(f"admin:responses_ws_{model}_changelist")


def change_page(model, pk):
    return reverse(f"admin:responses_ws_{model}_change", args=(quote(pk),))


def pages():
    """The path of every list, and of every row's own page."""
    for model in LISTED:
        yield changelist(model)
        for row in apps.get_model("responses_ws", model).objects.all():
            yield change_page(model, row.pk)


def test_every_table_has_its_page_but_the_parts_of_others():
    registered = {model._meta.model_name for model in admin.site._registry if model._meta.app_label == "responses_ws"}

    assert registered == {*LISTED, "dashboard", "live", "playground"}
    tables = {model._meta.model_name for model in apps.get_app_config("responses_ws").get_models()}
    assert tables - registered == NEVER_REGISTERED


def test_every_page_opens_with_rows_in_it(boss, filled):
    paths = list(pages())

    assert len(paths) > 30
    for path in paths:
        assert boss.get(path).status_code == 200, path


@pytest.mark.parametrize("model", LISTED)
def test_every_list_can_be_searched_filtered_and_sorted(boss, filled, model):
    page = admin.site._registry[apps.get_model("responses_ws", model)]
    queries = [{"o": str(number)} for number in range(1, len(page.list_display) + 1)]
    if page.search_fields:
        queries.append({"q": "resp_1"})

    for query in queries:
        assert boss.get(changelist(model), query).status_code == 200, query


@pytest.mark.parametrize("model", LISTED)
def test_a_list_takes_as_many_queries_with_forty_rows_as_with_few(boss, filled, model):
    with CaptureQueriesContext(connection) as few:
        boss.get(changelist(model))
    for number in range(20):
        project = make_project(f"org {number}", f"project {number}")
        make_key(project)
        make_prices(model=f"model {number}", per_million={"input": 1})
        record = make_record(project)
        journal = Journal.objects.create(
            idempotency_key=f"key {number}",
            kind="usage",
            organization=project.organization,
            usage=record,
            occurred_at=record.started_at,
        )
        Account.objects.create(organization=project.organization, kind="receivable")
        Posting.objects.create(journal=journal, account=Account.objects.last(), amount_nano=0)
        template = PromptTemplate.objects.create(project=project, name="many")
        PromptVersion.objects.create(template=template, text="hello")
        conversations.create(project.pk, f"conv_{number}", {}, [])
        make_flag(project, f"resp_{number}")
        SafetyRule.objects.create(name=f"rule {number}", kind="secrets", project=project)

    with CaptureQueriesContext(connection) as many:
        boss.get(changelist(model))

    assert len(many) == len(few), "\n".join(query["sql"] for query in many)


@pytest.mark.parametrize("model", LISTED)
def test_who_has_no_permission_is_refused(log_in, filled, model):
    client = log_in()

    assert client.get(changelist(model)).status_code == 403


@pytest.mark.parametrize("model", LISTED)
def test_who_may_view_cannot_change(log_in, filled, model):
    client = log_in(f"view_{model}")
    row = apps.get_model("responses_ws", model).objects.first()

    seen = client.get(change_page(model, row.pk))

    assert seen.status_code == 200
    assert b'name="_save"' not in seen.content
    assert client.post(change_page(model, row.pk), {"name": "changed"}).status_code == 403
    assert client.get(reverse(f"admin:responses_ws_{model}_add")).status_code == 403
    assert client.get(reverse(f"admin:responses_ws_{model}_delete", args=(quote(row.pk),))).status_code == 403


@pytest.mark.parametrize("model", READ_ONLY)
def test_nobody_adds_changes_or_deletes_what_others_write(boss, filled, model):
    table = apps.get_model("responses_ws", model)
    row = table.objects.first()
    before = table.objects.count()

    answers = [
        boss.get(reverse(f"admin:responses_ws_{model}_add")),
        boss.post(reverse(f"admin:responses_ws_{model}_add"), {}),
        boss.post(change_page(model, row.pk), {}),
        boss.get(reverse(f"admin:responses_ws_{model}_delete", args=(quote(row.pk),))),
        boss.post(reverse(f"admin:responses_ws_{model}_delete", args=(quote(row.pk),)), {"post": "yes"}),
    ]
    boss.post(changelist(model), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})

    assert [answer.status_code for answer in answers] == [403] * 5
    assert table.objects.count() == before


def test_no_ledger_row_is_deleted_by_way_of_its_owner(boss, filled):
    counts = [table.objects.count() for table in (Journal, RatedLine, Posting, UsageRecord, StoredResponse)]

    for table in (Organization, Project):
        for row in table.objects.all():
            path = reverse(f"admin:responses_ws_{table._meta.model_name}_delete", args=(quote(row.pk),))
            boss.post(path, {"post": "yes"})

    assert [table.objects.count() for table in (Journal, RatedLine, Posting, UsageRecord, StoredResponse)] == counts


def test_the_journal_shows_its_working(boss, filled):
    journal = Journal.objects.usage().filter(usage__status="completed", memo="").get()

    page = boss.get(change_page("journal", journal.pk)).content.decode()

    # 1,233,567 × $2 + 1,000 × $0.50 + 100 × $8, each for a million
    assert "$2.468434" in page
    assert "1,233,567" in page
    assert f"usage:{journal.usage.response_id}:1" in page


def test_usage_is_shown_with_separators_and_its_cost(boss, filled):
    page = boss.get(changelist("usagerecord")).content.decode()

    assert "1,234,567" in page
    assert "$2.468434" in page
    assert "300 ms" in page


def test_usage_is_found_by_the_beginning_of_its_response_id(boss, db):
    make_record(response_id="resp_aaa")
    make_record(response_id="resp_bbb")

    page = boss.get(changelist("usagerecord"), {"q": "resp_a"}).content.decode()

    assert "resp_aaa" in page
    assert "resp_bbb" not in page


def test_a_list_of_usage_looks_for_its_choices_in_no_record(boss, filled):
    with CaptureQueriesContext(connection) as queries:
        page = boss.get(changelist("usagerecord"))

    assert b"?model=m" in page.content
    assert not [
        query["sql"] for query in queries if query["sql"].startswith('SELECT DISTINCT "responses_ws_usagerecord"')
    ]


def test_a_list_of_what_others_write_is_counted_no_further_than_people_look(boss, filled, monkeypatch):
    monkeypatch.setattr(base, "MOST_COUNTED", 3)

    page = boss.get(changelist("usagerecord"))

    assert page.context["cl"].paginator.count == 3
    assert b"The first 3 in this order" in page.content
    assert b"in this order" not in boss.get(f"{changelist('usagerecord')}?status=nothing").content
