"""What `responses_ws_demo` puts on the table before it serves: engines, a key, an admin user, prices."""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.signals import setting_changed
from django.db import IntegrityError, transaction

from responses_ws.engines.base import EngineError
from responses_ws.engines.embedded import EmbeddedLlama
from responses_ws.engines.openai_chat import OpenAIChat
from responses_ws.models import ApiKey, Component, Organization, Price, Project

# Invented, so that the office has money to show: $0.10 and $0.40 for a million tokens, in nano-USD.
DEMO_PRICES = {Component.INPUT: 100_000_000, Component.CACHED_INPUT: 25_000_000, Component.OUTPUT: 400_000_000}
ADMIN_USER = "admin"


def kept_secret(path: Path, generate: Callable[[], str]) -> str:
    """The content of a file that only its owner can read; generated the first time."""
    if path.exists():
        return path.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    value = generate()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(value + "\n")
    return value


def configure(engine_url: str, engine_key: str) -> str:
    """Put the demo's engines and models into ``RESPONSES_WS``: ``scripted``, and a real one beside it.

    Returns:
        Why there is no embedded model, or "".
    """
    given = getattr(settings, "RESPONSES_WS", {})
    engines = {"scripted": {"ENGINE": "responses_ws.engines.scripted.Scripted"}} | given.get("ENGINES", {})
    models = {"scripted": {"ENGINE": "scripted"}} | given.get("MODELS", {})
    reason = ""
    if engine_url:
        path = "responses_ws.engines.openai_chat.OpenAIChat"
        engines["remote"] = {"ENGINE": path, "BASE_URL": engine_url, "API_KEY": engine_key}
        models["*"] = {"ENGINE": "remote"}
    else:
        reason = EmbeddedLlama.available() or ""
        if not reason:
            engines.setdefault("embedded", {"ENGINE": "responses_ws.engines.embedded.EmbeddedLlama"})
            models.setdefault("smollm2", {"ENGINE": "embedded"})
    change_setting("RESPONSES_WS", {"PLAYGROUND": True, **given, "ENGINES": engines, "MODELS": models})
    return reason


def change_setting(name: str, value: Any) -> None:
    """Change a Django setting and tell those who keep a copy."""
    setattr(settings, name, value)
    setting_changed.send(sender=None, setting=name, value=value, enter=True)


def listed_models(engine_url: str, engine_key: str) -> list[str]:
    """What the given engine serves now. Raises EngineError."""

    async def ask() -> list[str]:
        engine = OpenAIChat("demo", {"BASE_URL": engine_url, "API_KEY": engine_key})
        try:
            return [model.id for model in await engine.models()]
        finally:
            await engine.aclose()

    return asyncio.run(ask())


def served_models(engine_url: str, engine_key: str) -> tuple[list[str], str]:
    """Names that clients may use, a real model first; and why the given engine listed none."""
    configured = [name for name in settings.RESPONSES_WS["MODELS"] if name != "*"]
    configured.sort(key=lambda name: name == "scripted")
    if not engine_url:
        return configured, ""
    try:
        listed = listed_models(engine_url, engine_key)
    except EngineError as exc:
        return configured, str(exc)
    return [*listed, *(name for name in configured if name not in listed)], ""


def ensure_key(value: str) -> None:
    """Make ``value`` a usable key of the project "Demo". Raises ValueError where it was revoked or has expired."""
    if ApiKey.objects.find(value) is not None:
        return
    organization, _ = Organization.objects.get_or_create(name="Demo")
    project, _ = Project.objects.get_or_create(organization=organization, name="Demo")
    try:
        with transaction.atomic():
            ApiKey.objects.create_with_secret(project=project, name="demo", key=value)
    except IntegrityError as exc:
        raise ValueError("this API key was revoked or has expired") from exc


def ensure_admin(password: str) -> None:
    """A superuser for the office; one that exists keeps its own password."""
    users = get_user_model()
    if not users.objects.filter(username=ADMIN_USER).exists():
        users.objects.create_superuser(ADMIN_USER, password=password)


def ensure_prices(models: Iterable[str]) -> None:
    """The demo's prices, for models that have none."""
    for model in models:
        if not Price.objects.filter(model=model).exists():
            Price.objects.bulk_create(
                Price(model=model, component=component, nano_per_million=nano)
                for component, nano in DEMO_PRICES.items()
            )


def generate_password() -> str:
    return secrets.token_urlsafe(12)
