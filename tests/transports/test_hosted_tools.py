"""Hosted tools through the doors themselves: a socket in the one-long-response mode, background mode."""

import asyncio
from typing import Any

from responses_ws.models import ApiKey, UsageRecord
from responses_ws.runtime import background
from tests.protocol import grammar
from tests.serving.hosted import NOTES, WEATHER, Notebook, calls, note, run_here, script

from .test_background import cancel, client, frames_of, get
from .test_rollout import append, opted_in, outputs, until_it_waits
from .test_views import post

__all__ = ["client", "run_here"]


async def test_one_long_response_runs_tools_and_waits_for_those_of_the_client(api_key: ApiKey) -> None:
    script(calls(note("a")), calls(("get_weather", {"city": "Oslo"}), note("b")), calls(note("c")), "Done.")

    async with opted_in(api_key) as socket:
        await socket.create(model="scripted", store=False, input="All of it.", tools=[WEATHER, NOTES])
        events = await until_it_waits(socket)
        await append(socket, events[0]["response"]["id"], outputs(events[-1]))
        events += await until_it_waits(socket)
    await background.settle()

    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == [
        *("mcp_call", "function_call", "mcp_call", "function_call_output", "mcp_call", "message"),
    ]
    assert [job.arguments["text"] for job in Notebook.jobs] == ["a", "b", "c"]
    record = await UsageRecord.objects.aget()
    assert (record.status, record.output_tokens) == ("completed", response["usage"]["output_tokens"])


async def test_cancelling_a_background_response_stops_its_tool(client: Any) -> None:
    script(calls(note("wait")))
    body = {"model": "scripted", "input": "Note.", "tools": [NOTES], "background": True, "stream": True}
    answer = await post(client, body)
    watching = asyncio.create_task(frames_of(answer))
    await asyncio.wait_for(Notebook.began.wait(), 10)
    (record,) = [one async for one in UsageRecord.objects.all()]

    cancelled = (await cancel(client, record.response_id)).json()

    assert cancelled["status"] == "cancelled"
    assert cancelled["output"][0]["status"] == "incomplete"
    assert Notebook.was_cancelled.is_set()
    assert grammar.read(await watching)[-1]["response"] == cancelled
    assert (await get(client, record.response_id)).json() == cancelled
