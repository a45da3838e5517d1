"""Several fake model servers behind one model."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from django.test import override_settings

from responses_ws.engines.registry import registry
from tests.fakes.chat_server import MODEL, ChatServer

OPENAI_CHAT = "responses_ws.engines.openai_chat.OpenAIChat"


@asynccontextmanager
async def replicas(
    *servers: ChatServer,
    options: list[dict[str, Any]] | None = None,
    limits: dict[str, float] | None = None,
    **replica: list[Any],
) -> AsyncIterator[None]:
    """The model ``m``, answered by each of these servers as the engines ``0``, ``1``, ….

    ``options`` are each engine's further ones; ``replica`` gives a key of each replica's entry: ``WEIGHT=[1, 2]``.
    """
    engines = {
        str(number): {"ENGINE": OPENAI_CHAT, "BASE_URL": server.url, **given}
        for number, (server, given) in enumerate(zip(servers, options or [{}] * len(servers), strict=True))
    }
    entries = [{"ENGINE": name, "UPSTREAM": MODEL} for name in engines]
    for key, values in replica.items():
        for entry, value in zip(entries, values, strict=True):
            entry[key] = value
    # Patient: a refusal comes before the client is told anything, however slow the machine.
    limits = {"created_seconds": 10.0, **(limits or {})}
    given = {"ENGINES": engines, "MODELS": {"m": {"REPLICAS": entries}}, "LIMITS": limits}
    # The same draws in every run: one in a thousand would otherwise be another.
    chance, registry.chance = registry.chance, random.Random(0).random
    with override_settings(RESPONSES_WS=given):
        try:
            yield
        finally:
            registry.chance = chance
            await registry.aclose_all()
