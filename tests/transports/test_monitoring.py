"""What load balancers and Prometheus are told."""

import asyncio
import threading
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from django.test import AsyncClient
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from responses_ws.billing import ledger
from responses_ws.engines.base import EngineError
from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey, BackgroundRun, Delivery, Heartbeat, Project, UsageRecord, WebSocketShare
from responses_ws.protocol.usage import Usage
from responses_ws.runtime import background, connections, dbpool, drain, metrics
from responses_ws.serving.admission import Principal
from responses_ws.serving.turns import run_turn
from responses_ws.stores.memory import hot_tier
from responses_ws.tasks import reap
from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports import monitoring
from responses_ws.transports.shares import shares
from tests.billing.rows import make_record
from tests.serving.bytes_model import BytesEngine
from tests.serving.turns import Chains, asked, events_of, response_of
from tests.waiting import until

TOKEN = "a-token-of-prometheus"


def set_up(settings: Any, **changed: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, **changed}


async def answer_of(path: str) -> tuple[int, dict[str, Any]]:
    answer = await AsyncClient().get(path)
    return answer.status_code, answer.json()


class Scrape:
    """One look at /metrics."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value under these labels, or None."""
        found = [one.value for one in self._samples if one.name == name and labels.items() <= one.labels.items()]
        assert len(found) < 2, f"{name} is there {len(found)} times"
        return found[0] if found else None


async def scrape() -> Scrape:
    answer = await AsyncClient().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    return Scrape(answer.content.decode())


class DeafDatabase:
    """While inside, no function that is given to the pool begins."""

    async def __aenter__(self) -> None:
        self._end = threading.Event()
        self._blocked = [asyncio.create_task(dbpool.run(self._end.wait)) for _ in range(4)]
        await asyncio.sleep(0)

    async def __aexit__(self, *_exc_info: object) -> None:
        self._end.set()
        await asyncio.gather(*self._blocked)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "DATABASE_SECONDS", 0.05)


@pytest.mark.django_db(transaction=True)
async def test_a_server_that_works_is_ready() -> None:
    assert await answer_of("/readyz") == (200, {"status": "ok", "database": "ok"})


@pytest.mark.django_db(transaction=True)
async def test_a_draining_server_lives_and_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "_is_draining", True)

    assert await answer_of("/healthz") == (200, {"status": "ok"})
    assert await answer_of("/readyz") == (503, {"status": "draining"})


@pytest.mark.usefixtures("_impatient")
@pytest.mark.django_db(transaction=True)
async def test_while_the_database_does_not_answer_the_server_lives_and_is_not_ready() -> None:
    async with DeafDatabase():
        alive, ready = await answer_of("/healthz"), await answer_of("/readyz")

    assert alive == (200, {"status": "ok"})
    assert ready == (503, {"status": "unavailable", "database": "down"})


@pytest.mark.django_db(transaction=True)
async def test_with_its_redis_a_server_is_whole(settings: Any, redis_url: str) -> None:
    set_up(settings, REDIS_URL=redis_url)

    assert await answer_of("/readyz") == (200, {"status": "ok", "database": "ok", "redis": "ok"})


@pytest.mark.django_db(transaction=True)
async def test_without_its_redis_a_server_is_ready_all_the_same(settings: Any) -> None:
    set_up(settings, REDIS_URL="redis://127.0.0.1:1/0")

    assert await answer_of("/readyz") == (200, {"status": "degraded", "database": "ok", "redis": "down"})


@pytest.mark.parametrize(
    ("waiting", "silence", "answer"),
    [
        pytest.param(timedelta(seconds=50), timedelta(seconds=100), {"status": "ok"}, id="in time"),
        pytest.param(None, None, {"status": "ok"}, id="nothing waits, and there never was a beat"),
        pytest.param(timedelta(seconds=70), None, {"status": "degraded", "billing": "late"}, id="usage waits"),
        pytest.param(None, timedelta(seconds=130), {"status": "degraded", "billing": "late"}, id="beat is silent"),
    ],
)
async def test_a_server_whose_usage_is_not_billed_is_ready_and_says_so(
    principal: Principal, waiting: timedelta | None, silence: timedelta | None, answer: dict[str, str]
) -> None:
    now = timezone.now()
    if waiting is not None:
        await response_of(asked(principal, "one"))
        await UsageRecord.objects.aupdate(ended_at=now - waiting, billed_at=None)
    if silence is not None:
        await Heartbeat.objects.acreate(name=Heartbeat.BEAT, at=now - silence)

    assert await answer_of("/readyz") == (200, {"database": "ok", **answer})


@pytest.mark.parametrize(
    ("token", "sent", "status"),
    [
        pytest.param("", "Bearer ", 404, id="none is set"),
        pytest.param(TOKEN, "", 401, id="none is sent"),
        pytest.param(TOKEN, "Bearer other", 401, id="another"),
        pytest.param(TOKEN, f"Bearer {TOKEN} ", 401, id="more than it"),
        pytest.param(TOKEN, "Bearer Ä", 401, id="not of ASCII"),
    ],
)
async def test_nobody_reads_metrics_without_the_token(settings: Any, token: str, sent: str, status: int) -> None:
    set_up(settings, METRICS_TOKEN=token)

    answer = await AsyncClient().get("/metrics", headers={"Authorization": sent})

    assert (answer.status_code, answer.content.count(b"responses_ws_")) == (status, 0)


async def test_a_turn_is_counted_with_its_tokens_and_times(principal: Principal, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)

    response = await response_of(asked(principal, "one two three", transport="sse"))
    seen = await scrape()

    usage = response["usage"]
    assert seen("responses_ws_turns_total", transport="sse", model="scripted", status="completed") == 1
    assert seen("responses_ws_tokens_total", model="scripted", kind="input") == usage["input_tokens"]
    assert seen("responses_ws_tokens_total", model="scripted", kind="output") == usage["output_tokens"]
    labels = {"gen_ai_request_model": "scripted", "gen_ai_operation_name": "chat", "transport": "sse"}
    for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
        assert seen(f"gen_ai_server_{name}_seconds_count", **labels) == 1
        assert (seen(f"gen_ai_server_{name}_seconds_sum", **labels) or 0) > 0
    for kind in ("input", "output"):
        told = seen("gen_ai_client_token_usage_sum", **labels, gen_ai_token_type=kind)
        assert told == usage[f"{kind}_tokens"]


async def test_a_turn_that_the_client_leaves_is_counted_as_cancelled(principal: Principal, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)
    async with aclosing(run_turn(asked(principal, "!tokens 1000 !rate 100"))) as runs:
        async for frames in runs:
            if "delta" in frames[-1]:
                break
    await background.settle()

    seen = await scrape()

    assert seen("responses_ws_turns_total", status="cancelled") == 1
    assert seen("responses_ws_turns_running") == 0


@pytest.mark.django_db(transaction=True)
async def test_a_turn_whose_engine_tells_no_usage_is_counted(settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)
    for is_estimated in (True, False):
        usage = Usage(input_tokens=1, estimated=is_estimated)
        told: dict[str, Any] = {"transport": "sse", "model": "m", "status": "completed", "usage": usage}
        metrics.turn_ended(**told, seconds=1.0, first_token_ms=None, phases={})

    seen = await scrape()

    assert seen("responses_ws_turns_total", model="m") == 2
    assert seen("responses_ws_turns_estimated_total", model="m", status="completed") == 1


async def test_a_refused_turn_is_counted_by_its_code(principal: Principal, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)

    with pytest.raises(Exception, match="not exist"):
        await events_of(asked(principal, "Hello", model="none-such"))

    assert (await scrape())("responses_ws_turns_refused_total", code="model_not_found", transport="websocket") == 1


async def test_the_place_where_a_parent_was_found_is_counted(principal: Principal, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)
    chains = Chains()
    first = await response_of(asked(principal, "one", chains=chains))

    await response_of(asked(principal, "two", chains=chains, previous_response_id=first["id"]))
    await response_of(asked(principal, "three", previous_response_id=first["id"]))
    hot_tier.clear()
    await response_of(asked(principal, "four", previous_response_id=first["id"]))
    with pytest.raises(Exception, match="not found"):
        await response_of(asked(principal, "five", previous_response_id="resp_" + "0" * 48))
    seen = await scrape()

    counts = {tier: seen("responses_ws_chain_lookups_total", tier=tier) for tier in ("connection", "process")}
    assert counts == {"connection": 1, "process": 1}
    assert seen("responses_ws_chain_lookups_total", tier="database") == 1
    assert seen("responses_ws_chain_lookups_total", tier="none") == 1


async def test_what_redis_has_is_counted_as_found_there(principal: Principal, settings: Any, redis_url: str) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN, REDIS_URL=redis_url, LIMITS={"redis_seconds": 10})
    first = await response_of(asked(principal, "one"))
    await background.settle()
    hot_tier.clear()

    await response_of(asked(principal, "two", previous_response_id=first["id"]))

    assert (await scrape())("responses_ws_chain_lookups_total", tier="redis") == 1


async def test_how_prompts_were_made_is_counted(principal: Principal, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN, MODELS={"bytes": {"ENGINE": "bytes"}})
    registry.install("bytes", BytesEngine("One<end>", "Two<end>"))
    chains = Chains()
    first = await response_of(asked(principal, "one", model="bytes", chains=chains))
    await response_of(asked(principal, "two", model="bytes", chains=chains, previous_response_id=first["id"]))

    seen = await scrape()

    steps = {path: seen("responses_ws_render_steps_total", model="bytes", path=path) for path in ("full", "append")}
    made = {path: seen("responses_ws_rendered_tokens_total", model="bytes", path=path) or 0 for path in steps}
    rows = {row.render_path: row.rendered_tokens async for row in UsageRecord.objects.all()}
    assert steps == {"full": 1, "append": 1}
    assert made == rows


async def test_a_failure_is_counted_for_its_engine(principal: Principal, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)
    registry.station("scripted").failed(EngineError("unavailable", "gone"), has_spoken=False)

    seen = await scrape()

    assert seen("responses_ws_engine_failures_total", engine="scripted", kind="unavailable") == 1
    assert seen("responses_ws_engine_up", engine="scripted") == 0


async def test_open_sockets_and_their_turns_are_told(api_key: ApiKey, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)
    body = {"model": "scripted", "input": "!tokens 200 !rate 100"}

    async with ResponsesCommunicator(api_key.secret) as socket:
        await socket.create(**body)
        await socket.receive()
        await socket.create(**body)
        await until(lambda: connections.waiting_turns() == 1, "the second turn to wait")
        during = await scrape()
    after = await scrape()

    names = ("responses_ws_sockets", "responses_ws_turns_running", "responses_ws_turns_waiting")
    assert [during(name) for name in names] == [1, 1, 1]
    assert [after(name) for name in names] == [0, 0, 0]


async def test_a_socket_that_the_share_refuses_is_counted_for_its_project(api_key: ApiKey, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)
    shares.forget()
    await dbpool.run(WebSocketShare.objects.create, project=api_key.project, percent=0)

    async with ResponsesCommunicator(api_key.secret) as socket:
        assert socket.refusal is not None
    async with ResponsesCommunicator("sk-wrong") as socket:
        assert socket.refusal is not None
    seen = await scrape()

    name = "responses_ws_handshakes_refused_total"
    assert seen(name, code="websocket_off", project=str(api_key.project_id)) == 1
    assert seen(name, code="invalid_api_key", project="") == 1


async def test_lanes_are_told_as_long_as_their_socket_is_open(api_key: ApiKey, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)

    async with ResponsesCommunicator(api_key.secret) as socket:
        for lane in ("a", "b", "a"):
            await socket.create(model="scripted", input="Hello", stream_id=lane)
            while (await socket.receive())["type"] != "response.completed":
                pass
        during = await scrape()
    after = await scrape()

    assert (during("responses_ws_lanes"), after("responses_ws_lanes")) == (2, 0)
    assert after("responses_ws_sockets_opened_total") == 1


async def test_unbilled_records_and_the_age_of_the_oldest_are_told(principal: Principal, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)
    await response_of(asked(principal, "one"))
    await response_of(asked(principal, "two"))
    await UsageRecord.objects.aupdate(ended_at=timezone.now() - timedelta(hours=1), billed_at=None)

    seen = await scrape()

    assert seen("responses_ws_unbilled_records") == 2
    assert 3600 <= (seen("responses_ws_unbilled_oldest_seconds") or 0) < 3700


async def test_what_sinks_have_not_been_told_is_told(project: Project, settings: Any) -> None:
    hook = {"SINK": "responses_ws.billing.sinks.webhook.Webhook", "URL": "https://books.example.com/"}
    set_up(settings, METRICS_TOKEN=TOKEN, BILLING_SINKS={"books": hook})

    def fill() -> None:
        for _ in range(3):
            make_record(project)
        ledger.bill_all()
        Delivery.objects.filter(pk=Delivery.objects.earliest("pk").pk).update(due_at=None)

    await dbpool.run(fill)

    seen = await scrape()

    assert seen("responses_ws_undelivered", sink="books", state="waiting") == 2
    assert seen("responses_ws_undelivered", sink="books", state="given_up") == 1


async def test_how_long_beat_is_silent_is_told_once_it_was_heard(principal: Principal, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)

    before = await scrape()
    await dbpool.run(reap)
    await Heartbeat.objects.aupdate(at=timezone.now() - timedelta(hours=1))
    monitoring.owed.forget()
    after = await scrape()

    assert before("responses_ws_beat_silent_seconds") is None
    assert 3600 <= (after("responses_ws_beat_silent_seconds") or 0) < 3700


async def test_background_responses_that_nobody_runs_are_told(api_key: ApiKey, settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN, BACKGROUND_RUNNERS=True)
    body = {"model": "scripted", "input": "Hello", "background": True}
    headers = {"Authorization": f"Bearer {api_key.secret}"}
    for _ in range(2):
        await AsyncClient().post("/v1/responses", body, content_type="application/json", headers=headers)
    first = await BackgroundRun.objects.order_by("created_at").afirst()
    assert first is not None
    longer = timezone.now() - timedelta(minutes=10)
    await BackgroundRun.objects.filter(pk=first.pk).aupdate(lease_until=longer)

    seen = await scrape()

    assert seen("responses_ws_background_waiting") == 2
    assert 600 <= (seen("responses_ws_background_waiting_oldest_seconds") or 0) < 700


@pytest.mark.usefixtures("_impatient")
@pytest.mark.django_db(transaction=True)
async def test_while_the_database_does_not_answer_the_rest_is_told(settings: Any) -> None:
    set_up(settings, METRICS_TOKEN=TOKEN)

    async with DeafDatabase():
        seen = await scrape()

    assert seen("responses_ws_sockets") == 0
    assert seen("responses_ws_unbilled_records") is None
