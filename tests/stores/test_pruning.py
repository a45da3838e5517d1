"""What is deleted when nobody can use it any more, and what stays."""

import io
from collections import Counter
from datetime import timedelta

from django.core.management import call_command
from django.utils import timezone

from responses_ws.models import Chain, ControlMessage, Conversation, Project, StoredItem, StoredResponse
from responses_ws.models.control import KEPT
from responses_ws.stores import pruning, rows
from responses_ws.stores.pruning import prune

from .test_rows import letters, save


def expire(*names: str) -> None:
    StoredResponse.objects.filter(id__in=[f"resp_{name}" for name in names]).update(expires_at=timezone.now())


def test_a_chain_goes_with_its_last_response(project: Project) -> None:
    first = save(project, "1", None, "ab", input_end=1)
    save(project, "2", first, "cd", input_end=3)
    kept = save(project, "kept", None, "ef", input_end=1)
    expire("1", "2")

    assert prune() == Counter(items=4, responses=2)

    assert Chain.objects.get().id == kept.chain_id
    assert letters(project, "kept") == "ef"


def test_the_past_stays_as_long_as_anything_needs_it(project: Project) -> None:
    first = save(project, "1", None, "ab", input_end=1)
    save(project, "trunk", first, "cd", input_end=3)
    save(project, "fork", first, "ef", input_end=3)
    expire("1", "trunk")

    assert prune() == Counter()

    assert letters(project, "fork") == "abef"
    expire("fork")
    assert prune() == Counter(items=6, responses=3)
    assert not Chain.objects.exists() and not StoredItem.objects.exists() and not StoredResponse.objects.exists()


def test_deleted_responses_do_not_keep_their_tombstones_for_ever(project: Project) -> None:
    save(project, "1", None, "ab", input_end=1)
    rows.delete(project.pk, "resp_1")

    assert prune() == Counter(responses=1)


def test_a_conversation_outlives_the_responses_on_it(project: Project) -> None:
    place = save(project, "1", None, "ab", input_end=1)
    Conversation.objects.create(id="conv_1", project=project, chain_id=place.chain_id, chain_end=2)
    expire("1")

    prune()

    conversation = Conversation.objects.get()
    assert (conversation.chain_id, conversation.chain_end) == (None, 0)


def test_however_many_there_are_it_goes_on_to_the_end(project: Project, monkeypatch) -> None:
    monkeypatch.setattr(pruning, "TREES_AT_ONCE", 2)
    for number in range(5):
        save(project, str(number), None, "ab", input_end=1, days=0)

    assert prune() == Counter(items=10, responses=5)


def test_messages_that_everybody_has_heard_go(project: Project) -> None:
    ControlMessage.objects.tell("old")
    ControlMessage.objects.update(created_at=timezone.now() - KEPT - timedelta(seconds=1))
    ControlMessage.objects.tell("new")

    assert prune() == Counter({"control messages": 1})


def test_the_command_says_what_it_did(project: Project) -> None:
    save(project, "1", None, "ab", input_end=1, days=0)
    said = io.StringIO()

    call_command("responses_ws_prune", stdout=said)
    call_command("responses_ws_prune", stdout=said)

    assert said.getvalue().splitlines() == ["Deleted 2 items, 1 responses.", "Deleted nothing."]
