"""What a hosted tool gives is new input: classifiers look at it before anybody else does."""

import json
from collections.abc import Iterator

import pytest
from asgiref.sync import sync_to_async

from responses_ws.models import Flag, StoredItem
from responses_ws.safety.registry import classifiers
from responses_ws.serving.admission import Principal
from tests.safety.spies import Spy

from .hosted import NOTES, Notebook, calls, legal, note, run_here, script
from .test_safety import REFUSAL, seat, text_of
from .turns import asked, events_of

__all__ = ["run_here"]


@pytest.fixture(autouse=True)
def _no_classifiers_later() -> Iterator[None]:
    yield
    classifiers.reset()


@pytest.mark.parametrize("redacts", [True, False], ids=["who redacts", "who only refuses"])
async def test_what_is_refused_reaches_neither_the_model_nor_the_client(principal: Principal, redacts: bool) -> None:
    seat(Spy({"noted: bomb": "refuse"}, redacts=redacts))
    engine = script(calls(note("bomb"), note("well")), "never told")

    events = legal(await events_of(asked(principal, "Note.", tools=[NOTES])))

    response = events[-1]["response"]
    # Once something is refused, nothing else comes out of that step.
    assert [item.get("output") for item in response["output"][:2]] == ["[removed]", "[removed]"]
    assert text_of(response) == REFUSAL
    assert len(engine.requests) == 1
    assert "noted: bomb" not in json.dumps(events)
    stored = await sync_to_async(lambda: list(StoredItem.objects.values_list("body", flat=True)))()
    assert not any("noted: bomb" in body for body in stored)
    assert any("Note." in body for body in stored), "the input itself was not refused"


async def test_what_is_redacted_is_told_redacted_to_both(principal: Principal) -> None:
    seat(Spy({"hunter2": "redact"}, redacts=True))
    engine = script(calls(note("hunter2")), "I see.")

    events = legal(await events_of(asked(principal, "Note.", tools=[NOTES])))

    assert events[-1]["response"]["output"][0]["output"] == "noted: [redacted]"
    assert next(engine.requests[1].prompt.newest_first())["content"] == "noted: [redacted]"
    assert await Flag.objects.acount() == 1


async def test_nothing_is_called_for_an_input_that_is_refused(principal: Principal) -> None:
    seat(Spy({"bomb": "refuse"}))
    script(calls(note("a")), "never told")

    events = legal(await events_of(asked(principal, "A bomb.", tools=[NOTES])))

    assert text_of(events[-1]["response"]) == REFUSAL
    assert Notebook.jobs == []
