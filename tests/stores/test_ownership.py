"""Whose a response is: every look-up, asked by its owner, by another project, and when it is too late."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from django.utils import timezone

from responses_ws.models import (
    BackgroundRun,
    Chain,
    Conversation,
    Project,
    ResponseEvents,
    StoredItem,
    StoredResponse,
)
from responses_ws.stores import events, rows
from responses_ws.stores.base import Place
from tests.billing.rows import make_project, make_record

pytestmark = pytest.mark.django_db


def message(name: str, content: str = "") -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content or name, "id": f"msg_{name}"}


@pytest.fixture
def mine() -> Project:
    return make_project("acme", "mine")


@pytest.fixture
def theirs() -> Project:
    """Of the same organisation: what is between projects is between organisations, too."""
    return make_project("acme", "theirs")


def in_a_month() -> datetime:
    return timezone.now() + timedelta(days=30)


def save(
    owner: Project,
    name: str,
    letters: Sequence[str],
    parent: Place | None = None,
    *,
    status: str = "completed",
    expires_at: datetime | None = None,
    previous: str | None = None,
    error: Any = None,
) -> Place:
    """A response whose last item is its output."""
    items = [message(letter) for letter in letters]
    return rows.save(
        project_id=owner.pk,
        response={
            "id": name,
            "previous_response_id": previous,
            "model": "m",
            "status": status,
            "error": error,
            "output": items[-1:],
        },
        parent=parent,
        items=items,
        input_end=(parent.end if parent else 0) + len(items) - 1,
        expires_at=expires_at or in_a_month(),
    )


def test_a_response_is_a_row_of_its_project(mine: Project) -> None:
    ends = in_a_month()
    first = save(mine, "resp_1", "ab", expires_at=ends)
    second = save(mine, "resp_2", "cd", first, status="incomplete", previous="resp_1")
    fork = save(mine, "resp_3", "ef", first, previous="resp_1")

    one, two = StoredResponse.objects.get(id="resp_1"), StoredResponse.objects.get(id="resp_2")
    assert (one.project, one.chain_id, one.input_end, one.end) == (mine, first.chain_id, 1, 2)
    assert (one.previous_response_id, one.model, one.status, one.expires_at) == ("", "m", "completed", ends)
    assert msgspec.json.decode(one.body)["output"] == []
    assert (two.previous_response_id, two.status, two.input_end, two.end) == ("resp_1", "incomplete", 3, 4)
    assert second == Place(first.chain_id, first.chain_id, (), 4)
    assert fork == Place(fork.chain_id, first.chain_id, ((first.chain_id, 2),), 4) and fork.chain_id != first.chain_id
    assert set(Chain.objects.values_list("project", "root")) == {(mine.pk, first.chain_id)}
    assert sorted(StoredItem.objects.filter(chain_id=fork.chain_id).values_list("position", "item_id")) == [
        (2, "msg_e"),
        (3, "msg_f"),
    ]
    third = save(mine, "resp_4", "gh", fork)
    assert (third.chain_id, third.path, third.end) == (fork.chain_id, fork.path, 6)
    stored = rows.load(mine.pk, "resp_4")
    assert stored is not None
    assert [item["content"] for item in stored.items] == list("abefgh")
    assert (stored.place, stored.input_end, len(stored.bodies)) == (third, 5, 6)


def test_a_response_is_known_to_its_project_only(mine: Project, theirs: Project) -> None:
    place = save(mine, "resp_1", "ab", status="queued")
    fork = save(mine, "resp_2", "cd", save(mine, "resp_0", "xy", place))
    fork = save(mine, "resp_3", "ef", Place(fork.chain_id, fork.root, fork.path, 2))

    assert (rows.place_of(mine.pk, "resp_1"), rows.place_of(theirs.pk, "resp_1")) == (place, None)
    assert (rows.status_of(mine.pk, "resp_1"), rows.status_of(theirs.pk, "resp_1")) == ("queued", None)
    assert rows.place_of(mine.pk, "resp_3") == fork and fork.path
    assert rows.load(theirs.pk, "resp_1") is None
    assert rows.delete(theirs.pk, "resp_1") is None
    assert rows.find_items(theirs.pk, {"msg_a"}) == {}
    assert rows.find_items(mine.pk, {"msg_a", "msg_q"}) == {"msg_a": message("a")}


@pytest.mark.parametrize("change", ["deleted_at", "expires_at"])
def test_what_is_gone_is_known_to_nobody(mine: Project, change: str) -> None:
    save(mine, "resp_1", "ab")

    StoredResponse.objects.update(**{change: timezone.now()})

    assert rows.load(mine.pk, "resp_1") is None
    assert rows.place_of(mine.pk, "resp_1") is None
    assert rows.status_of(mine.pk, "resp_1") is None
    assert rows.delete(mine.pk, "resp_1") is None
    assert rows.find_items(mine.pk, {"msg_a"}) == {}


def test_items_are_found_as_long_as_a_response_has_them_and_the_newest_of_several(mine: Project) -> None:
    first = save(mine, "resp_1", "ab")
    save(mine, "resp_2", "cd", first)
    save(mine, "resp_other", ["a"])
    StoredItem.objects.filter(chain__responses="resp_other").update(
        body=msgspec.json.encode(message("a", "new")).decode()
    )
    assert rows.find_items(mine.pk, {"msg_a", "msg_d"}) == {"msg_a": message("a", "new"), "msg_d": message("d")}

    StoredResponse.objects.filter(id__in=("resp_2", "resp_other")).update(deleted_at=timezone.now())

    assert rows.find_items(mine.pk, {"msg_a", "msg_b", "msg_c", "msg_d"}).keys() == {"msg_a", "msg_b"}
    assert rows.find_items(mine.pk, {"msg_a"}) == {"msg_a": message("a")}


def test_a_cancellation_is_asked_for_by_the_owner(mine: Project, theirs: Project) -> None:
    for name in ("resp_1", "resp_2", "resp_3"):
        save(mine, name, "ab", status="in_progress")

    rows.request_cancel(theirs.pk, "resp_1")
    assert rows.unwanted(["resp_1", "resp_2"]) == set()
    rows.request_cancel(mine.pk, "resp_1")
    StoredResponse.objects.filter(id="resp_3").update(deleted_at=timezone.now())

    assert rows.unwanted(["resp_1", "resp_2", "resp_3"]) == {"resp_1", "resp_3"}
    assert rows.unwanted(["resp_2"]) == set()
    asked_at = StoredResponse.objects.get(id="resp_1").cancel_requested_at
    assert asked_at is not None and timezone.now() - asked_at < timedelta(minutes=5)


def test_only_what_is_queued_begins(mine: Project) -> None:
    for name, status in (("resp_1", "queued"), ("resp_2", "completed"), ("resp_3", "queued")):
        save(mine, name, "ab", status=status)

    for name in ("resp_1", "resp_2"):
        rows.begin(name)

    statuses = dict(StoredResponse.objects.values_list("id", "status"))
    assert statuses == {"resp_1": "in_progress", "resp_2": "completed", "resp_3": "queued"}


def test_an_end_is_written_behind_what_was_saved(mine: Project) -> None:
    began = save(mine, "resp_1", "ab", status="in_progress")
    other = save(mine, "resp_2", "xy", status="in_progress")
    ended = {"id": "resp_1", "status": "completed", "model": "m", "output": [1], "error": None}

    place = rows.finish(ended, began, [message("c"), message("d")])

    assert place == Place(began.chain_id, began.root, began.path, 4)
    stored = rows.load(mine.pk, "resp_1")
    assert stored is not None and (stored.response["status"], stored.place) == ("completed", place)
    assert [item["content"] for item in stored.items] == list("abcd")
    assert msgspec.json.decode(StoredResponse.objects.get(id="resp_1").body)["output"] == []
    assert rows.status_of(mine.pk, "resp_2") == "in_progress" and rows.place_of(mine.pk, "resp_2") == other
    # A second time, its chain is longer than it was.
    assert rows.finish(ended, began, [message("e")]) is None
    assert StoredItem.objects.filter(chain_id=began.chain_id).count() == 4


def test_what_was_deleted_has_no_end(mine: Project) -> None:
    began = save(mine, "resp_1", "ab", status="in_progress")
    assert rows.is_held("resp_1") and not rows.is_held("resp_unknown")
    StoredResponse.objects.update(deleted_at=timezone.now())

    assert not rows.is_held("resp_1")
    assert rows.finish({"id": "resp_1", "status": "completed"}, began, [message("c")]) is None
    assert StoredItem.objects.count() == 2


def test_a_response_whose_process_has_gone_has_failed(mine: Project) -> None:
    save(mine, "resp_1", "ab", status="in_progress")
    save(mine, "resp_2", "cd", status="in_progress")
    make_record(mine, response_id="resp_1", status="in_progress")
    running = rows.load(mine.pk, "resp_1")
    assert running is not None and running.response["status"] == "in_progress"

    make_record(mine, response_id="resp_2", status="abandoned")

    gone = rows.load(mine.pk, "resp_2")
    assert gone is not None
    assert gone.response["status"] == "failed"
    assert gone.response["error"] == {
        "code": "server_error",
        "message": "The server that worked on this response has gone.",
    }
    assert rows.status_of(mine.pk, "resp_2") == "failed"
    assert rows.status_of(mine.pk, "resp_1") == "in_progress"


def test_an_error_that_was_stored_stays(mine: Project) -> None:
    save(mine, "resp_1", "ab", status="failed", error={"code": "x", "message": "y"})
    save(mine, "resp_2", "ab")

    failed, whole = rows.load(mine.pk, "resp_1"), rows.load(mine.pk, "resp_2")

    assert failed is not None and failed.response["error"] == {"code": "x", "message": "y"}
    assert whole is not None and whole.response["error"] is None


def test_a_context_with_a_gap_is_no_context(mine: Project) -> None:
    save(mine, "resp_1", "abc")

    StoredItem.objects.filter(position=1).delete()

    assert rows.load(mine.pk, "resp_1") is None


def test_a_place_is_there_as_long_as_its_last_item(mine: Project) -> None:
    root = save(mine, "resp_1", "ab")
    behind = Place(root.chain_id, root.root, (), 3)
    nothing_of_its_own = Place(uuid4(), root.root, ((root.chain_id, 2),), 2)

    assert rows.exists(root) and not rows.exists(behind)
    assert rows.exists(nothing_of_its_own)
    assert rows.exists(Place(root.chain_id, root.root, (), 0))
    StoredItem.objects.filter(position=1).delete()
    assert not rows.exists(root) and not rows.exists(nothing_of_its_own)


def test_a_deletion_takes_what_hangs_on_it_and_nothing_of_others(mine: Project, theirs: Project) -> None:
    for owner, name in ((mine, "resp_1"), (theirs, "resp_2")):
        place = save(owner, name, "ab", status="in_progress")
        ResponseEvents.objects.create(project=owner, response_id=name, first_number=0, count=1, frames="{}")
        Conversation.objects.create(
            id=f"conv_{name}", project=owner, chain_id=place.chain_id, chain_end=2, holder=f"hold_{name}",
            locked_until=in_a_month(),
        )  # fmt: skip
        BackgroundRun.objects.create(
            response_id=name, project=owner, request="", holder=f"hold_{name}", lease_until=in_a_month()
        )

    deleted = rows.delete(mine.pk, "resp_1")

    chain = StoredResponse.objects.get(id="resp_1").chain
    assert deleted is not None
    assert (deleted.response_ids, deleted.chains, deleted.root) == ({"resp_1"}, {chain.pk: 0}, chain.pk)
    assert list(ResponseEvents.objects.values_list("response", flat=True)) == ["resp_2"]
    assert list(BackgroundRun.objects.values_list("pk", flat=True)) == ["resp_2"]
    assert list(StoredItem.objects.values_list("chain__project", flat=True).distinct()) == [theirs.pk]
    gone, kept = Conversation.objects.order_by("id")
    assert (gone.chain, gone.chain_end, gone.holder, gone.locked_until) == (None, 0, "", None)
    assert (kept.chain_end, kept.holder) == (2, "hold_resp_2")
    assert save(mine, "resp_3", "cd", Place(chain.pk, chain.pk, (), 2)).chain_id != chain.pk


def test_of_a_fork_its_own_beginning_is_deleted_and_nothing_of_its_past(mine: Project) -> None:
    root = save(mine, "resp_1", "ab")
    save(mine, "resp_2", "cd", root)
    fork = save(mine, "resp_3", "ef", root)
    save(mine, "resp_4", "gh", save(mine, "resp_5", "ij", fork))
    save(mine, "resp_6", "kl", fork)

    deleted = rows.delete(mine.pk, "resp_3")

    assert deleted is not None and deleted.response_ids == {"resp_3", "resp_4", "resp_5", "resp_6"}
    assert deleted.chains[fork.chain_id] == 0 and len(deleted.chains) == 2
    kept = rows.load(mine.pk, "resp_2")
    assert kept is not None and [item["content"] for item in kept.items] == list("abcd")
    ends = StoredResponse.objects.get(id="resp_2").expires_at
    assert kept.expires_at == ends.timestamp()


def test_a_run_that_a_process_has_keeps_its_conversation_until_that_lets_go(mine: Project) -> None:
    save(mine, "resp_1", "ab", status="in_progress")
    Conversation.objects.create(id="conv_1", project=mine, holder="hold_1", locked_until=in_a_month())
    BackgroundRun.objects.create(
        response_id="resp_1", project=mine, request="", owner="proc_1", holder="hold_1", lease_until=in_a_month()
    )

    rows.delete(mine.pk, "resp_1")

    assert Conversation.objects.get().holder == "hold_1"
    assert not BackgroundRun.objects.exists()


def test_the_events_of_a_response_are_its_project_s(mine: Project, theirs: Project) -> None:
    save(mine, "resp_1", "ab")
    save(mine, "resp_2", "ab")
    events.insert_events(mine.pk, "resp_1", 3, ["{}", "[]"])

    row = ResponseEvents.objects.get()
    assert (row.project, row.response_id, row.first_number, row.count, row.frames) == (mine, "resp_1", 3, 2, "{}\n[]")
    assert events.is_logged(mine.pk, "resp_1")
    assert not events.is_logged(theirs.pk, "resp_1")
    assert not events.is_logged(mine.pk, "resp_2")
    assert events._read(theirs.pk, "resp_1", 0) == ([], True)
    assert events._read(mine.pk, "resp_1", 3)[0] == ["{}", "[]"]
    assert events._read(mine.pk, "resp_1", 4)[0] == ["[]"]
