"""System checks: one row a fault, and silence where there is none."""

from collections.abc import Callable, Iterator
from typing import Any

import celery
import pytest
from django.core.checks import CheckMessage

from project.celery import app as celery_app
from responses_ws import checks
from responses_ws.engines.base import Engine

SCRIPTED = {"ENGINE": "responses_ws.engines.scripted.Scripted"}
WEB = {
    "TOOL": "responses_ws.tools.web_search.WebSearch",
    "PROVIDER": "responses_ws.tools.web_search.Searxng",
}
HOOK = "responses_ws.billing.sinks.webhook.Webhook"
METER = {"SINK": "responses_ws.billing.sinks.stripe.StripeMeter", "API_KEY": "sk", "EVENT_NAME": "spend"}
BASE = "responses_ws.engines.base"
LAYER = "channels_redis.core.RedisChannelLayer"
WELL = {"ENGINES": {"main": SCRIPTED}, "MODELS": {"m": {"ENGINE": "main"}}}


def replicated(replicas: Any) -> dict[str, Any]:
    return {**WELL, "MODELS": {"m": {"REPLICAS": replicas}}}


def aliased(name: str, **more: Any) -> dict[str, Any]:
    return {**WELL, "MODELS": {"m": {"ENGINE": "main"}, "a": {"ALIAS": name, **more}}}


def rendered(options: Any) -> dict[str, Any]:
    return {**WELL, "MODELS": {"m": {"ENGINE": "main", "RENDERER": options}}}


def classified(**entry: Any) -> dict[str, Any]:
    return {**WELL, "SAFETY": [{"CLASSIFIER": "responses_ws.safety.moderation.ModerationEndpoint", **entry}]}


def found(messages: list[CheckMessage]) -> list[tuple[str, str]]:
    """(id, text) of each message, its hint included."""
    return [
        (str(message.id).removeprefix("responses_ws."), f"{message.msg} {message.hint or ''}") for message in messages
    ]


@pytest.mark.parametrize(
    ("given", "id_", "text"),
    [
        pytest.param([], "E001", "not a dict", id="not a dict"),
        pytest.param({"ENGIENS": {}}, "E001", "Did you mean 'ENGINES'?", id="typo"),
        pytest.param({"ZZZ": {}}, "E001", "Known are: ", id="nothing like it"),
        pytest.param({"TRACING": 1}, "E001", "TRACING", id="spans for a number"),
        pytest.param({"STORE_DAYS": "30"}, "E001", "STORE_DAYS", id="wrong type"),
        pytest.param({"REDIS_URL": "127.0.0.1:6379"}, "E001", "'REDIS_URL'] is invalid", id="no URL of a Redis"),
        pytest.param({"REDIS_URL": "redis+cluster://a:b"}, "E001", "'REDIS_URL'] is invalid", id="no port of one"),
        pytest.param({"INVOICE_NUMBER": "{numbr}"}, "E001", "no form of a number", id="number that is not printed"),
        pytest.param({"CREDIT_NOTE_NUMBER": "CN-{number}"}, "E001", "one number", id="number of two invoices"),
        pytest.param({"LIMITS": {"max_item": 1}}, "E001", "Did you mean 'max_items'?", id="typo in a limit"),
        pytest.param({"LIMITS": {"queued_turns": "many"}}, "E001", "queued_turns", id="limit of a wrong type"),
        pytest.param({"RATES": {"sockets": 1}}, "E001", "Did you mean 'open_sockets'?", id="rate that is none"),
        pytest.param({"RATES": {"open_sockets": 0}}, "E001", "['RATES']['open_sockets']", id="rate of nothing"),
        pytest.param(
            {"MODELS": {"m": {"ENGINE": "mian"}}, "ENGINES": {"main": SCRIPTED}}, "E001", "'main'", id="engine"
        ),
        pytest.param({**WELL, "MODELS": {"m": {"ENGINE": "main", "CONTEX": 1}}}, "E001", "'CONTEX'", id="model key"),
        pytest.param(
            {**WELL, "MODELS": {"m": {"ENGINE": "main", "CONTEXT": "32k"}}}, "E001", "'32k'", id="model's context"
        ),
        pytest.param(rendered("x.json"), "E001", "['RENDERER'] is not a dict: 'x.json'", id="renderer that is a path"),
        pytest.param(rendered({"TOKENIZER": "/x.json"}), "W008", "no file /x.json", id="tokenizer that is not there"),
        pytest.param(rendered({"TOKENIZERS": "/x"}), "E001", "TOKENIZERS is not an option", id="renderer's option"),
        pytest.param(rendered({"CLASS": f"{BASE}.Engine"}), "E001", "is not a Renderer", id="class of no renderer"),
        pytest.param({"MODELS": {"m": {}}}, "E001", "names no engine", id="model without engine"),
        pytest.param(
            {**WELL, "MODELS": {"m": {"ENGINE": "main", "REPLICAS": []}}},
            "E001",
            "says ENGINE and REPLICAS",
            id="two ways to an engine",
        ),
        pytest.param(
            classified(), "E001", "SAFETY[0]: Object missing required field `BASE_URL`", id="an option left out"
        ),
        pytest.param(classified(BASE_URL="http://x/v1", FIAL="open"), "E001", "FIAL", id="an option nobody has"),
        pytest.param(classified(BASE_URL="http://x/v1", FAIL="never"), "E001", "'never'", id="a way to fail"),
        pytest.param(classified(BASE_URL="http://x/v1", SECONDS="soon"), "E001", "SECONDS", id="a time limit"),
        pytest.param(
            {**WELL, "SAFETY": [{"CLASSIFIER": "responses_ws.safety.rules.Rules"}] * 2},
            "E001",
            "a second classifier is called 'rules'",
            id="two of a name",
        ),
        pytest.param(replicated([]), "E001", "not a list of replicas", id="no replicas"),
        pytest.param(replicated(["main"]), "E001", "[0] is not a dict: 'main'", id="a replica that is a name"),
        pytest.param(
            replicated([{"ENGINE": "main"}, {"ENGINE": "mian"}]), "E001", "Did you mean 'main'?", id="replica's engine"
        ),
        pytest.param(replicated([{"UPSTREAM": "m"}]), "E001", "[0] names no engine", id="a replica without engine"),
        pytest.param(
            replicated([{"ENGINE": "main", "WEIHGT": 2}]), "E001", "Did you mean 'WEIGHT'?", id="replica's key"
        ),
        pytest.param(replicated([{"ENGINE": "main", "WEIGHT": 0}]), "E001", "above 0: 0", id="replica's weight"),
        pytest.param(
            {**WELL, "MODELS": {"*": {"REPLICAS": [{"ENGINE": "main"}]}}}, "E001", "several", id="replicas of all"
        ),
        pytest.param(aliased("x"), "E001", "['ALIAS'] is no model: 'x'", id="alias of nothing"),
        pytest.param(aliased("*"), "E001", "['ALIAS'] is no model: '*'", id="alias of all"),
        pytest.param(aliased("a"), "E001", "is an alias itself", id="alias of itself"),
        pytest.param(aliased("m", CONTEXT=9), "E001", "has CONTEXT, too", id="alias with more"),
        pytest.param({"ENGINES": {"a": {**SCRIPTED, "CONCURRENCY": 0}}}, "E001", "of calls: 0", id="no calls at all"),
        pytest.param({"ENGINES": {"a": {**SCRIPTED, "QUEUE": 4}}}, "E001", "no CONCURRENCY", id="queue for nothing"),
        pytest.param({"TOOLS": {"web": WEB}}, "E001", "TOOLS['web']['URL'] is missing", id="option of a tool"),
        pytest.param(
            {"TOOLS": {"a": {**WEB, "URL": "http://a/"}, "b": {**WEB, "URL": "http://b/"}}},
            "E001",
            "answer for 'web_search' both",
            id="two tools for a type",
        ),
        pytest.param(
            {"BILLING_SINKS": {"a": {"SINK": HOOK}}}, "E001", "['a']['URL'] is missing", id="option of a sink"
        ),
        pytest.param(
            {"BILLING_SINKS": {"a": {**METER, "VALUE": "money"}}},
            "E001",
            "['a']['VALUE']",
            id="a sink that counts what",
        ),
        pytest.param({"SEALING_KEYS": ["x" * 32, "short"]}, "E001", "['SEALING_KEYS'][1] has 5", id="short key"),
        pytest.param({"SEALING_KEYS": "x" * 32}, "E001", "SEALING_KEYS", id="a key that is no list"),
    ],
)
def test_a_wrong_setting_is_named(settings: Any, given: Any, id_: str, text: str) -> None:
    settings.RESPONSES_WS = given

    messages = found(checks.check_settings())

    assert [name for name, _ in messages] == [id_]
    assert text in messages[0][1]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="nothing"),
        pytest.param(WELL, id="an engine and a model"),
        pytest.param({**WELL, "MODELS": {"*": {"ENGINE": "main"}}}, id="whatever the engine lists"),
        pytest.param(replicated([{"ENGINE": "main", "WEIGHT": 2}, {"ENGINE": "main", "UPSTREAM": "b"}]), id="replicas"),
        pytest.param(aliased("m"), id="an alias"),
        pytest.param(
            {**WELL, "MODELS": {"a": {"ALIAS": "b"}, "*": {"ENGINE": "main"}}}, id="an alias of what may be listed"
        ),
        pytest.param({"ENGINES": {"a": {**SCRIPTED, "CONCURRENCY": 2, "QUEUE": 0}}}, id="an engine with two slots"),
        pytest.param({"LIMITS": {"connection_seconds": 6, "max_items": 10}}, id="limits, whole seconds"),
        pytest.param({"BILLING_SINKS": {"a": {"SINK": HOOK, "URL": "https://a/"}, "b": METER}}, id="two sinks"),
    ],
)
def test_right_settings_are_not_remarked_on(settings: Any, given: Any) -> None:
    settings.RESPONSES_WS = given

    assert found(checks.check_settings()) == []
    assert found(checks.check_dotted_paths()) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        pytest.param({"ENGINES": {"a": {"ENGINE": "nowhere.Engine"}}}, "does not import", id="no such module"),
        pytest.param({"ENGINES": {"a": {"ENGINE": f"{BASE}.Nothing"}}}, "does not import", id="no name"),
        pytest.param({"ENGINES": {"a": {"ENGINE": f"{BASE}.Health"}}}, "not a subclass", id="no engine"),
        pytest.param({"ENGINES": {"a": {"ENGINE": "json.dumps"}}}, "not a class", id="a function"),
        pytest.param({"ENGINES": {"a": {}}}, "not a dotted path", id="missing"),
        pytest.param(classified(CLASSIFIER=f"{BASE}.Engine"), "not a subclass of Classifier", id="no classifier"),
        pytest.param({"SAFETY": [{}]}, "SAFETY'][0]['CLASSIFIER']", id="a classifier that is not named"),
        pytest.param({"TOOLS": {"a": {"TOOL": "nowhere.Tool"}}}, "does not import", id="no such tool"),
        pytest.param({"TOOLS": {"a": {"TOOL": f"{BASE}.Health"}}}, "not a subclass of HostedTool", id="no tool"),
        pytest.param({"BILLING_SINKS": {"a": {"SINK": f"{BASE}.Health"}}}, "not a subclass of Sink", id="no sink"),
        pytest.param({"AUTHENTICATOR": "nowhere.Authenticator"}, "does not import", id="authenticator"),
    ],
)
def test_a_dotted_path_that_leads_nowhere_is_named(settings: Any, given: Any, text: str) -> None:
    settings.RESPONSES_WS = given

    messages = found(checks.check_dotted_paths())

    assert [name for name, _ in messages] == ["E005"]
    assert text in messages[0][1]


def test_the_base_class_itself_counts_as_an_engine() -> None:
    assert checks.path_faults("here", f"{BASE}.Engine", Engine) == []


@pytest.mark.parametrize(
    ("layer", "faults"),
    [
        pytest.param({"BACKEND": "channels.layers.InMemoryChannelLayer"}, 0, id="in memory"),
        pytest.param({"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer"}, 0, id="pub/sub"),
        pytest.param({"BACKEND": LAYER}, 1, id="default host"),
        pytest.param(
            {
                "BACKEND": LAYER,
                "CONFIG": {"hosts": [("127.0.0.1", 6379), "redis://b"]},
            },
            2,
            id="two hosts",
        ),
        pytest.param(
            {
                "BACKEND": LAYER,
                "CONFIG": {"hosts": [{"address": "redis://a", "socket_timeout": 5}]},
            },
            1,
            id="with a timeout",
        ),
        pytest.param(
            {
                "BACKEND": LAYER,
                "CONFIG": {"hosts": [{"address": "redis://a", "socket_timeout": None}]},
            },
            0,
            id="cured",
        ),
    ],
)
def test_a_channel_layer_that_drops_idle_sockets_is_named(settings: Any, layer: dict[str, Any], faults: int) -> None:
    settings.CHANNEL_LAYERS = {"default": layer}

    assert [name for name, _ in found(checks.check_channel_layers())] == ["E002"] * faults


@pytest.mark.parametrize(("seconds", "ids"), [(0, []), (60, ["E003"]), (None, ["E003"])])
def test_connections_kept_open_are_named(
    monkeypatch: pytest.MonkeyPatch, settings: Any, seconds: int | None, ids: list[str]
) -> None:
    monkeypatch.setitem(settings.DATABASES["default"], "CONN_MAX_AGE", seconds)

    assert [name for name, _ in found(checks.check_databases())] == ids


@pytest.fixture
def celery_conf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Changes values of the demo project's Celery configuration, until the test ends.

    Other tests leave apps of their own as the current one.
    """
    before = celery.current_app._get_current_object()
    celery_app.set_current()

    def change(**values: Any) -> None:
        for name, value in values.items():
            monkeypatch.setitem(celery_app.conf, name, value)

    yield change
    before.set_current()


@pytest.mark.parametrize(
    ("visibility", "limit", "ids"), [(300, 120, []), (60, 120, ["W001"]), (None, 120, []), (300, None, [])]
)
def test_a_visibility_timeout_below_the_time_limit_is_named(
    celery_conf: Any, visibility: int | None, limit: int | None, ids: list[str]
) -> None:
    options = {} if visibility is None else {"visibility_timeout": visibility}
    celery_conf(broker_transport_options=options, task_time_limit=limit)

    assert [name for name, _ in found(checks.check_visibility_timeout())] == ids


def test_a_missing_sweep_is_named(celery_conf: Any) -> None:
    with_sweep = found(checks.check_beat())
    celery_conf(beat_schedule={"other": {"task": "other", "schedule": 1.0}})

    without = found(checks.check_beat())

    assert with_sweep == []
    assert [name for name, _ in without] == ["W002"]


def test_sinks_that_nothing_tells_are_named(settings: Any, celery_conf: Any) -> None:
    settings.RESPONSES_WS = {"BILLING_SINKS": {"b": METER}}
    with_both = found(checks.check_beat())
    celery_conf(beat_schedule={"sweep": {"task": checks.SWEEP, "schedule": 5.0}})

    without = found(checks.check_beat())

    assert with_both == []
    assert [name for name, _ in without] == ["W002"] and "responses_ws.deliver" in without[0][1]


def test_a_broker_in_memory_is_named_in_production(settings: Any, celery_conf: Any) -> None:
    settings.DEBUG = False
    in_memory = found(checks.check_broker())
    celery_conf(broker_url="redis://127.0.0.1/0")

    elsewhere = found(checks.check_broker())

    assert [name for name, _ in in_memory] == ["E004"]
    assert elsewhere == []


@pytest.mark.parametrize(
    ("ours", "broker", "ids"),
    [
        pytest.param("redis://a:6379/1", "redis://a:6379/0", ["W009"], id="another database of one server"),
        pytest.param("rediss://:secret@localhost/1", "redis://127.0.0.1:6379", ["W009"], id="spelled otherwise"),
        pytest.param("unix:///run/redis.sock?db=1", "redis+socket:///run/redis.sock", ["W009"], id="one socket"),
        pytest.param("redis://a:6380/0", "redis://a:6379/0", [], id="two servers of one machine"),
        pytest.param("redis://a/0", "redis://b/0", [], id="two machines"),
        pytest.param("redis://a/0", "amqp://a", [], id="another broker"),
        pytest.param("", "redis://a/0", [], id="chains in the database only"),
        pytest.param(7, "redis://a/0", [], id="E001 is enough"),
    ],
)
def test_one_redis_for_the_broker_and_for_chains_is_named(
    settings: Any, celery_conf: Any, ours: Any, broker: str, ids: list[str]
) -> None:
    settings.RESPONSES_WS = {"REDIS_URL": ours}
    celery_conf(broker_url=broker)

    assert [name for name, _ in found(checks.check_redis())] == ids


@pytest.mark.parametrize("url", ["redis://a", "rediss://:x@a:1/2", "redis+cluster://a:1", "unix:///run/redis.sock"])
def test_the_url_of_a_redis_is_no_fault(settings: Any, url: str) -> None:
    settings.RESPONSES_WS = {**WELL, "REDIS_URL": url}

    assert found(checks.check_settings()) == []


def test_a_project_without_asgi_is_named(settings: Any) -> None:
    well = found(checks.check_asgi())
    settings.ASGI_APPLICATION = None

    under_wsgi = found(checks.check_asgi())

    assert well == []
    assert [name for name, _ in under_wsgi] == ["W004"]


@pytest.mark.parametrize(
    ("limit", "in_memory", "ids"),
    [
        pytest.param(1000, 1001, [], id="all in memory"),
        pytest.param(1000, 1000, ["W007"], id="the largest on disk"),
        pytest.param("many", 1, [], id="E001 is enough"),
    ],
)
def test_bodies_that_touch_the_disk_are_named(settings: Any, limit: Any, in_memory: int, ids: list[str]) -> None:
    settings.RESPONSES_WS = {"LIMITS": {"max_frame_bytes": limit}}
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = in_memory

    assert [name for name, _ in found(checks.check_upload_size())] == ids
