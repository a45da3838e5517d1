"""Everything in one process: database, engine, billing, server. For a first look, on one's own machine."""

import contextlib
import errno
import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import celery
from django.conf import settings
from django.core.management import BaseCommand, CommandError, call_command

from responses_ws.conf import app_settings
from responses_ws.management import demo, seeding
from responses_ws.management.asgi import asgi_path
from responses_ws.management.celery_threads import CeleryThreads
from responses_ws.models.accounts import generate_key
from responses_ws.runtime.launcher import listen, serve, server_config

# Ctrl-C in a terminal should not wait for a model that is still talking.
DRAIN_SECONDS = 5.0
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104  compared with, never a default

BANNER = """
  responses_ws demo

  Base URL   {base}
  API key    {key}
  Models     {models}
  Office     {office}   user {user}, password {password}
             (the prices of the models are invented for this demo)
  Playground {office}responses_ws/playground/   try it: what does a kept connection save?
{notes}
  With curl:

curl -N {base}/responses -H "Authorization: Bearer {key}" -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "input": "What is the sea?", "max_output_tokens": 60, "stream": true}}'

  With Python over WebSocket (pip install "openai[realtime]"):

from openai import OpenAI
with OpenAI(base_url="{base}", api_key="{key}").responses.connect() as connection:
    connection.response.create(model="{model}", input="What is the sea?", max_output_tokens=60)
    while (event := connection.recv()).type.split(".")[-1] not in ("completed", "incomplete", "failed", "error"):
        print(getattr(event, "delta", ""), end="", flush=True)

  Ctrl-C stops everything.
"""


class Command(BaseCommand):
    help = "Serve a complete demo from this process: migrates, creates a key and an admin user, prints how to call it."
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--seed", action="store_true", help="Put two months of invented usage into the office.")
        parser.add_argument("--api-key", help="Use this key instead of a generated one, which is kept in var/demo.key.")
        parser.add_argument(
            "--engine-url",
            default=os.environ.get("ENGINE_URL", ""),
            help="Base URL of an OpenAI-compatible server, ending in /v1. Its key is read from ENGINE_API_KEY.",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        host, port = options["host"], options["port"]
        try:
            listener = listen(host, port)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise CommandError(f"Cannot listen on {host}:{port}: {exc.strerror}") from exc
            raise CommandError(
                f"Port {port} is taken. Name another: make run PORT={port + 1}, or --port {port + 1}."
            ) from exc
        with listener:
            banner = self.prepare(host, listener.getsockname()[1], options)
            config = server_config(asgi_path(), log_level="warning")
            with in_process_celery():
                # The socket listens already: whoever connects now is served in a moment.
                self.stdout.write(banner)
                self.stdout.flush()
                with contextlib.suppress(KeyboardInterrupt):
                    serve(listener, config, drain_seconds=DRAIN_SECONDS)
        self.stdout.write("Stopped.")

    def prepare(self, host: str, port: int, options: dict[str, Any]) -> str:
        """Everything that has to be there before the first request; gives the banner."""
        # Pages with tracebacks and settings are not for whoever can reach the port.
        demo.change_setting("DEBUG", False)
        if host not in settings.ALLOWED_HOSTS:
            # Reachable from outside by names that we cannot know; every call but the log-in page needs a key.
            demo.change_setting("ALLOWED_HOSTS", [*settings.ALLOWED_HOSTS, "*" if host in ANYWHERE else host])
        var = Path(getattr(settings, "VAR_DIR", "var"))
        engine_url, engine_key = options["engine_url"], os.environ.get("ENGINE_API_KEY", "")
        call_command("migrate", interactive=False, verbosity=0)
        if settings.STATIC_ROOT:
            call_command("collectstatic", interactive=False, verbosity=0)
        unavailable = demo.configure(engine_url, engine_key)
        models, unlisted = demo.served_models(engine_url, engine_key)
        key = options["api_key"] or demo.kept_secret(var / "demo.key", generate_key)
        try:
            demo.ensure_key(key)
        except ValueError as exc:
            raise CommandError(f"{exc}. Delete {var / 'demo.key'}, or name another by --api-key.") from exc
        password = demo.kept_secret(var / "demo.admin", demo.generate_password)
        demo.ensure_admin(password)
        demo.ensure_prices(models)
        if options["seed"]:
            seeding.seed()
        notes = []
        if unavailable:
            notes.append(
                f"No embedded model: {unavailable.rstrip('.')}. Only the scripted engine, which is no model, is served."
            )
        if unlisted:
            notes.append(f"{engine_url} does not list its models: {unlisted.rstrip('.')}. They appear when it does.")
        site = f"http://{address(host)}:{port}"
        return BANNER.format(
            base=f"{site}/v1",
            office=f"{site}/admin/",
            key=key,
            user=demo.ADMIN_USER,
            password=password,
            models=", ".join(models),
            model=models[0],
            notes="".join(f"\n  {note}\n" for note in notes),
        )


def address(host: str) -> str:
    """What to write into a URL for the address that we listen on."""
    if host in (*ANYWHERE, ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def in_process_celery() -> contextlib.AbstractContextManager[Any]:
    """Worker and beat for the in-memory broker; with another broker, workers of their own are at work."""
    app = celery.current_app
    if not (app.conf.broker_url or "").startswith("memory:"):
        return contextlib.nullcontext()
    # current_app is a proxy, and per thread.
    return CeleryThreads(app._get_current_object(), queues=[app.conf.task_default_queue, app_settings.BILLING_QUEUE])
