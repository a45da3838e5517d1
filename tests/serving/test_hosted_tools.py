"""Hosted tools run within the response that calls them."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from responses_ws.connection.chain import Chains
from responses_ws.connection.commands import Append
from responses_ws.engines.registry import registry
from responses_ws.engines.script import Call, Plan
from responses_ws.protocol.steering import Steer
from responses_ws.serving.admission import Principal
from responses_ws.serving.mailbox import Mailbox
from responses_ws.serving.sampling import Sign
from responses_ws.serving.turns import run_turn
from responses_ws.stores.memory import hot_tier

from .bytes_model import BytesEngine, spelled
from .hosted import NOTES, PAGES, WEATHER, WEB, Notebook, calls, kinds, legal, note, run_here, script
from .turns import asked, events_of, response_of

__all__ = ["run_here"]


async def test_a_search_runs_within_the_response_and_the_model_goes_on(principal: Principal) -> None:
    engine = script(calls(("web_search", {"query": "weather Oslo"})), "It is clear.")

    events = legal(await events_of(asked(principal, "Weather in Oslo?", tools=[WEB], store=False)))

    assert [kind for kind in kinds(events) if "search" in kind or "item" in kind] == [
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
        "output_item.done",
        "output_item.added",
        "output_item.done",
    ]
    search, message = events[-1]["response"]["output"]
    assert search["action"] == {"type": "search", "query": "weather Oslo", "queries": ["weather Oslo"]}
    assert message["content"][0]["text"] == "It is clear."
    told = list(engine.requests[1].prompt.newest_first())
    assert "It is clear and cold in Oslo." in told[0]["content"]
    assert told[1]["tool_calls"][0]["function"] == {"name": "web_search", "arguments": '{"query":"weather Oslo"}'}


async def test_usage_of_all_steps_adds_up(principal: Principal) -> None:
    engine = script(calls(note("a")), calls(note("b")), "Done.")

    response = await response_of(asked(principal, "Note.", tools=[NOTES], store=False))

    prompts = [request.prompt.byte_length + len(request.tools or b"") for request in engine.requests]
    assert response["usage"]["input_tokens"] == sum(-(-size // 4) for size in prompts)
    assert response["usage"]["output_tokens"] == 5


async def test_sources_are_told_to_whoever_asks_for_them(principal: Principal) -> None:
    script(calls(("web_search", {"query": "weather Oslo"})), "It is clear.")
    include = ["web_search_call.action.sources"]

    response = await response_of(asked(principal, "Weather?", tools=[WEB], include=include, store=False))

    sources = [{"type": "url", "url": page["url"]} for page in PAGES]
    assert response["output"][0]["action"]["sources"] == sources


async def test_a_page_that_the_text_names_is_cited(principal: Principal) -> None:
    script(calls(("web_search", {"query": "weather Oslo"})), "Clear, says https://oslo.example/weather.")

    events = legal(await events_of(asked(principal, "Weather?", tools=[WEB], store=False)))

    (citation,) = events[-1]["response"]["output"][1]["content"][0]["annotations"]
    assert (citation["url"], citation["title"]) == ("https://oslo.example/weather", "Weather in Oslo")
    assert "output_text.annotation.added" in kinds(events)


async def test_a_search_keeps_to_the_allowed_domains(principal: Principal) -> None:
    engine = script(calls(("web_search", {"query": "weather"})), "It is clear.")
    tool = {**WEB, "filters": {"allowed_domains": ["oslo.example"]}}

    await response_of(asked(principal, "Weather?", tools=[tool], store=False))

    told = next(engine.requests[1].prompt.newest_first())["content"]
    assert [page["url"] for page in json.loads(told)] == ["https://oslo.example/weather"]


async def test_passages_of_files_are_told_to_whoever_asks_for_them(principal: Principal) -> None:
    engine = script(calls(("file_search", {"query": "coat Oslo"})), "Bring a coat.")
    tool = {"type": "file_search", "vector_store_ids": ["vs_1", "vs_of_nobody"]}
    ask = asked(principal, "What to bring?", tools=[tool], include=["file_search_call.results"], store=False)

    events = legal(await events_of(ask))

    search = events[-1]["response"]["output"][0]
    assert search["queries"] == ["coat Oslo"]
    assert [(one["filename"], one["text"]) for one in search["results"]] == [("guide.txt", "Bring a coat to Oslo.")]
    assert "Bring a coat to Oslo." in next(engine.requests[1].prompt.newest_first())["content"]


async def test_calls_of_one_step_run_at_once_and_stand_in_order(principal: Principal) -> None:
    engine = script(calls(note("a"), note("b"), note("c")), "Done.")

    response = await response_of(asked(principal, "Note.", tools=[NOTES], store=False))

    assert Notebook.most_running == 3
    assert [item.get("output") for item in response["output"]] == ["noted: a", "noted: b", "noted: c", None]
    roles = [message["role"] for message in engine.requests[1].prompt.newest_first()]
    assert roles == ["tool", "tool", "tool", "assistant", "user"]


async def test_a_call_of_the_clients_ends_the_response_with_the_hosted_results_in_place(principal: Principal) -> None:
    engine = script(calls(("get_weather", {"city": "Oslo"}), note("a")), "Clear, and noted.")
    chains, tools = Chains(), [WEATHER, NOTES]

    events = legal(await events_of(asked(principal, "Both.", tools=tools, store=False, chains=chains)))
    first = events[-1]["response"]
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "clear"}
    again = asked(principal, [output], previous_response_id=first["id"], tools=tools, store=False, chains=chains)
    second = await response_of(again)

    assert [(item["type"], item.get("output")) for item in first["output"]] == [
        ("function_call", None),
        ("mcp_call", "noted: a"),
    ]
    assert second["output"][0]["content"][0]["text"] == "Clear, and noted."
    told = list(engine.requests[1].prompt.newest_first())[::-1]
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool"]
    assert [call["function"]["name"] for call in told[1]["tool_calls"]] == ["get_weather", "notes__note"]
    assert [message["content"] for message in told[2:]] == ["noted: a", "clear"]


async def test_calls_beyond_the_limit_are_not_run_and_the_model_is_told(principal: Principal) -> None:
    engine = script(calls(note("a"), note("b")), "That was all.")
    ask = asked(principal, "Note.", tools=[NOTES], max_tool_calls=1, store=False)

    events = legal(await events_of(ask))

    first, second, message = events[-1]["response"]["output"]
    assert (first["status"], second["status"], message["status"]) == ("completed", "failed", "completed")
    assert len(Notebook.jobs) == 1
    assert "may call no more tools" in next(engine.requests[1].prompt.newest_first())["content"]
    assert engine.requests[1].tool_choice == "none"


async def test_a_model_that_calls_on_and_on_comes_to_an_end(principal: Principal) -> None:
    engine = script(*[calls(note("again")) for _ in range(10)])
    ask = asked(principal, "Note.", tools=[NOTES], max_tool_calls=2, store=False)

    response = await response_of(ask)

    assert response["status"] == "completed"
    assert len(Notebook.jobs) == 2
    assert len(engine.requests) == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("fail", "There is no paper left.", id="a failure it tells"),
        pytest.param("break", "Something went wrong with this tool.", id="a failure it does not tell"),
    ],
)
async def test_a_tool_that_fails_is_told_to_the_model_and_breaks_nothing(
    principal: Principal, text: str, told: str
) -> None:
    engine = script(calls(note(text)), "Too bad.")

    events = legal(await events_of(asked(principal, "Note.", tools=[NOTES], store=False)))

    call, message = events[-1]["response"]["output"]
    assert call["error"] == {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": told}]}
    assert message["content"][0]["text"] == "Too bad."
    assert next(engine.requests[1].prompt.newest_first())["content"] == f"Error: {told}"


async def test_a_tool_has_so_much_time_and_no_more(principal: Principal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notebook, "seconds", 0.05)
    engine = script(calls(note("wait")), "Too late.")

    response = await response_of(asked(principal, "Note.", tools=[NOTES], store=False))

    assert response["output"][0]["status"] == "failed"
    assert next(engine.requests[1].prompt.newest_first())["content"] == "Error: No answer within 0.05 s."
    assert Notebook.was_cancelled.is_set()


async def test_a_long_output_is_cut_off(principal: Principal) -> None:
    script(calls(note("é" * 200)), "Long.")

    response = await response_of(asked(principal, "Note.", tools=[NOTES], store=False))

    output = response["output"][0]["output"]
    assert len(output.encode()) < 200
    assert output.endswith("[The rest was left out: it is too long.]")


async def test_an_output_that_is_no_text_is_made_one(principal: Principal) -> None:
    script(calls(note("half")), "Odd.")

    response = await response_of(asked(principal, "Note.", tools=[NOTES], store=False))

    assert response["output"][0]["output"] == "half a pair: ?"


async def test_arguments_that_are_no_object_reach_no_tool(principal: Principal) -> None:
    engine = script(Plan(text=[], calls=[Call("notes__note", "[1]")], finish="tool_calls"), "Sorry.")

    await response_of(asked(principal, "Note.", tools=[NOTES], store=False))

    assert Notebook.jobs == []
    assert "not a JSON object" in next(engine.requests[1].prompt.newest_first())["content"]


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        pytest.param({"type": "web_search_preview"}, "web_search", id="by its kind"),
        pytest.param({"type": "function", "name": "get_weather"}, "get_weather", id="by its name"),
    ],
)
async def test_a_choice_is_forced_on_the_first_step_only(
    principal: Principal, choice: dict[str, Any], forced: str
) -> None:
    engine = script(calls((forced, {"query": "weather", "city": "Oslo"})), "Done.")
    tools = [WEATHER, WEB, NOTES]

    await response_of(asked(principal, "Look.", tools=tools, tool_choice=choice, store=False))

    first, *others = [request.tool_choice for request in engine.requests]
    assert first == {"type": "function", "function": {"name": forced}}
    assert others in ([], ["auto"])


async def test_a_cut_off_call_is_not_run(principal: Principal) -> None:
    script(Plan(text=[], calls=[Call("notes__note", '{"text": "a b c d e f g"}')]))
    ask = asked(principal, "Note.", tools=[NOTES], max_output_tokens=2, store=False)

    events = legal(await events_of(ask))

    response = events[-1]["response"]
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
    assert Notebook.jobs == []


async def test_cancelling_stops_the_tool(principal: Principal) -> None:
    script(calls(note("wait")))
    mailbox: Mailbox[Any] = Mailbox()
    ask = asked(principal, "Note.", tools=[NOTES], store=False)
    ask.mailbox = mailbox
    turn = asyncio.ensure_future(events_of(ask))
    await asyncio.wait_for(Notebook.began.wait(), 5)

    mailbox.put(Sign.CANCELLED)
    events = await asyncio.wait_for(turn, 5)

    assert events[-1]["response"]["status"] == "cancelled"
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"
    assert Notebook.was_cancelled.is_set()


async def test_a_client_that_leaves_stops_the_tool(principal: Principal) -> None:
    script(calls(note("wait")))
    turn = asyncio.ensure_future(events_of(asked(principal, "Note.", tools=[NOTES], store=False)))
    await asyncio.wait_for(Notebook.began.wait(), 5)

    turn.cancel()
    await asyncio.wait({turn})

    await asyncio.wait_for(Notebook.was_cancelled.wait(), 5)


async def test_a_steer_lets_the_tool_finish_and_the_model_goes_on_from_there(
    principal: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Notebook, "seconds", 0.2)
    engine = script(calls(note("wait")), "As you say.")
    mailbox: Mailbox[Any] = Mailbox()
    ask = asked(principal, "Note.", tools=[NOTES], store=False, chains=Chains())
    ask.mailbox = mailbox
    turn = asyncio.ensure_future(events_of(ask))
    await asyncio.wait_for(Notebook.began.wait(), 5)

    mailbox.put(Steer("resp_of_mine", "Never mind."))
    events = await asyncio.wait_for(turn, 5)

    ends = [
        event["response"]
        for event in events
        if event["type"].endswith(("completed", "incomplete")) and "response" in event
    ]
    assert [(end["status"], end["incomplete_details"]) for end in ends] == [
        ("incomplete", {"reason": "steered"}),
        ("completed", None),
    ]
    assert ends[0]["output"][0]["status"] == "failed"
    told = list(engine.requests[1].prompt.newest_first())[::-1]
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "user"]


async def test_what_a_search_found_is_in_the_context_of_a_later_turn_wherever_that_is_read_from(
    principal: Principal,
) -> None:
    engine = script(calls(("web_search", {"query": "weather Oslo"})), "It is clear.", "As I said.")
    first = await response_of(asked(principal, "Weather?", tools=[WEB]))
    hot_tier.clear()

    await response_of(asked(principal, "Sure?", previous_response_id=first["id"], tools=[WEB]))

    told = list(engine.requests[2].prompt.newest_first())[::-1]
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "assistant", "user"]
    assert "It is clear and cold in Oslo." in told[2]["content"]


async def test_items_that_the_client_sends_back_are_the_same_context(principal: Principal) -> None:
    engine = script(calls(note("a")), "Done.", "Again.")
    tools = [NOTES]
    first = await response_of(asked(principal, "Note.", tools=tools, store=False))
    user = {"type": "message", "role": "user", "content": "Note."}

    await response_of(
        asked(principal, [user, *first["output"], {**user, "content": "More."}], tools=tools, store=False)
    )

    chained = list(engine.requests[1].prompt.newest_first())[::-1]
    resent = list(engine.requests[2].prompt.newest_first())[::-1]
    assert resent[1 : len(chained)] == chained[1:]


async def test_kinds_that_nobody_answers_for_are_accepted_and_not_offered(principal: Principal) -> None:
    engine = script("Hello.")
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "computer"}]

    response = await response_of(asked(principal, "Hi.", tools=tools, store=False))

    assert response["tools"] == tools
    assert engine.requests[0].tools is None


async def test_one_long_response_waits_for_the_clients_outputs_when_its_tools_have_run(principal: Principal) -> None:
    engine = script(calls(note("a")), calls(("get_weather", {"city": "Oslo"}), note("b")), "Done.")
    mailbox: Mailbox[Any] = Mailbox()
    ask = asked(principal, "All.", tools=[WEATHER, NOTES], store=False)
    ask.mailbox, ask.may_append = mailbox, True

    events: list[dict[str, Any]] = []
    async with asyncio.timeout(5), aclosing(run_turn(ask)) as runs:
        async for frames in runs:
            events += map(json.loads, frames)
            if events[-1]["type"] == "response.done":
                (wanted,) = events[-1]["required"]
                output = {"type": "function_call_output", "call_id": wanted["call_id"], "output": "clear"}
                mailbox.put(Append([output]))

    of_kind = [item["type"] for item in events[-1]["response"]["output"]]
    assert of_kind == ["mcp_call", "function_call", "mcp_call", "function_call_output", "message"]
    assert [message["content"] for message in engine.requests[2].prompt.newest_first()][:2] == ["clear", "noted: b"]


async def test_a_token_engine_is_sent_what_it_said_and_behind_it_what_its_calls_gave(
    principal: Principal, settings: Any
) -> None:
    settings.RESPONSES_WS = settings.RESPONSES_WS | {"MODELS": {"bytes": {"ENGINE": "bytes"}}}
    engine = BytesEngine('So<call>notes__note:{ "text": "a"}<call>notes__note:{ "text": "b"}<end>', "Done.<end>")
    registry.install("bytes", engine)

    response = await response_of(asked(principal, "Note.", model="bytes", tools=[NOTES], store=False))

    assert [item["type"] for item in response["output"]] == ["message", "mcp_call", "mcp_call", "message"]
    said = 'So<call>notes__note:{ "text": "a"}<call>notes__note:{ "text": "b"}<end>'
    assert [spelled(prompt) for prompt in engine.prompts] == [
        "<user>Note.<end><assistant>",
        # The model's own spaces, and both outputs behind both calls.
        f"<user>Note.<end><assistant>{said}<tool>noted: a<end><tool>noted: b<end><assistant>",
    ]
