from datetime import UTC, datetime
from uuid import uuid4

import pytest

from responses_ws.models import Chain, Organization, Project, StoredItem
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
