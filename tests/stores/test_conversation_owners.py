"""Whose a conversation is, and who may write it: asked by its owner, by another project, by who holds it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from responses_ws.models import Conversation, ConversationItem, Project
from responses_ws.stores import conversations
from responses_ws.stores.conversations import Appending

from .test_ownership import in_a_month, message, mine, save, theirs

__all__ = ["mine", "theirs"]

pytestmark = pytest.mark.django_db

CONV = "conv_1"


@pytest.fixture
def conversation(mine: Project) -> Conversation:
    return conversations.create(mine.pk, CONV, {"a": "b"}, [message(letter) for letter in "abc"])


def contents(items: Sequence[dict[str, Any]]) -> str:
    return "".join(item["content"] for item in items)


@pytest.mark.usefixtures("conversation")
def test_a_conversation_is_known_and_changed_by_its_project_only(mine: Project, theirs: Project) -> None:
    now = timezone.now()

    assert conversations.set_metadata(theirs.pk, CONV, {}) is None
    assert not conversations.add(theirs.pk, CONV, [message("x")])
    assert not conversations.delete(theirs.pk, CONV)
    assert conversations.delete_item(theirs.pk, CONV, "msg_a") is None
    assert conversations.item(theirs.pk, CONV, "msg_a") is None
    assert conversations.page(theirs.pk, CONV, after=None, limit=9, is_ascending=True) == ([], False)
    assert conversations.lock(theirs.pk, CONV, holder="h", now=now, until=in_a_month()) is None
    assert conversations.find_items(theirs.pk, {"msg_a"}) == {}

    untouched = conversations.find(mine.pk, CONV)
    assert untouched is not None
    assert (untouched.metadata, untouched.length, untouched.edits, untouched.holder) == ({"a": "b"}, 3, 0, "")
    assert contents(conversations.items_from(CONV, 0, 9)) == "abc"


@pytest.mark.usefixtures("conversation")
def test_one_conversation_s_items_are_not_another_s(mine: Project) -> None:
    conversations.create(mine.pk, "conv_2", {}, [message("x")])

    assert conversations.item(mine.pk, CONV, "msg_x") is None
    assert conversations.delete_item(mine.pk, CONV, "msg_x") is None
    assert conversations.item(mine.pk, "conv_2", "msg_x") == message("x")
    assert conversations.page(mine.pk, "conv_2", after="msg_a", limit=9, is_ascending=True) is None
    assert contents(conversations.items_from("conv_2", 0, 9)) == "x"


@pytest.mark.usefixtures("conversation")
def test_metadata_are_replaced(mine: Project) -> None:
    changed = conversations.set_metadata(mine.pk, CONV, {"c": "d"})

    assert changed is not None and changed.metadata == {"c": "d"}


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("after", "limit", "is_ascending", "page"),
    [
        (None, 9, True, ("abca", False)),
        (None, 9, False, ("acba", False)),
        (None, 4, True, ("abca", False)),
        (None, 3, True, ("abc", True)),
        ("msg_b", 9, True, ("ca", False)),
        ("msg_b", 9, False, ("a", False)),
        ("msg_a", 9, True, ("", False)),
        ("msg_a", 9, False, ("", False)),
        ("msg_c", 1, False, ("b", True)),
    ],
)
def test_pages_go_on_behind_the_furthest_of_an_id(
    mine: Project, after: str | None, limit: int, is_ascending: bool, page: tuple[str, bool]
) -> None:
    conversations.add(mine.pk, CONV, [message("a")])

    found = conversations.page(mine.pk, CONV, after=after, limit=limit, is_ascending=is_ascending)

    assert found is not None and (contents(found[0]), found[1]) == page


@pytest.mark.usefixtures("conversation")
def test_of_several_items_with_one_id_the_newest_counts(mine: Project) -> None:
    conversations.add(mine.pk, CONV, [message("a", "new")])

    assert conversations.item(mine.pk, CONV, "msg_a") == message("a", "new")
    assert conversations.find_items(mine.pk, {"msg_a", "msg_b"}) == {
        "msg_a": message("a", "new"),
        "msg_b": message("b"),
    }
    assert list(ConversationItem.objects.order_by("position").values_list("position", "item_id"))[-1] == (3, "msg_a")


@pytest.mark.usefixtures("conversation")
def test_items_are_read_from_a_position_to_another() -> None:
    assert contents(conversations.items_from(CONV, 1, 3)) == "bc"
    assert contents(conversations.items_from(CONV, 0, 2)) == "ab"


@pytest.mark.usefixtures("conversation")
def test_who_holds_a_conversation_renews_releases_and_appends_and_nobody_else_does(mine: Project) -> None:
    now = timezone.now()
    later, last = now + timedelta(minutes=1), now + timedelta(minutes=2)
    conversations.lock(mine.pk, CONV, holder="h", now=now, until=later)

    conversations.renew(CONV, "other", last)
    conversations.release(CONV, "other")
    assert not conversations.append(Appending(CONV, "other", 3, [message("x")]))
    held = Conversation.objects.get()
    assert (held.holder, held.locked_until, held.length) == ("h", later, 3)

    conversations.renew(CONV, "h", last)
    assert Conversation.objects.get().locked_until == last
    assert conversations.append(Appending(CONV, "h", 3, [message("x"), message("y")]))
    free = Conversation.objects.get()
    assert (free.holder, free.locked_until, free.length) == ("", None, 5)
    assert list(ConversationItem.objects.order_by("position").values_list("position", flat=True)) == [0, 1, 2, 3, 4]
    conversations.lock(mine.pk, CONV, holder="h", now=now, until=later)
    conversations.release(CONV, "h")
    free = Conversation.objects.get()
    assert (free.holder, free.locked_until) == ("", None)


@pytest.mark.usefixtures("conversation")
def test_a_lock_is_good_until_its_last_moment(mine: Project) -> None:
    now = timezone.now()
    until = now + timedelta(minutes=1)
    conversations.lock(mine.pk, CONV, holder="h", now=now, until=until)

    early = conversations.lock(mine.pk, CONV, holder="i", now=until - timedelta(microseconds=1), until=in_a_month())
    late = conversations.lock(mine.pk, CONV, holder="i", now=until, until=in_a_month())

    assert early is not None and late is not None
    assert (early.holder, late.holder) == ("h", "i")


@pytest.mark.usefixtures("conversation")
def test_taking_an_item_out_forgets_where_the_conversation_is_stored(mine: Project) -> None:
    place = save(mine, "resp_1", "abc")
    conversations.remember_place(CONV, place)
    found = conversations.find(mine.pk, CONV)
    assert found is not None and conversations.place_of(found) == place

    edited = conversations.delete_item(mine.pk, CONV, "msg_b")

    assert edited is not None
    assert (conversations.place_of(edited), edited.chain_end, edited.edits, edited.length) == (None, 0, 1, 3)
    assert contents(conversations.items_from(CONV, 0, 9)) == "ac"


@pytest.mark.usefixtures("conversation")
def test_a_conversation_may_be_stored_in_a_fork(mine: Project) -> None:
    root = save(mine, "resp_1", "ab")
    save(mine, "resp_2", "cd", root)
    fork = save(mine, "resp_3", "ef", root)
    conversations.remember_place(CONV, fork)

    found = conversations.find(mine.pk, CONV)

    assert found is not None and conversations.place_of(found) == fork and fork.path
