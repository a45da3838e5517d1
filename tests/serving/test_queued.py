"""What another process makes of a queued response is what the one that took it would have made of it."""

import base64
import re
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from responses_ws.engines.registry import registry
from responses_ws.models import BackgroundRun
from responses_ws.runtime import background, drain
from responses_ws.serving import background as jobs
from responses_ws.serving import runner
from responses_ws.serving.admission import Principal
from responses_ws.stores import conversations, rows
from responses_ws.stores.memory import hot_tier
from responses_ws.testing import ScriptedEngine
from tests.safety.spies import Spy

from .test_compaction import Summariser
from .test_prompts import TEXT, prompt
from .test_safety import REFUSAL, engine, seat, shown_to, text_of
from .turns import asked, response_of

__all__ = ["engine"]

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"where": {}}}}


@pytest.fixture(autouse=True)
def elsewhere(settings: Any) -> None:
    """Background responses are left to other processes. Before any engine is put in place, since that forgets them."""
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "BACKGROUND_RUNNERS": True}


async def made_elsewhere(principal: Principal, given: Any, **fields: Any) -> dict[str, Any]:
    """The response in the end, made by a process that knows of it what the database says."""
    queued = await jobs.start(asked(principal, given, background=True, transport="http", **fields))
    await background.settle()
    assert await BackgroundRun.objects.acount() == 1
    hot_tier.clear()
    await runner.take(queued["id"])
    await background.settle()
    await runner.stop()
    stored = await sync_to_async(rows.load)(principal.project_id, queued["id"])
    assert stored is not None and not await BackgroundRun.objects.aexists()
    return stored.response


def alike(response: dict[str, Any]) -> str:
    """Without what is another in every response, and what an engine has cached."""
    varying = {"created_at", "completed_at", "previous_response_id", "conversation", "background", "usage"}
    kept = {name: value for name, value in response.items() if name not in varying}
    counts = {name: response["usage"][name] for name in ("input_tokens", "output_tokens")}
    return _ID.sub(r"\1", msgspec.json.encode([kept, counts]).decode())


_ID = re.compile(r"\b([a-z]+_)[0-9a-f]{24,}")
HISTORY = [
    {"role": "user", "content": "One"},
    {"role": "assistant", "content": "many words " * 1000},
    {"role": "user", "content": "Two"},
]
FULL = {
    "instructions": "Be brief.",
    "tools": [TOOL],
    "tool_choice": {"type": "function", "name": "look"},
    "parallel_tool_calls": False,
    "metadata": {"a": "b"},
    "temperature": 0.5,
    "max_output_tokens": 50,
    "reasoning": {"effort": "low"},
    "text": {"verbosity": "low"},
    "truncation": "auto",
    "user": "somebody",
    "prompt_cache_key": "key",
}
CONFIGURED = [
    {"type": "configuration_update", "text": {"format": {"type": "json_object"}}},
    {"type": "additional_tools", "tools": [TOOL]},
    {"role": "user", "content": "Configured."},
]


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        pytest.param("Hello", {}, id="plain"),
        pytest.param("Hello", FULL, id="with everything"),
        pytest.param([{"role": "user", "content": [{"type": "input_image", "image_url": PNG}]}], {}, id="image"),
        pytest.param(CONFIGURED, {}, id="configuration as items"),
        pytest.param("Hello", {"parent": True}, id="continues a response"),
        pytest.param("Hello", {"conversation": True}, id="on a conversation"),
        pytest.param("Hello", {"prompt": True}, id="by a prompt template"),
        pytest.param([{"type": "item_reference", "id": "parent's"}], {"parent": True}, id="a reference"),
    ],
)
async def test_another_process_asks_the_engine_the_same(
    principal: Principal, engine: ScriptedEngine, given: Any, fields: dict[str, Any]
) -> None:
    made, told = [], []
    for is_elsewhere in (False, True):
        more = dict(fields)
        if more.pop("parent", False):
            parent = await response_of(asked(principal, "Before.", transport="http"))
            more["previous_response_id"] = parent["id"]
            if isinstance(given, list):
                given = [{"type": "item_reference", "id": parent["output"][0]["id"]}]
        if more.pop("conversation", False):
            name = f"conv_{is_elsewhere}"
            item = {"type": "message", "role": "user", "content": "Before.", "id": "msg_1"}
            await sync_to_async(conversations.create)(principal.project_id, name, {}, [item])
            more["conversation"] = name
        if more.pop("prompt", False):
            template = await prompt(principal, TEXT, model="scripted")
            more["prompt"] = {"id": template, "variables": {"language": "French", "name": "Ada"}, "version": "1"}

        if is_elsewhere:
            response = await made_elsewhere(principal, given, **more)
        else:
            response = await response_of(asked(principal, given, transport="http", **more))

        made.append(alike(response))
        call = engine.requests[-1]
        told.append({**msgspec.structs.asdict(call), "prompt": call.prompt.json(), "request_id": "", "affinity": ""})

    assert made[0] == made[1]
    assert told[0] == told[1]


async def test_what_was_refused_is_not_asked_by_anybody(principal: Principal, engine: ScriptedEngine) -> None:
    spy = seat(Spy({"bomb": "refuse"}))

    response = await made_elsewhere(principal, "build a bomb")

    assert (text_of(response), response["status"]) == (REFUSAL, "completed")
    assert not engine.requests and len(spy.seen) == 1


async def test_what_was_taken_out_stays_out(principal: Principal, engine: ScriptedEngine) -> None:
    seat(Spy({"hunter2": "redact"}, redacts=True))

    response = await made_elsewhere(principal, "my password is hunter2")

    assert response["status"] == "completed"
    assert "hunter2" not in shown_to(engine) and "my password is" in shown_to(engine)


async def test_a_context_is_compacted_elsewhere_too(principal: Principal) -> None:
    registry.install("scripted", Summariser())
    management = [{"type": "compaction", "compact_threshold": 100}]

    response = await made_elsewhere(principal, HISTORY, context_management=management)

    assert [item["type"] for item in response["output"]] == ["compaction", "message"]


async def test_a_request_that_cannot_be_read_any_more_fails_and_says_so(principal: Principal) -> None:
    queued = await jobs.start(asked(principal, "Hello", background=True, transport="http"))
    await background.settle()
    await BackgroundRun.objects.aupdate(request="sealed under a key that is gone")

    await runner.take(queued["id"])

    stored = await sync_to_async(rows.load)(principal.project_id, queued["id"])
    assert stored is not None and stored.response["status"] == "failed"
    assert not await BackgroundRun.objects.aexists()
    await runner.stop()


async def test_what_cannot_be_looked_at_now_is_tried_again(principal: Principal, engine: ScriptedEngine) -> None:
    spy = seat(Spy({"hunter2": "redact"}, redacts=True))
    queued = await jobs.start(asked(principal, "hello", background=True, transport="http"))
    await background.settle()
    spy.is_down = True

    await runner.take(queued["id"])

    run = await BackgroundRun.objects.aget()
    assert run.owner and not engine.requests
    spy.is_down = False
    await BackgroundRun.objects.aupdate(lease_until=timezone.now())
    await runner.take(queued["id"])
    await background.settle()
    await runner.stop()
    stored = await sync_to_async(rows.load)(principal.project_id, queued["id"])
    assert stored is not None and stored.response["status"] == "completed"


async def test_a_process_that_ends_meanwhile_hands_it_back(
    principal: Principal, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = await jobs.start(asked(principal, "hello", background=True, transport="http"))
    await background.settle()
    monkeypatch.setattr(drain, "_is_draining", True)

    await runner.take(queued["id"])

    run = await BackgroundRun.objects.aget()
    assert (run.owner, run.deaths) == ("", 0) and not engine.requests
