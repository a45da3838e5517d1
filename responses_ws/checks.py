"""System checks. Their ids are public: a host project may silence one by its id.

E001 an unknown or invalid setting · E002 a channel layer that drops idle sockets · E003 connections kept open per
thread · E004 an in-process broker in production · E005 a dotted path that does not lead to the right class · E006
spans that nobody can make · E007 a journal without a place · W001 tasks that are delivered twice while they run ·
W002 nothing bills what no kick reached, or tells sinks · W003 Celery settings that hold up messages · W004 no ASGI ·
W005 PostgreSQL without a fit pool · W006 no journal · W007 bodies that touch the disk · W008 a model's files that are
not there · W009 one Redis for the broker and for chains · W010 no route to the live view. E007, W003, W005, W006 and
W010 are in `service_checks`.
"""

import dataclasses
import difflib
import importlib.util
import math
import string
import typing
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import celery
import msgspec
import redis
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.utils.module_loading import import_string
from redis.connection import parse_url

from .billing.sinks.base import Sink
from .billing.sinks.registry import load as load_sink
from .conf import Settings
from .connection.limits import Limits
from .connection.rates import Rates
from .engines.base import Engine
from .runtime import renderers
from .safety.base import Classifier
from .safety.registry import TERMS, build
from .tools.base import HostedTool
from .tools.registry import load

SWEEP, DELIVER = "responses_ws.bill_batch", "responses_ws.deliver"
# Engines and renderers check their own options when they are built; these keys are ours.
MODEL_KEYS = {"ENGINE", "REPLICAS", "ALIAS", "UPSTREAM", "CONTEXT", "RENDERER"}
REPLICA_KEYS = {"ENGINE", "UPSTREAM", "WEIGHT"}


def given_settings() -> Any:
    """The host project's ``RESPONSES_WS``, as written."""
    return getattr(settings, "RESPONSES_WS", {})


def suggestion(word: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known: the nearest one that is, or all of them."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(sorted(known))}."


def section(name: str) -> dict[str, Any]:
    """A dict inside the settings, or nothing where it is not one (which E001 reports)."""
    given = given_settings()
    value = given.get(name, {}) if isinstance(given, dict) else {}
    return value if isinstance(value, dict) else {}


@register()
def check_settings(**_kwargs: Any) -> list[CheckMessage]:
    """E001: typos and wrong types. A key that is silently ignored is a default nobody chose."""
    given = given_settings()
    if not isinstance(given, dict):
        return [Error("RESPONSES_WS is not a dict.", id="responses_ws.E001")]
    messages: list[CheckMessage] = []
    types = typing.get_type_hints(Settings)
    known = [field.name for field in dataclasses.fields(Settings)]
    for key, value in given.items():
        if key not in known:
            messages.append(
                Error(f"RESPONSES_WS has no setting {key!r}.", hint=suggestion(key, known), id="responses_ws.E001")
            )
            continue
        try:
            msgspec.convert(value, types[key])
        except msgspec.ValidationError as exc:
            messages.append(Error(f"RESPONSES_WS[{key!r}] is invalid: {exc}.", id="responses_ws.E001"))
    faults = [redis_faults, number_faults, limit_faults, engine_faults, model_faults, tool_faults, key_faults]
    faults += [safety_faults, sink_faults]
    return messages + [fault for look in faults for fault in look()]


def redis_faults() -> Iterator[CheckMessage]:
    """A ``REDIS_URL`` that no client could be made of: every look-up would fail."""
    url = given_settings().get("REDIS_URL")
    if not url or not isinstance(url, str):
        return
    try:
        parse_url(url.replace("+cluster", "", 1))
    except ValueError as exc:
        yield fault(f"RESPONSES_WS['REDIS_URL'] is invalid: {exc}")


def number_faults() -> Iterator[CheckMessage]:
    """Numbers of invoices that could not be printed, or not be told apart."""
    given = given_settings()
    for name in ("INVOICE_NUMBER", "CREDIT_NOTE_NUMBER"):
        form = given.get(name)
        if not isinstance(form, str):
            continue
        try:
            form.format(number=1, organization=1, year=2026)
            named = {field for _text, field, _spec, _conversion in string.Formatter().parse(form)}
        except (LookupError, ValueError, AttributeError) as exc:
            yield fault(f"RESPONSES_WS[{name!r}] is no form of a number: {exc}.", "{number}, {organization}, {year}")
            continue
        if not {"number", "organization"} <= named:
            yield fault(f"RESPONSES_WS[{name!r}] gives several invoices one number.", "{organization} and {number}")


def limit_faults() -> Iterator[CheckMessage]:
    """Unknown names and impossible values in ``RESPONSES_WS["LIMITS"]`` and ``["RATES"]``."""
    for name, struct in (("LIMITS", Limits), ("RATES", Rates)):
        types = typing.get_type_hints(struct, include_extras=True)
        for key, value in section(name).items():
            if key not in types:
                yield fault(f"RESPONSES_WS[{name!r}] has no limit {key!r}.", suggestion(key, types))
                continue
            try:
                # As app_settings does: 60 is a float, too.
                msgspec.convert(value, types[key], strict=name == "RATES")
            except msgspec.ValidationError as exc:
                yield fault(f"RESPONSES_WS[{name!r}][{key!r}] is invalid: {exc}.")


def fault(message: str, hint: str = "") -> Error:
    return Error(message, hint=hint or None, id="responses_ws.E001")


def engine_faults() -> Iterator[CheckMessage]:
    """What an entry says of its engine's place in this process."""
    for name, engine in section("ENGINES").items():
        for key in ("CONCURRENCY", "QUEUE"):
            least = int(key == "CONCURRENCY")
            number = engine.get(key, least) if isinstance(engine, dict) else least
            if not isinstance(number, int) or isinstance(number, bool) or number < least:
                yield fault(f"RESPONSES_WS['ENGINES'][{name!r}][{key!r}] is not a number of calls: {number!r}.")
        if isinstance(engine, dict) and "QUEUE" in engine and "CONCURRENCY" not in engine:
            yield fault(f"RESPONSES_WS['ENGINES'][{name!r}] has a QUEUE, but no CONCURRENCY that would fill it.")


def model_faults() -> Iterator[CheckMessage]:
    """Models that nobody could answer for, or whose entry has a key that means nothing."""
    for name, model in section("MODELS").items():
        where = f"RESPONSES_WS['MODELS'][{name!r}]"
        if not isinstance(model, dict):
            # Its type is E001 already.
            continue
        for key in model.keys() - MODEL_KEYS:
            yield fault(f"{where} has no key {key!r}.", suggestion(key, MODEL_KEYS))
        ways = [key for key in ("ENGINE", "REPLICAS", "ALIAS") if key in model]
        if len(ways) != 1:
            said = f"says {' and '.join(ways)}" if ways else "names no engine"
            yield fault(f"{where} {said}.", 'One of "ENGINE", "REPLICAS" and "ALIAS" says who answers.')
        elif ways == ["ALIAS"]:
            yield from alias_faults(where, model)
        elif ways == ["ENGINE"]:
            yield from named_engine_faults(where, model["ENGINE"])
        elif name == "*":
            yield fault(f"{where} has several replicas.", "Name the models that they have in common.")
        else:
            yield from replica_faults(f"{where}['REPLICAS']", model["REPLICAS"])
        yield from renderer_faults(where, model.get("RENDERER", {}))
        context = model.get("CONTEXT", 1)
        if not isinstance(context, int) or context < 1:
            yield fault(f"{where}['CONTEXT'] is not a number of tokens: {context!r}.")


def renderer_faults(where: str, options: Any) -> Iterator[CheckMessage]:
    """Options of a renderer that it does not have, files that are not there. What is in these the start tells."""
    if not isinstance(options, dict):
        yield fault(f"{where}['RENDERER'] is not a dict: {options!r}.", '{"TOKENIZER": "/models/…"} is.')
    elif options:
        try:
            renderers.check(options)
        except renderers.NoSuchFile as exc:
            # Not every machine that runs checks, to migrate for instance, has the models.
            yield Warning(f"{where}: {exc}.", hint="Requests for it will fail here.", id="responses_ws.W008")
        except ValueError as exc:
            yield fault(f"{where}: {exc}.")


def alias_faults(where: str, model: dict[str, Any]) -> Iterator[CheckMessage]:
    """An alias has nothing of its own, and leads to a model."""
    models, real = section("MODELS"), model["ALIAS"]
    if len(model) > 1:
        yield fault(f"{where} is an alias and has {', '.join(sorted(model.keys() - {'ALIAS'}))}, too.")
    if not isinstance(real, str) or real == "*" or not models.keys() & {real, "*"}:
        yield fault(f"{where}['ALIAS'] is no model: {real!r}.", suggestion(str(real), models.keys() - {"*"}))
    elif isinstance(models.get(real), dict) and "ALIAS" in models[real]:
        yield fault(f"{where}['ALIAS'] is an alias itself: {real!r}.", f"Write {models[real]['ALIAS']!r}.")


def replica_faults(where: str, replicas: Any) -> Iterator[CheckMessage]:
    """A list of engines, with what each is to do."""
    if not isinstance(replicas, list) or not replicas:
        yield fault(f"{where} is not a list of replicas.", '[{"ENGINE": "…"}, {"ENGINE": "…"}] is.')
        return
    for index, replica in enumerate(replicas):
        here = f"{where}[{index}]"
        if not isinstance(replica, dict):
            yield fault(f"{here} is not a dict: {replica!r}.")
            continue
        for key in replica.keys() - REPLICA_KEYS:
            yield fault(f"{here} has no key {key!r}.", suggestion(key, REPLICA_KEYS))
        yield from named_engine_faults(here, replica.get("ENGINE"))
        weight = replica.get("WEIGHT", 1)
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < math.inf:
            yield fault(f"{here}['WEIGHT'] is not a number above 0: {weight!r}.")


def named_engine_faults(where: str, engine: Any) -> Iterator[CheckMessage]:
    """A name that leads to no engine."""
    engines = section("ENGINES")
    if not isinstance(engine, str):
        yield fault(f"{where} names no engine.", '{"ENGINE": "…"} does.')
    elif engine not in engines:
        yield fault(
            f"{where} names the engine {engine!r}, which RESPONSES_WS['ENGINES'] does not have.",
            suggestion(engine, engines) if engines else "",
        )


def tool_faults() -> Iterator[CheckMessage]:
    """Hosted tools that do not take their options, or of which two answer for the same type."""
    answered: dict[str, str] = {}
    for name, entry in section("TOOLS").items():
        if not isinstance(entry, dict) or path_faults("", entry.get("TOOL"), HostedTool):
            # E005 says so.
            continue
        try:
            tool = load(name)
        except ValueError as exc:
            yield fault(f"RESPONSES_WS: {exc}.")
            continue
        for kind in sorted(tool.types & answered.keys())[:1]:
            yield fault(f"RESPONSES_WS['TOOLS'][{answered[kind]!r}] and [{name!r}] answer for {kind!r} both.")
        answered |= dict.fromkeys(tool.types, name)


def key_faults() -> Iterator[CheckMessage]:
    """Secrets in ``RESPONSES_WS["SEALING_KEYS"]`` that are too short to be any."""
    keys = given_settings().get("SEALING_KEYS", [])
    for index, key in enumerate(keys if isinstance(keys, list) else []):
        if isinstance(key, str) and len(key) < 32:
            yield Error(
                f"RESPONSES_WS['SEALING_KEYS'][{index}] has {len(key)} characters, fewer than 32.",
                hint="django.core.management.utils.get_random_secret_key() makes a good one.",
                id="responses_ws.E001",
            )


def safety_entries() -> list[dict[str, Any]]:
    """The dicts in ``RESPONSES_WS["SAFETY"]``; what is none, E001 reports."""
    given = given_settings()
    entries = given.get("SAFETY", []) if isinstance(given, dict) else []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def safety_faults() -> Iterator[CheckMessage]:
    """Classifiers that cannot be built, where it is not their path (which is E005's)."""
    entries = safety_entries()
    if any(path_faults("", entry.get("CLASSIFIER"), Classifier) for entry in entries):
        return
    try:
        build(entries)
    except ValueError as exc:
        yield Error(f"RESPONSES_WS: {exc}.", hint=f"Every entry may have {', '.join(TERMS)}.", id="responses_ws.E001")


def sink_faults() -> Iterator[CheckMessage]:
    """Sinks that do not take their options, where it is not their path (which is E005's)."""
    for name, entry in section("BILLING_SINKS").items():
        if not isinstance(entry, dict) or path_faults("", entry.get("SINK"), Sink):
            continue
        try:
            load_sink(name)
        except ValueError as exc:
            yield fault(f"RESPONSES_WS: {exc}.")


@register()
def check_tracing(**_kwargs: Any) -> list[CheckMessage]:
    """E006: spans are asked for, and the package that makes them is not there."""
    given = given_settings()
    is_on = isinstance(given, dict) and given.get("TRACING") is True
    if not is_on or importlib.util.find_spec("opentelemetry") is not None:
        return []
    hint = 'pip install "responses-ws[otel]", or set TRACING to False.'
    return [
        Error("RESPONSES_WS['TRACING'] is on, and opentelemetry is not installed.", hint=hint, id="responses_ws.E006")
    ]


@register()
def check_channel_layers(**_kwargs: Any) -> list[CheckMessage]:
    """E002: channels-redis with redis-py 8 ends every consumer that was idle for five seconds.

    redis-py 8 gave sockets a default timeout, and the layer waits longer than that for a message. Our own consumer
    uses no layer, but those of the host project do.
    """
    if int(redis.__version__.split(".")[0]) < 8:
        return []
    messages: list[CheckMessage] = []
    for alias, layer in getattr(settings, "CHANNEL_LAYERS", {}).items():
        if layer.get("BACKEND") != "channels_redis.core.RedisChannelLayer":
            continue
        hosts = layer.get("CONFIG", {}).get("hosts", ["redis://localhost:6379"])
        for host in hosts if isinstance(hosts, list | tuple) else [hosts]:
            # Present and None: absent means redis-py's default.
            if isinstance(host, dict) and host.get("socket_timeout", ...) is None:
                continue
            messages.append(
                Error(
                    f"CHANNEL_LAYERS[{alias!r}]: with redis-py {redis.__version__}, a socket idle for 5 s dies.",
                    hint='Write the host as {"address": "redis://…", "socket_timeout": None}.',
                    id="responses_ws.E002",
                )
            )
    return messages


@register()
def check_databases(**_kwargs: Any) -> list[CheckMessage]:
    """E003: under ASGI a thread may never see the request that would close its old connection."""
    return [
        Error(
            f"DATABASES[{alias!r}] keeps connections open (CONN_MAX_AGE is not 0).",
            hint='Set CONN_MAX_AGE to 0, and OPTIONS["pool"] with psycopg 3 for speed.',
            id="responses_ws.E003",
        )
        for alias, database in settings.DATABASES.items()
        if database.get("CONN_MAX_AGE", 0) != 0
    ]


@register(deploy=True)
def check_broker(**_kwargs: Any) -> list[CheckMessage]:
    """E004: kicks into the memory of one process reach no worker."""
    broker = celery.current_app.conf.broker_url or ""
    if settings.DEBUG or not broker.startswith("memory:"):
        return []
    return [
        Error(
            "The Celery broker is memory://, which no other process can read.",
            hint="Set CELERY_BROKER_URL to a Redis or another broker.",
            id="responses_ws.E004",
        )
    ]


@register()
def check_dotted_paths(**_kwargs: Any) -> list[CheckMessage]:
    """E005: dotted paths lead to a class of the right kind."""
    messages: list[CheckMessage] = []
    for name, engine in section("ENGINES").items():
        path = engine.get("ENGINE") if isinstance(engine, dict) else None
        messages += path_faults(f"RESPONSES_WS['ENGINES'][{name!r}]['ENGINE']", path, Engine)
    for index, entry in enumerate(safety_entries()):
        where = f"RESPONSES_WS['SAFETY'][{index}]['CLASSIFIER']"
        messages += path_faults(where, entry.get("CLASSIFIER"), Classifier)
    for name, tool in section("TOOLS").items():
        path = tool.get("TOOL") if isinstance(tool, dict) else None
        messages += path_faults(f"RESPONSES_WS['TOOLS'][{name!r}]['TOOL']", path, HostedTool)
    for name, sink in section("BILLING_SINKS").items():
        path = sink.get("SINK") if isinstance(sink, dict) else None
        messages += path_faults(f"RESPONSES_WS['BILLING_SINKS'][{name!r}]['SINK']", path, Sink)
    messages += path_faults("RESPONSES_WS['AUTHENTICATOR']", settings_value("AUTHENTICATOR"), None)
    return messages


def settings_value(name: str) -> Any:
    """A setting as given, or its default."""
    given = given_settings()
    return given.get(name, getattr(Settings, name)) if isinstance(given, dict) else getattr(Settings, name)


def path_faults(where: str, path: Any, base: type | None) -> list[CheckMessage]:
    """What is wrong with a dotted path to a class (a subclass of ``base``)."""
    if not isinstance(path, str):
        return [Error(f"{where} is not a dotted path: {path!r}.", id="responses_ws.E005")]
    try:
        target = import_string(path)
    except ImportError as exc:
        return [Error(f"{where} does not import: {exc}.", hint="Write package.module.Class.", id="responses_ws.E005")]
    if not isinstance(target, type):
        return [Error(f"{where} is not a class: {path}.", id="responses_ws.E005")]
    if base is not None and not issubclass(target, base):
        return [Error(f"{where} is not a subclass of {base.__name__}: {path}.", id="responses_ws.E005")]
    return []


@register()
def check_visibility_timeout(**_kwargs: Any) -> list[CheckMessage]:
    """W001: a message that stays unacknowledged for longer than this is delivered again, while its task runs."""
    conf = celery.current_app.conf
    visibility = (conf.broker_transport_options or {}).get("visibility_timeout")
    limit = conf.task_time_limit
    if visibility is None or limit is None or visibility >= limit:
        return []
    return [
        Warning(
            f"Celery's visibility_timeout ({visibility} s) is below task_time_limit ({limit} s).",
            hint="Raise visibility_timeout in CELERY_BROKER_TRANSPORT_OPTIONS. Nothing is billed twice, but work is.",
            id="responses_ws.W001",
        )
    ]


@register()
def check_beat(**_kwargs: Any) -> list[CheckMessage]:
    """W002: kicks may be lost, so a timer has to bill what none of them reached; and nothing else tells sinks."""
    schedule = celery.current_app.conf.beat_schedule or {}
    run = {entry.get("task") for entry in schedule.values()}
    needed = {SWEEP: ("usage whose message is lost is never billed", 5.0)}
    if section("BILLING_SINKS"):
        needed[DELIVER] = ("no sink of BILLING_SINKS is ever told", 10.0)
    return [
        Warning(
            f"No entry of Celery's beat schedule runs {task}: {consequence}.",
            hint=f'CELERY_BEAT_SCHEDULE = {{"{task}": {{"task": "{task}", "schedule": {seconds}}}}}',
            id="responses_ws.W002",
        )
        for task, (consequence, seconds) in needed.items()
        if task not in run
    ]


@register(deploy=True)
def check_redis(**_kwargs: Any) -> list[CheckMessage]:
    """W009: the broker must lose nothing and keep it, chains are to be thrown away and written nowhere."""
    given = given_settings()
    ours = given.get("REDIS_URL") if isinstance(given, dict) else None
    broker = celery.current_app.conf.broker_url or ""
    if (
        not ours
        or not isinstance(ours, str)
        or not broker.startswith("redis")
        or _server_of(ours) != _server_of(broker)
    ):
        return []
    return [
        Warning(
            "RESPONSES_WS['REDIS_URL'] is the Redis of the Celery broker: when it is full, it refuses or drops tasks.",
            hint="Give chains one of their own: --save '' --appendonly no --maxmemory-policy volatile-lru.",
            id="responses_ws.W009",
        )
    ]


def _server_of(url: str) -> tuple[str, int]:
    """Without the number of the database: memory, eviction and persistence are the server's."""
    parts = urlsplit(url)
    if not parts.hostname:
        return (parts.path, 0)
    return ("127.0.0.1" if parts.hostname == "localhost" else parts.hostname, parts.port or 6379)


@register(Tags.compatibility, deploy=True)
def check_asgi(**_kwargs: Any) -> list[CheckMessage]:
    """W004: WebSocket mode and streams need an ASGI server."""
    if getattr(settings, "ASGI_APPLICATION", None):
        return []
    return [
        Warning(
            "ASGI_APPLICATION is not set: under WSGI there is no WebSocket mode, and a stream holds a thread.",
            hint="Write an asgi.py with responses_ws.routing, and serve it with manage.py responses_ws_serve.",
            id="responses_ws.W004",
        )
    ]


@register(deploy=True)
def check_upload_size(**_kwargs: Any) -> list[CheckMessage]:
    """W007: Django's ASGI handler writes larger bodies to a temporary file before any view runs."""
    limit = section("LIMITS").get("max_frame_bytes", Limits().max_frame_bytes)
    # A limit that is no number is E001's.
    if not isinstance(limit, int) or limit < settings.FILE_UPLOAD_MAX_MEMORY_SIZE:
        return []
    return [
        Warning(
            f"Request bodies above {settings.FILE_UPLOAD_MAX_MEMORY_SIZE} bytes are written to a temporary file, "
            "those with store: false too.",
            hint=f"Set FILE_UPLOAD_MAX_MEMORY_SIZE above {limit} (the limit max_frame_bytes).",
            id="responses_ws.W007",
        )
    ]
