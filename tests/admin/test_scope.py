"""What the dashboard shows is in its URL: a link shows the same to others, and nonsense is said, not crashed at."""

from datetime import UTC, datetime

import pytest

from responses_ws.admin.scope import scope_of
from responses_ws.models import Organization, UsageRecord, UsageRollup
from tests.billing.rows import NOON, make_key, make_project, make_record

pytestmark = pytest.mark.django_db


def day(number, month=11):
    return datetime(2026, month, number, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "start", "end", "steps"),
    [
        ({}, day(31, 10), day(30), 30),
        ({"period": "7d"}, day(23), day(30), 7),
        ({"period": "90d"}, day(1, 9), day(30), 90),
        ({"period": "month"}, day(1), day(30), 29),
        ({"period": "last_month"}, day(1, 10), day(1), 31),
        ({"period": "24h"}, day(28).replace(hour=13), day(29).replace(hour=13), 24),
        ({"from": "2026-11-02", "to": "2026-11-03"}, day(2), day(4), 2),
        ({"from": "2026-11-20"}, day(20), day(30), 10),
    ],
    ids=str,
)
def test_a_period_is_whole_hours_or_days_of_utc(given, start, end, steps):
    period = scope_of(given, NOON).period

    assert (period.start, period.end, len(period.starts())) == (start, end, steps)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"period": "fortnight"}, "fortnight"),
        ({"from": "yesterday"}, "yesterday"),
        ({"from": "2026-11-03", "to": "2026-11-02"}, "is before"),
        ({"from": "2020-01-01", "to": "2026-11-02"}, "more than 400 days"),
        ({"from": "0001-01-01", "to": "0001-01-01"}, "no day that can be shown"),
        ({"organization": "9999"}, "no organization '9999'"),
        ({"project": "x' OR 1=1"}, "no project"),
        ({"key": "9" * 40}, "no key"),
        ({"currency": "XYZ"}, "XYZ"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_said_and_left_out(given, said):
    make_project()

    scope = scope_of(given, NOON)

    (note,) = scope.notes
    assert said in note
    assert scope.query == {}


def test_the_narrowest_owner_counts_and_names_the_others():
    key = make_key(make_project("acme", "chat"))

    scope = scope_of({"key": str(key.pk)}, NOON)

    assert (scope.organization.name, scope.project.name, scope.api_key) == ("acme", "chat", key)
    assert scope.query == {"key": str(key.pk)}


def test_another_organisation_in_the_form_lets_go_of_project_and_key():
    key, other = make_key(make_project("acme", "chat")), make_project("globex", "lab")
    given = {"organization": str(other.organization_id), "project": str(key.project_id), "key": str(key.pk)}

    scope = scope_of(given, NOON)

    assert (scope.organization, scope.project, scope.api_key) == (other.organization, None, None)


def test_a_link_leads_to_what_it_says():
    project = make_project("acme", "chat")
    scope = scope_of({"period": "7d", "model": "m & m", "organization": str(project.organization_id)}, NOON)

    assert scope.url(project=project.pk) == f"?period=7d&model=m+%26+m&project={project.pk}"
    assert scope.url(project=project.pk, key="none") == f"?period=7d&model=m+%26+m&project={project.pk}&key=none"
    assert scope.url(organization="") == "?period=7d&model=m+%26+m"


def test_money_of_two_currencies_is_never_added_up():
    make_project("acme")
    euro = make_project("globex")
    Organization.objects.filter(name="globex").update(currency="EUR")
    for project, amount in ((make_project("acme"), 5), (euro, 7)):
        UsageRollup.objects.create(
            width="day", start=day(29), organization_id=project.organization_id, project_id=project.pk,
            api_key_id=0, model="m", service_tier="default", amount_nano=amount,
        )  # fmt: skip

    sums = {given: scope_of({"currency": given}, NOON).within(UsageRollup.objects).amount() for given in ("USD", "EUR")}

    assert sums == {"USD": 5, "EUR": 7}
    assert scope_of({"organization": str(euro.organization_id)}, NOON).currency == "EUR"


def test_records_without_a_key_are_a_place_to_look_at():
    project = make_project()
    make_record(project, api_key=make_key(project))
    keyless = make_record(project)

    scope = scope_of({"project": str(project.pk), "key": "none"}, NOON)

    assert list(scope.records(UsageRecord.objects.all())) == [keyless]


def test_records_and_sums_are_of_the_narrowest_that_is_named():
    chat, lab = make_project("acme", "chat"), make_project("acme", "lab")
    key = make_key(chat)
    made = [
        make_record(chat, api_key=key),
        make_record(chat, model="n"),
        make_record(lab),
        make_record(make_project("globex")),
    ]
    for number, record in enumerate(made):
        UsageRollup.objects.create(
            width="day", start=day(29), organization_id=record.organization_id, project_id=record.project_id,
            api_key_id=record.api_key_id or 0, model=record.model, service_tier="default",
            amount_nano=10**number,
        )  # fmt: skip

    def seen(**given):
        scope = scope_of(given, NOON)
        records = [made.index(one) for one in scope.records(UsageRecord.objects.order_by("pk"))]
        return records, scope.within(UsageRollup.objects).amount()

    assert seen() == ([0, 1, 2, 3], 1_111)
    assert seen(organization=str(chat.organization_id)) == ([0, 1, 2], 111)
    assert seen(project=str(chat.pk)) == ([0, 1], 11)
    assert seen(project=str(chat.pk), key="none") == ([1], 10)
    assert seen(key=str(key.pk)) == ([0], 1)
    assert seen(model="n") == ([1], 10)


def test_hours_are_read_where_hours_are_asked_for():
    project = make_project()
    for width, start, amount in (("hour", NOON, 1), ("day", day(29), 10)):
        UsageRollup.objects.create(
            width=width, start=start, organization_id=project.organization_id, project_id=project.pk, api_key_id=0,
            model="m", service_tier="default", amount_nano=amount,
        )  # fmt: skip

    sums = [scope_of({"period": name}, NOON).within(UsageRollup.objects).amount() for name in ("24h", "7d")]

    assert sums == [1, 10]


def test_what_is_shown_in_the_place_of_nonsense_is_said():
    told = [scope_of(given, NOON) for given in ({"period": "x"}, {"from": "x"})]

    assert [scope.notes for scope in told] == [
        ("There is no period 'x': last 30 days are shown.",),
        ("'x' is no day such as 2026-11-29: last 30 days are shown.",),
    ]
    assert [(scope.period.start, scope.period.end) for scope in told] == [(day(31, 10), day(30))] * 2
