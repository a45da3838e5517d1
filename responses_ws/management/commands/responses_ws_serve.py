"""The production server: uvicorn, draining on SIGTERM."""

import errno
import socket
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError

from responses_ws.management.asgi import asgi_path
from responses_ws.runtime.launcher import (
    CLOSE_SECONDS,
    HANDSHAKE_SECONDS,
    Supervisor,
    exit_with_parent,
    listen,
    own_command,
    serve,
    server_config,
)
from responses_ws.runtime.siblings import siblings


class Command(BaseCommand):
    help = "Serve with uvicorn: SIGTERM lets running turns end, then closes sockets with 1012."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--workers", type=int, default=1, help="Processes on one socket; one a core is enough.")
        parser.add_argument(
            "--drain-seconds",
            type=float,
            default=600.0,
            help="How long running turns may take after SIGTERM. The container's stop grace is 20 s more.",
        )
        # How a supervisor hands its socket, and the news of its own death, to a worker.
        parser.add_argument("--fd", type=int, help="Serve on this listening socket instead of --host and --port.")
        parser.add_argument("--lifeline", type=int, help="Drain when this pipe closes.")
        parser.add_argument("--siblings", type=Path, help="Where the other workers of this socket are found.")

    def handle(self, *_args: Any, **options: Any) -> None:
        application = asgi_path()
        if options["lifeline"] is not None:
            exit_with_parent(options["lifeline"])
        if options["siblings"] is not None:
            siblings.meet_in(options["siblings"])
        if options["fd"] is not None:
            serve(
                socket.socket(fileno=options["fd"]), server_config(application), drain_seconds=options["drain_seconds"]
            )
            return
        try:
            listener = listen(options["host"], options["port"])
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise CommandError(f"Cannot listen on {options['host']}:{options['port']}: {exc.strerror}") from exc
            raise CommandError(f"Port {options['port']} is taken; --port names another.") from exc
        with listener:
            host, port = listener.getsockname()[:2]
            self.stdout.write(f"Serving on http://{host}:{port} with {options['workers']} worker(s)")
            if options["workers"] == 1:
                serve(listener, server_config(application), drain_seconds=options["drain_seconds"])
                return
            command = [*own_command("responses_ws_serve"), "--drain-seconds", str(options["drain_seconds"])]
            grace = options["drain_seconds"] + HANDSHAKE_SECONDS + CLOSE_SECONDS + 10
            code = Supervisor(command, listener, workers=options["workers"], grace_seconds=grace).run()
        if code:
            raise CommandError("A worker could not start; its message is above.", returncode=code)
