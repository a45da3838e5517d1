"""What `responses_ws_doctor` looks at. Every finding that is a fault names its cure."""

import asyncio
import contextlib
import platform
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version

import celery
import msgspec
import redis
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from responses_ws.billing import pulse
from responses_ws.conf import app_settings
from responses_ws.engines.base import EngineError, Health
from responses_ws.engines.registry import Route, registry
from responses_ws.models import Price, Project
from responses_ws.protocol.errors import InvalidRequest
from responses_ws.runtime.redis import is_cluster

from .comparison import differs

PACKAGES = ("responses-ws", "django", "channels", "djangorestframework", "celery", "redis", "uvicorn", "msgspec")
CONNECT_SECONDS = 5


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. ``cure`` is what to do; a finding without one is well."""

    subject: str
    detail: str
    cure: str = ""
    is_fault: bool = False


def fault(subject: str, detail: str, cure: str) -> Finding:
    return Finding(subject=subject, detail=" ".join(detail.split()), cure=cure, is_fault=True)


def examine() -> Iterator[Finding]:
    """All findings, in the order in which one would look for a fault."""
    yield from versions()
    yield from settings_findings()
    yield from database()
    try:
        _ = app_settings.limits
    except (msgspec.ValidationError, TypeError):
        # Named above; what follows cannot be read without them.
        return
    yield from redis_server()
    yield from broker()
    yield from billing()
    yield from engines()


def versions() -> Iterator[Finding]:
    """Of the interpreter and of what decides how we behave."""
    yield Finding(subject="Python", detail=f"{platform.python_version()} ({sys.executable})")
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            # Run from a checkout, or vendored.
            found.append(f"{package} (not installed as a package)")
    yield Finding(subject="Packages", detail=", ".join(found))


def settings_findings() -> Iterator[Finding]:
    """Our own system checks, those for deployment included."""
    messages = [
        message
        for message in checks.run_checks(include_deployment_checks=True)
        if str(message.id).startswith("responses_ws.") and not message.is_silenced()
    ]
    for message in messages:
        cure = message.hint or "See the settings reference."
        if message.level >= checks.ERROR:
            yield fault(f"Settings {message.id}", message.msg, cure)
        else:
            yield Finding(subject=f"Settings {message.id}", detail=message.msg, cure=cure)
    if not messages:
        yield Finding(subject="Settings", detail="no unknown keys, all checks pass")


def database() -> Iterator[Finding]:
    """One round trip, and whether the tables are those of this version."""
    connection = unpooled(connections[DEFAULT_DB_ALIAS])
    where = f"{connection.vendor} {connection.settings_dict['NAME']}"
    try:
        with connection.cursor() as cursor:
            started = time.perf_counter()
            cursor.execute("SELECT 1")
            cursor.fetchone()
            milliseconds = (time.perf_counter() - started) * 1000
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as exc:
        yield fault("Database", f"{where}: {exc}", "Start the database, or correct DATABASES (host, name, password).")
        return
    finally:
        connection.close()
    yield Finding(subject="Database", detail=f"{where}: answers in {milliseconds:.1f} ms")
    if missing:
        names = ", ".join(f"{migration.app_label}.{migration.name}" for migration, _ in missing[:3])
        yield fault("Migrations", f"{len(missing)} not applied: {names}", "Run: manage.py migrate")
    else:
        yield Finding(subject="Migrations", detail="all applied")


def unpooled(connection: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    """A connection of our own to the same database: a pool would wait for half a minute before it says why."""
    copy = connection.copy()
    copy.settings_dict["OPTIONS"] = {
        key: value for key, value in copy.settings_dict["OPTIONS"].items() if key != "pool"
    }
    if copy.vendor == "postgresql":
        copy.settings_dict["OPTIONS"]["connect_timeout"] = CONNECT_SECONDS
    return copy


def redis_server() -> Iterator[Finding]:
    """A value written and read back, and what the server would do when it is full."""
    url = app_settings.REDIS_URL
    if not url:
        yield Finding(subject="Redis", detail="not used (REDIS_URL is empty): stored chains are shared by the database")
        return
    if is_cluster(url):
        yield Finding(subject="Redis", detail="a cluster, which is not looked into")
        return
    client = redis.Redis.from_url(url, socket_timeout=CONNECT_SECONDS, socket_connect_timeout=CONNECT_SECONDS)
    try:
        started = time.perf_counter()
        client.set("responses_ws:doctor", "1", ex=10)
        value = client.get("responses_ws:doctor")
        milliseconds = (time.perf_counter() - started) * 1000
        told = client.info()
        keeps_on_disk = bool(told.get("aof_enabled")) or _is_saved(client)
    except (redis.RedisError, OSError) as exc:
        yield fault("Redis", str(exc), "Start Redis, or correct RESPONSES_WS['REDIS_URL'] (empty: do without).")
        return
    finally:
        client.close()
    if value is None:
        yield fault("Redis", "a value was gone at once", "Give this Redis memory; maxmemory-policy volatile-lru fits.")
        return
    server = told.get("redis_version", "?")
    yield Finding(subject="Redis", detail=f"version {server}: writes and reads in {milliseconds:.1f} ms")
    if told.get("maxmemory_policy") == "noeviction":
        advice = "Set --maxmemory and --maxmemory-policy volatile-lru."
        yield Finding(subject="Redis", detail="it refuses writes when it is full (noeviction)", cure=advice)
    if keeps_on_disk:
        advice = "--save '' --appendonly no: everything in it is in the database, too."
        yield Finding(subject="Redis", detail="it writes what it holds to disk", cure=advice)
        if Project.objects.filter(sealed_fallback=True).exists():
            yield fault("Redis", "it writes unstored chains to disk, sealed (sealed fallback of projects)", advice)


def _is_saved(client: "redis.Redis") -> bool:
    try:
        return bool(client.config_get("save").get("save"))
    except redis.RedisError:
        # Not everybody may ask that.
        return False


def broker() -> Iterator[Finding]:
    """Whether Celery's messages would arrive somewhere."""
    app = celery.current_app
    url = app.conf.broker_url
    if not url:
        yield fault(
            "Broker",
            "Celery has none",
            'Set CELERY_BROKER_URL, and in your Celery app: config_from_object("django.conf:settings", '
            'namespace="CELERY"). Until then turns are metered, but not billed.',
        )
        return
    if url.startswith("memory:"):
        yield Finding(
            subject="Broker",
            detail="memory://, which only responses_ws_demo's own worker reads",
            cure="For anything but the demo, set CELERY_BROKER_URL.",
        )
        return
    try:
        with app.connection_for_write(connect_timeout=CONNECT_SECONDS) as connection:
            connection.ensure_connection(max_retries=0, timeout=CONNECT_SECONDS)
            where = connection.as_uri()
    except Exception as exc:
        # Every transport has errors of its own.
        yield fault("Broker", str(exc), "Start the broker, or correct CELERY_BROKER_URL. Until then nothing is billed.")
        return
    yield Finding(subject="Broker", detail=f"{where}: accepts connections")


def billing() -> Iterator[Finding]:
    """Whether somebody takes what the broker is given, as the tables tell."""
    url = celery.current_app.conf.broker_url
    if not url or url.startswith("memory:"):
        # None, as was said above; or the demo's own, which may be at rest.
        return
    try:
        found = pulse.take(timezone.now())
    except DatabaseError:
        # Reported above, with its cure.
        return
    worker = f"celery -A … worker -Q celery,{app_settings.BILLING_QUEUE}"
    if found.waiting is not None and found.is_late:
        waiting = f"{found.unbilled} usage records wait, the first of them for {_seconds(found.waiting)}"
        yield fault("Billing", waiting, f"Start a worker, or look at its log: {worker}")
    if found.silence is None:
        yield Finding(subject="Beat", detail="never heard of", cure=f"Start it, celery -A … beat, and {worker}")
    elif found.is_silent:
        yield fault("Beat", f"silent for {_seconds(found.silence)}", "Start it, celery -A … beat, and a worker.")
    elif not found.is_late:
        yield Finding(subject="Billing", detail=f"keeps up; beat was heard of {_seconds(found.silence)} ago")


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.0f} s"


def engines() -> Iterator[Finding]:
    """Every configured engine's own word on its health."""
    if not app_settings.ENGINES:
        yield fault("Engines", "none configured", 'Name one: RESPONSES_WS = {"ENGINES": …, "MODELS": …}')
        return
    findings, models = asyncio.run(ask_engines())
    yield from findings
    if not models:
        yield fault("Models", "none is served", "Name one in RESPONSES_WS['MODELS'].")
        return
    yield from prices(models)


def prices(models: list[str]) -> Iterator[Finding]:
    """Models that are served for nothing."""
    try:
        priced = set(Price.objects.valid_at(timezone.now()).values_list("model", flat=True))
    except DatabaseError:
        # Reported above, with its cure.
        return
    free = [model for model in models if model not in priced]
    if free:
        cure = "Add prices in the admin; what ended before stays at 0."
        yield Finding(subject="Prices", detail=f"none for {', '.join(free)}: metered, charged 0", cure=cure)


async def ask_engines() -> tuple[list[Finding], list[str]]:
    """Ask all engines, one after the other, then close them again; gives the models that are served, too."""
    findings: list[Finding] = []
    down: set[str] = set()
    served: list[str] = []
    try:
        for name, options in app_settings.ENGINES.items():
            subject = f"Engine {name}"
            try:
                engine = registry.engine(name)
            except ValueError as exc:
                findings.append(fault(subject, str(exc), "Correct its entry in RESPONSES_WS['ENGINES']."))
                continue
            try:
                await engine.start()
                health = await engine.health()
            except Exception as exc:
                health = Health(ok=False, detail=str(exc) or type(exc).__name__)
            if health.ok:
                findings.append(Finding(subject=subject, detail=health.detail or "answers"))
            else:
                down.add(name)
                where = f"RESPONSES_WS['ENGINES'][{name!r}]"
                at = f" at {options['BASE_URL']}" if "BASE_URL" in options else ""
                findings.append(fault(subject, health.detail, f"Start the engine{at}, or correct {where}."))
        with contextlib.suppress(ValueError):
            # Of an engine that cannot be made: named above.
            served = [name for name, _ in await registry.list_models()]
        for name in served:
            if name in app_settings.MODELS:
                findings.append(await model_finding(name, down))
                if not findings[-1].is_fault and registry.real_name(name) == name:
                    findings += await renderer_findings(name)
        listed = [name for name in served if name not in app_settings.MODELS]
        if listed:
            findings.append(Finding(subject="Model *", detail=f"listed by its engine: {', '.join(listed)}"))
    finally:
        await registry.aclose_all()
    return findings, [name for name in served if registry.real_name(name) == name]


async def model_finding(name: str, down: set[str]) -> Finding:
    """Who answers for a model, and what it is asked in. ``down``: engines that do not."""
    real = registry.real_name(name)
    if real != name:
        return Finding(subject=f"Model {name}", detail=f"another name for {real}")
    try:
        route = await registry.resolve(name)
        for one in route.replicas:
            await one.station.list()
        route = await registry.resolve(name)
    except ValueError as exc:
        return fault(f"Model {name}", str(exc), f"Correct RESPONSES_WS['MODELS'][{name!r}].")
    if route.renderer is not None:
        way = f"token ids, by {type(route.renderer).__name__}"
    else:
        way = "items" if route.capabilities.items else "messages"
    context = f", {route.context_tokens} tokens" if route.context_tokens else ""
    replicas = "; ".join(_replica(one, down) for one in route.replicas)
    return Finding(subject=f"Model {name}", detail=f"asked in {way}{context}: {replicas}")


async def renderer_findings(name: str) -> list[Finding]:
    """Whether a model's renderer makes the ids that its engine would, where the engine tells."""
    route = await registry.resolve(name)
    found: list[Finding] = []
    for replica in route.replicas if route.renderer is not None else ():
        try:
            difference = await differs(replica)
        except (EngineError, InvalidRequest):
            # Of an engine that is down: named above.
            continue
        if difference:
            cure = f"Give RENDERER of RESPONSES_WS['MODELS'][{name!r}] the tokenizer and chat template of that engine."
            found.append(Finding(subject=f"Renderer of {name}", detail=difference, cure=cure))
    return found


def _replica(route: Route, down: set[str]) -> str:
    engine = next(name for name in app_settings.ENGINES if registry.station(name) is route.station)
    upstream = f" as {route.upstream}" if route.upstream != route.model else ""
    weight = f", weight {route.weight:g}" if route.weight != 1 else ""
    return f"{engine}{upstream}{weight}{', down' if engine in down else ''}"
