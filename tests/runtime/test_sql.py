from datetime import UTC, datetime
from uuid import uuid4

import pytest

from responses_ws.models import Chain, EndingRollup, Organization, Project, StoredItem
from responses_ws.runtime import sql

pytestmark = pytest.mark.django_db(transaction=True)
MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)


def test_rows_come_back_as_the_orm_would_have_written_them(project: Project) -> None:
    chain_id, path = uuid4(), [[str(uuid4()), 3]]

    sql.insert(
        Chain,
        [{"id": chain_id, "project_id": project.pk, "root": chain_id, "path": path, "length": 2, "created_at": MOMENT}],
    )
    sql.insert(
        StoredItem, [{"chain_id": chain_id, "position": n, "item_id": str(n), "body": "ü\\u0000"} for n in (0, 1)]
    )

    chain = Chain.objects.get()
    assert (chain.id, chain.path, chain.length, chain.created_at) == (chain_id, path, 2, MOMENT)
    assert list(chain.items.values_list("position", "body")) == [(0, "ü\\u0000"), (1, "ü\\u0000")]


def test_defaults_fill_what_is_left_out() -> None:
    sql.insert(Organization, [{"name": "Acme"}])

    assert Organization.objects.get().created_at.year >= 2026


def test_an_update_says_how_many_rows_it_met() -> None:
    Organization.objects.create(name="Acme")

    assert sql.update(Organization, {"name": "Acme 2"}, {"name": "Acme"}) == 1
    assert sql.update(Organization, {"name": "Acme 3"}, {"name": "Acme"}) == 0
    assert Organization.objects.get().name == "Acme 2"


def test_a_row_is_there_only_where_all_of_it_is_equal(project: Project) -> None:
    sql.insert(Chain, [{"id": (chain_id := uuid4()), "project_id": project.pk, "root": chain_id, "length": 1}])
    sql.insert(StoredItem, [{"chain_id": chain_id, "position": 4, "item_id": "msg_1", "body": ""}])

    assert sql.exists(StoredItem, {"chain_id": chain_id, "position": 4})
    assert not sql.exists(StoredItem, {"chain_id": chain_id, "position": 5})
    assert not sql.exists(StoredItem, {"chain_id": uuid4(), "position": 4})


def test_numbers_are_added_to_rows_that_are_there_and_make_those_that_are_not() -> None:
    keys = ("width", "start", "organization_id", "project_id", "api_key_id", "model", "status", "reason")
    rows = {("hour", MOMENT, 1, 2, 3, "m", "failed", reason): {"responses": 2} for reason in ("b", "a")}

    sql.add(EndingRollup, keys, rows)
    sql.add(EndingRollup, keys, {**rows, ("day", MOMENT, 1, 2, 3, "m", "failed", "a"): {"responses": -1}})
    sql.add(EndingRollup, keys, {})

    found = EndingRollup.objects.order_by("width", "reason").values_list("width", "start", "reason", "responses")
    assert list(found) == [("day", MOMENT, "a", -1), ("hour", MOMENT, "a", 4), ("hour", MOMENT, "b", 4)]


def test_more_rows_than_one_statement_takes_are_added_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "_PARAMETERS", 27)
    keys = ("width", "start", "organization_id", "project_id", "api_key_id", "model", "status", "reason")

    sql.add(EndingRollup, keys, {("day", MOMENT, n, 0, 0, "m", "failed", ""): {"responses": n} for n in range(8)})

    assert list(EndingRollup.objects.order_by("id").values_list("organization_id", "responses")) == [
        (n, n) for n in range(8)
    ]
