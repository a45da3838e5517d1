from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from responses_ws.models import Chain, Project, StoredItem, StoredResponse
from responses_ws.stores import rows
from responses_ws.stores.base import Place


def item(name: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": name, "id": f"msg_{name}"}


def save(project: Project, name: str, parent: Place | None, items: str, *, input_end: int, days: int = 30) -> Place:
    """Store a response; each letter of ``items`` is one."""
    response = {"id": f"resp_{name}", "previous_response_id": None, "model": "m", "status": "completed"}
    with transaction.atomic():
        return rows.save(
            project_id=project.pk,
            response=response,
            parent=parent,
            items=[item(letter) for letter in items],
            input_end=input_end,
            expires_at=timezone.now() + timedelta(days=days),
        )


def letters(project: Project, name: str) -> str | None:
    stored = rows.load(project.pk, f"resp_{name}")
    return None if stored is None else "".join(entry["content"] for entry in stored.items)


def test_a_chain_grows_in_place(project: Project) -> None:
    first = save(project, "1", None, "ab", input_end=1)

    second = save(project, "2", first, "cd", input_end=3)

    assert (second.chain_id, second.end) == (first.chain_id, 4)
    assert (letters(project, "1"), letters(project, "2")) == ("ab", "abcd")
    assert Chain.objects.get().length == 4


def test_the_output_of_a_response_is_its_last_items(project: Project) -> None:
    save(project, "1", None, "abc", input_end=1)

    stored = rows.load(project.pk, "resp_1")

    assert stored is not None
    assert [entry["content"] for entry in stored.response["output"]] == ["b", "c"]


def test_forks_and_forks_of_forks_load_their_own_past(project: Project) -> None:
    root = save(project, "root", None, "ab", input_end=1)
    save(project, "trunk", root, "cd", input_end=3)
    fork = save(project, "fork", root, "ef", input_end=3)
    save(project, "fork2", fork, "gh", input_end=5)
    twig = save(project, "twig", fork, "ij", input_end=5)

    assert letters(project, "trunk") == "abcd"
    assert letters(project, "fork2") == "abefgh"
    assert letters(project, "twig") == "abefij"
    assert len(twig.path) == 2 and twig.root == root.root
    assert StoredItem.objects.count() == 10


@pytest.mark.parametrize("turns", [2, 40])
def test_loading_takes_two_queries_whatever_the_length(
    project: Project, django_assert_num_queries: Any, turns: int
) -> None:
    place = None
    for number in range(turns):
        place = save(project, str(number), place, "xy", input_end=2 * number + 1)

    with django_assert_num_queries(2):
        stored = rows.load(project.pk, f"resp_{turns - 1}")

    assert stored is not None and len(stored.items) == 2 * turns


def test_what_is_foreign_expired_or_unknown_is_not_found(project: Project) -> None:
    other = Project.objects.create(organization=project.organization, name="other")
    save(project, "mine", None, "ab", input_end=1)
    save(project, "old", None, "ab", input_end=1, days=-1)

    assert rows.load(other.pk, "resp_mine") is None
    assert rows.load(project.pk, "resp_old") is None
    assert rows.load(project.pk, "resp_unknown") is None


def test_deleting_takes_everything_continued_from_it(project: Project) -> None:
    root = save(project, "root", None, "ab", input_end=1)
    middle = save(project, "middle", root, "cd", input_end=3)
    save(project, "end", middle, "ef", input_end=5)
    save(project, "fork of middle", middle, "gh", input_end=5)
    save(project, "fork of root", root, "ij", input_end=3)

    deleted = rows.delete(project.pk, "resp_middle")

    assert deleted is not None
    assert deleted.response_ids == {"resp_middle", "resp_end", "resp_fork of middle"}
    assert sorted(deleted.chains.values()) == [0, 2] and deleted.chains[root.chain_id] == 2
    assert letters(project, "root") == "ab"
    assert letters(project, "fork of root") == "abij"
    assert letters(project, "middle") is letters(project, "end") is letters(project, "fork of middle") is None
    assert sorted(StoredItem.objects.values_list("item_id", flat=True)) == ["msg_a", "msg_b", "msg_i", "msg_j"]
    assert not StoredResponse.objects.filter(id__in=deleted.response_ids).exclude(body="{}").exists()


def test_a_parent_can_be_continued_after_its_child_was_deleted(project: Project) -> None:
    root = save(project, "root", None, "ab", input_end=1)
    save(project, "child", root, "cd", input_end=3)
    rows.delete(project.pk, "resp_child")

    save(project, "again", root, "ef", input_end=3)

    assert letters(project, "again") == "abef"


def test_a_response_that_adds_nothing_is_deleted_without_its_parent(project: Project) -> None:
    """A warm-up with an empty input ends where its parent ends."""
    root = save(project, "root", None, "ab", input_end=1)
    warm = save(project, "warm", root, "", input_end=2)
    save(project, "after", warm, "cd", input_end=3)
    save(project, "beside", root, "ef", input_end=3)
    StoredResponse.objects.filter(id="resp_beside").update(previous_response_id="resp_root")

    deleted = rows.delete(project.pk, "resp_warm")

    assert deleted is not None and deleted.response_ids == {"resp_warm", "resp_after"}
    assert (letters(project, "root"), letters(project, "beside")) == ("ab", "abef")
    assert letters(project, "warm") is letters(project, "after") is None


def test_what_was_deleted_is_known_to_be_gone(project: Project) -> None:
    root = save(project, "root", None, "ab", input_end=1)
    middle = save(project, "middle", root, "cd", input_end=3)
    fork = save(project, "fork", root, "ef", input_end=3)
    rows.delete(project.pk, "resp_middle")

    assert rows.exists(root) and rows.exists(fork) and not rows.exists(middle)


def test_nobody_deletes_another_project_s_response(project: Project) -> None:
    other = Project.objects.create(organization=project.organization, name="other")
    save(project, "mine", None, "ab", input_end=1)

    assert rows.delete(other.pk, "resp_mine") is None
    assert letters(project, "mine") == "ab"


def plan_of(query: str) -> str:
    """How the database would run it, where every row counts as many."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # In small tables an index does not pay; what has none to use still shows.
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute(f"EXPLAIN {query}")
        else:
            cursor.execute(f"EXPLAIN QUERY PLAN {query}")
        return "\n".join(str(row) for row in cursor.fetchall())


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda project: rows.load(project.pk, "resp_end"), id="a chain of 2,000 items"),
        pytest.param(lambda project: rows.load(project.pk, "resp_fork"), id="a fork"),
        pytest.param(lambda project: rows.status_of(project.pk, "resp_end"), id="a status"),
        pytest.param(lambda project: rows.exists(place_of(project, "resp_fork")), id="whether a place is there"),
        pytest.param(lambda project: rows.find_items(project.pk, {"msg_7", "msg_8"}), id="items by their ids"),
        pytest.param(lambda project: rows.delete(project.pk, "resp_end"), id="a deletion"),
    ],
)
def test_nothing_is_looked_for_without_an_index(project: Project, look: Callable[[Project], Any]) -> None:
    names = [str(number) for number in range(2000)]
    with transaction.atomic():
        chain = rows.save(
            project_id=project.pk,
            response={"id": "resp_end", "previous_response_id": None, "model": "m", "status": "completed"},
            parent=None,
            items=[item(name) for name in names],
            input_end=1999,
            expires_at=timezone.now() + timedelta(days=1),
        )
    save(project, "on", chain, "ab", input_end=2001)
    save(project, "fork", chain, "cd", input_end=2001)

    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        assert look(project)
        ran = [query["sql"] for query in captured.captured_queries]
        plans = {sql: plan_of(sql) for sql in ran if sql.startswith(("SELECT", "UPDATE", "DELETE"))}

    assert plans
    for sql, plan in plans.items():
        assert "Seq Scan" not in plan and "SCAN responses_ws" not in plan, f"{sql}\n{plan}"


def test_a_fork_of_a_thousand_forks_loads_its_past(project: Project) -> None:
    depth = 1200
    chains = [UUID(int=number) for number in range(1, depth + 1)]
    path = [(chain, number + 1) for number, chain in enumerate(chains)]
    Chain.objects.bulk_create(
        Chain(id=chain, project=project, root=chains[0], length=number + 1) for number, chain in enumerate(chains)
    )
    Chain.objects.filter(id=chains[-1]).update(path=[[str(chain), cut] for chain, cut in path[:-1]])
    StoredItem.objects.bulk_create(
        StoredItem(chain_id=chain, position=number, item_id=f"msg_{number}", body=f'{{"content": "{number % 10}"}}')
        for number, chain in enumerate(chains)
    )
    place = Place(chains[-1], chains[0], tuple(path[:-1]), depth)
    save(project, "twig", place, "xy", input_end=depth + 1)

    assert letters(project, "twig") == "0123456789" * (depth // 10) + "xy"


def place_of(project: Project, name: str) -> Place:
    stored = rows.load(project.pk, name)
    assert stored is not None
    return stored.place
