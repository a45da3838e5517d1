"""Celery of the demo project."""

import os
from typing import Any

from celery import Celery, bootsteps, signals

from .health import mark_alive

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

ALIVE_SECONDS = 5.0


class Alive(bootsteps.StartStopStep):
    """Marks the worker as alive from its own event loop. Remote control, which could be asked instead, is off:
    it leaks queues in Redis."""

    requires = {"celery.worker.components:Timer"}

    def start(self, parent: Any) -> None:
        # Threads of the demo share its process, and nobody asks them.
        if os.environ.get("RESPONSES_WS_VAR"):
            self.entry = parent.timer.call_repeatedly(ALIVE_SECONDS, mark_alive, ("worker.alive",))


app.steps["worker"].add(Alive)


@signals.beat_init.connect
def watch_beat(**_kwargs: Any) -> None:
    """Beat is alive as long as it hands messages to the broker."""
    signals.after_task_publish.connect(mark_beat_alive)


def mark_beat_alive(**_kwargs: Any) -> None:
    mark_alive("beat.alive")
