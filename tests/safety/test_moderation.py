"""The adapter for moderation endpoints, against a server that speaks their form."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from responses_ws.safety.base import Finding, Material, Passage, Side, Verdict
from responses_ws.safety.moderation import CHARACTERS_PER_TEXT, ModerationEndpoint
from responses_ws.testing import ClassifierContract
from tests.fakes.moderation_server import ModerationServer


@pytest.fixture
async def server() -> AsyncIterator[ModerationServer]:
    async with ModerationServer().running() as server:
        yield server


async def check(server: ModerationServer, *texts: str, before: str = "", **options: Any) -> Verdict:
    endpoint = ModerationEndpoint("moderation", {"BASE_URL": server.url, "API_KEY": "sk-x", **options})
    try:
        return await endpoint.check(Material("input", [Passage(text, "user") for text in texts], before, 1, "m"))
    finally:
        await endpoint.aclose()


class TestModerationEndpoint(ClassifierContract):
    bad = "kill them all"
    sides: tuple[Side, ...] = ("input", "output")

    @pytest.fixture(autouse=True)
    async def _server(self, server: ModerationServer) -> AsyncIterator[None]:
        self._url = server.url
        self._made: list[ModerationEndpoint] = []
        yield
        for endpoint in self._made:
            await endpoint.aclose()

    def classifier(self) -> ModerationEndpoint:
        self._made.append(ModerationEndpoint("moderation", {"BASE_URL": self._url}))
        return self._made[-1]

    def down(self) -> ModerationEndpoint:
        # Nobody listens on the discard port of this machine.
        self._made.append(ModerationEndpoint("moderation", {"BASE_URL": "http://127.0.0.1:9/v1"}))
        return self._made[-1]

    async def test_what_is_bad_is_found_in_two_pieces_where_it_carries_so_much(self) -> None:
        """In two passages it is not looked for without a space: a model reads words, and a line between them."""
        verdict = await self._look(self.classifier(), "ll them", before="they ki")

        assert verdict.findings


async def test_all_texts_go_in_one_request_behind_what_came_before(server: ModerationServer) -> None:
    await check(server, "one", "two", before="earlier ", MODEL="mod-1")

    assert server.requests == [{"model": "mod-1", "input": ["earlier one\ntwo"]}]
    assert server.keys == ["Bearer sk-x"]


async def test_a_long_text_is_asked_in_parts_and_the_worst_counts(server: ModerationServer) -> None:
    verdict = await check(server, "fine " * (CHARACTERS_PER_TEXT // 4) + "kill")

    assert len(server.requests) == 1 and len(server.requests[0]["input"]) == 2
    assert verdict.score is not None and verdict.score.flagged
    assert verdict.score.category_scores["violence"] == 0.9


async def test_nothing_is_asked_about_nothing(server: ModerationServer) -> None:
    verdict = await check(server, " ", "")

    assert server.requests == []
    assert verdict.findings == ()


@pytest.mark.parametrize(
    ("options", "findings"),
    [
        pytest.param({}, [("violence", "flag")], id="what the endpoint flags"),
        pytest.param({"FLAG": {"spam": 0.3}}, [("spam", "flag"), ("violence", "flag")], id="a lower threshold"),
        pytest.param({"FLAG": {"*": 0.95}}, [], id="a higher one for all"),
        pytest.param({"REFUSE": {"violence": 0.8}}, [("violence", "refuse")], id="refused"),
        pytest.param({"REFUSE": {"*": 0.35}}, [("spam", "refuse"), ("violence", "refuse")], id="all refused"),
        pytest.param({"REFUSE": {"violence": 0.95}}, [("violence", "flag")], id="below refusal it is flagged"),
    ],
)
async def test_thresholds_say_what_is_done(
    server: ModerationServer, options: dict[str, Any], findings: list[tuple[str, str]]
) -> None:
    verdict = await check(server, "kill and buy", **options)

    assert [(finding.category, finding.action) for finding in verdict.findings] == findings
    assert all(isinstance(finding, Finding) and finding.score is not None for finding in verdict.findings)


async def test_a_sparse_answer_is_filled_in() -> None:
    """Other servers leave out what OpenAI has."""
    async with ModerationServer().running() as server:
        server._result = lambda text: {"flagged": True, "categories": {"S1": True}, "category_scores": {}}  # type: ignore[method-assign]
        verdict = await check(server, "x")

    assert verdict.score is not None
    assert verdict.score.category_applied_input_types == {"S1": ["text"]}
    assert [finding.category for finding in verdict.findings] == ["S1"]


@pytest.mark.parametrize("status", [400, 401, 429, 500, 302])
async def test_another_status_says_nothing(server: ModerationServer, status: int) -> None:
    server.status = status

    with pytest.raises(ConnectionError):
        await check(server, "kill")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="no url"),
        pytest.param({"BASE_URL": "file:///etc/passwd"}, id="another scheme"),
        pytest.param({"BASE_URL": "http://x/v1", "THRESHOLD": 1}, id="unknown"),
        pytest.param({"BASE_URL": "http://x/v1", "REFUSE": {"*": "much"}}, id="no number"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ModerationEndpoint("moderation", options)
