"""The production server: uvicorn, draining on SIGTERM, replaced worker by worker on SIGHUP."""

import errno
import gc
import socket
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError

from responses_ws.management.asgi import asgi_path
from responses_ws.runtime.launcher import EXIT_SECONDS, listen, serve, server_config
from responses_ws.runtime.siblings import siblings
from responses_ws.runtime.supervisor import Supervisor, own_command


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
            help="How long running turns may take after SIGTERM. The container's stop grace is 10 s more.",
        )
        parser.add_argument(
            "--hung-seconds",
            type=float,
            default=30.0,
            help="A worker whose event loop stands still for so long is killed, and another started.",
        )
        parser.add_argument(
            "--max-memory",
            type=int,
            default=0,
            metavar="MIB",
            help="A worker that holds more takes no new work, and another is started. 0: no limit.",
        )
        # What a supervisor gives to a worker.
        parser.add_argument("--fd", type=int, help="Serve on this listening socket instead of --host and --port.")
        parser.add_argument("--line", type=int, help="Say there that the event loop runs; drain when it closes.")
        parser.add_argument("--siblings", type=Path, help="Where the other workers of this socket are found.")

    def handle(self, *_args: Any, **options: Any) -> None:
        application = asgi_path()
        drain_seconds = options["drain_seconds"]
        if options["fd"] is not None:
            siblings.meet_in(options["siblings"])
            line = socket.socket(fileno=options["line"])
            serve(
                socket.socket(fileno=options["fd"]), server_config(application), drain_seconds=drain_seconds, line=line
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
            if options["workers"] == 1 and not options["max_memory"]:
                serve(listener, server_config(application), drain_seconds=drain_seconds)
                return
            # As in a worker: what is imported stays. To look at all of it would take the end of the process seconds.
            gc.freeze()
            code = Supervisor(
                [*own_command("responses_ws_serve"), "--drain-seconds", str(drain_seconds)],
                listener,
                workers=options["workers"],
                grace_seconds=drain_seconds + EXIT_SECONDS,
                hung_seconds=options["hung_seconds"],
                most_bytes=options["max_memory"] * 1024 * 1024,
            ).run()
        if code:
            raise CommandError("A worker could not start; its message is above.", returncode=code)
