"""What every hosted tool promises."""

import asyncio
import copy
from typing import Any

import msgspec

from responses_ws.protocol import server_events
from responses_ws.protocol.items import HOSTED_CALLS
from responses_ws.rendering.tools import ToolSet
from responses_ws.tools.base import HostedFunction, HostedTool, Job, Outcome, ToolError


class ToolContract:
    """What every hosted tool promises. Subclass it in your tests, as ``class TestMyTool(ToolContract)``.

    Give ``tool()``, a request's ``given`` tool, and ``arguments`` of a call that succeeds, of its function ``name``.
    Needs pytest-asyncio in auto mode, or any runner of async test methods.
    """

    given: dict[str, Any]
    name: str
    arguments: dict[str, Any]
    secrets: tuple[str, ...] = ()
    """What is in ``given`` and must not come out of it."""
    seconds_to_answer = 30.0

    def tool(self) -> HostedTool:
        """A fresh one."""
        raise NotImplementedError

    async def test_it_answers_for_its_kind(self) -> None:
        tool = self.tool()

        tool.check(self.given, "tools[0]")

        assert self.given["type"] in tool.types

    async def test_its_functions_can_be_offered(self) -> None:
        functions = await self._functions(self.tool())

        offered = ToolSet([self.given], functions)
        assert offered.encoded is not None
        assert self.name in [function.name for function in functions]
        for function in functions:
            assert function.tool is self.given
            assert function.parameters.get("type") == "object"
            assert function.item["type"] in HOSTED_CALLS | {"mcp_approval_request"}
            assert not _holds(function, self.secrets)

    async def test_a_call_gives_text_and_an_item(self) -> None:
        tool = self.tool()
        functions = await self._functions(tool)
        (function,) = [function for function in functions if function.name == self.name]
        words: list[str] = []

        outcome = await self._run(tool, self.arguments, words)

        assert isinstance(outcome, Outcome), outcome
        assert isinstance(outcome.output, str)
        msgspec.json.encode({**function.item, **outcome.fields})
        kind = "mcp_call" if function.item["type"] == "mcp_approval_request" else function.item["type"]
        for word in words:
            assert server_events.progress_event(kind, word) is not None, f"there is no event for {word!r}"
        assert not _holds(outcome, self.secrets)

    async def test_the_requests_tool_stays_as_it_is(self) -> None:
        before = copy.deepcopy(self.given)

        await self._run(self.tool(), self.arguments)

        assert self.given == before

    async def test_whatever_a_model_says_is_an_outcome_or_a_tool_error(self) -> None:
        for arguments in ({}, dict.fromkeys(self.arguments), {"nonsense": [1, {}]}):
            outcome = await self._run(self.tool(), arguments)

            assert isinstance(outcome, Outcome | ToolError)
            assert not _holds(outcome, self.secrets)

    async def test_calls_side_by_side_do_not_mix(self) -> None:
        tool = self.tool()

        outcomes = await asyncio.gather(*(self._run(tool, self.arguments) for _ in range(4)))

        assert all(isinstance(outcome, Outcome) for outcome in outcomes)

    async def test_a_call_can_be_cancelled(self) -> None:
        task = asyncio.ensure_future(self._run(self.tool(), self.arguments))
        await asyncio.sleep(0)

        task.cancel()
        await asyncio.wait({task}, timeout=self.seconds_to_answer)

        assert task.done()

    async def _functions(self, tool: HostedTool) -> list[HostedFunction]:
        listing = [] if tool.label(self.given) is None else await tool.listed(self.given)
        return tool.functions(self.given, listing)

    async def _run(
        self, tool: HostedTool, arguments: dict[str, Any], words: list[str] | None = None
    ) -> Outcome | ToolError:
        job = Job(tool=self.given, name=self.name, arguments=arguments, project_id=1)
        told: list[str] = [] if words is None else words
        try:
            async with asyncio.timeout(self.seconds_to_answer):
                return await tool.run(job, told.append)
        except ToolError as exc:
            return exc


def _holds(value: HostedFunction | Outcome | ToolError, secrets: tuple[str, ...]) -> bool:
    """Whether one of these is in what comes out of the tool."""
    if isinstance(value, HostedFunction):
        # The request's tool itself stays here.
        value = msgspec.structs.replace(value, tool={})
    said = repr((value.message, value.fields)) if isinstance(value, ToolError) else repr(value)
    return any(secret in said for secret in secrets)
