"""Conversations as rows: who may write, and what is left of what."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from responses_ws.models import Conversation, ConversationItem, Project
from responses_ws.protocol.errors import ConversationLocked
from responses_ws.stores import conversations
from responses_ws.stores.conversations import Appending

NAME = "conv_1"


def items(letters: str) -> list[dict[str, Any]]:
    return [{"type": "message", "role": "user", "content": letter, "id": f"msg_{letter}"} for letter in letters]


@pytest.fixture
def conversation(project: Project) -> Conversation:
    return conversations.create(project.pk, NAME, {}, items("abc"))


def letters() -> str:
    return "".join(item["content"] for item in conversations.items_from(NAME, 0, 1000))


def lock(project: Project, holder: str, *, seconds: float = 60) -> Conversation:
    now = timezone.now()
    found = conversations.lock(project.pk, NAME, holder=holder, now=now, until=now + timedelta(seconds=seconds))
    assert found is not None
    return found


def test_one_holder_at_a_time(project: Project, conversation: Conversation) -> None:
    assert lock(project, "first").holder == "first"
    assert lock(project, "second").holder == "first"

    conversations.release(NAME, "second")
    assert lock(project, "third").holder == "first"
    conversations.release(NAME, "first")
    assert lock(project, "fourth").holder == "fourth"


def test_a_lock_that_has_run_out_is_taken_over_and_its_holder_adds_nothing(
    project: Project, conversation: Conversation
) -> None:
    lock(project, "dead", seconds=-1)
    taken = lock(project, "living")

    assert not conversations.append(Appending(NAME, "dead", 3, items("x")))
    assert conversations.append(Appending(NAME, taken.holder, taken.length, items("d")))
    assert letters() == "abcd"


def test_an_edit_takes_a_lock_that_has_run_out_away(project: Project, conversation: Conversation) -> None:
    lock(project, "dead", seconds=-1)

    assert conversations.add(project.pk, NAME, items("d"))

    assert not conversations.append(Appending(NAME, "dead", 3, items("x")))
    assert letters() == "abcd"


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda project: conversations.add(project, NAME, items("x")), id="add"),
        pytest.param(lambda project: conversations.delete_item(project, NAME, "msg_a"), id="delete an item"),
        pytest.param(lambda project: conversations.delete(project, NAME), id="delete"),
    ],
)
def test_what_is_held_is_not_edited(project: Project, conversation: Conversation, edit: Any) -> None:
    lock(project, "holder")

    with pytest.raises(ConversationLocked):
        edit(project.pk)

    assert letters() == "abc"


def test_deleting_an_item_leaves_a_gap(project: Project, conversation: Conversation) -> None:
    conversations.delete_item(project.pk, NAME, "msg_b")
    conversations.add(project.pk, NAME, items("d"))

    assert letters() == "acd"
    assert list(ConversationItem.objects.values_list("position", flat=True).order_by("position")) == [0, 2, 3]
    assert Conversation.objects.get().edits == 1


def test_an_item_that_is_not_there_changes_nothing(project: Project, conversation: Conversation) -> None:
    assert conversations.delete_item(project.pk, NAME, "msg_x") is None

    assert Conversation.objects.get().edits == 0


def test_items_outlive_their_conversation(project: Project, conversation: Conversation) -> None:
    assert conversations.delete(project.pk, NAME)

    assert conversations.find(project.pk, NAME) is None
    assert not conversations.add(project.pk, NAME, items("x"))
    assert conversations.find_items(project.pk, {"msg_a", "msg_x"}).keys() == {"msg_a"}


def test_nobody_reaches_another_project_s_conversation(project: Project, conversation: Conversation) -> None:
    other = Project.objects.create(organization=project.organization, name="other").pk

    assert conversations.find(other, NAME) is None
    assert conversations.item(other, NAME, "msg_a") is None
    assert conversations.delete_item(other, NAME, "msg_a") is None
    assert conversations.page(other, NAME, after=None, limit=5, is_ascending=True) == ([], False)
    assert conversations.find_items(other, {"msg_a"}) == {}
    assert not conversations.delete(other, NAME)
