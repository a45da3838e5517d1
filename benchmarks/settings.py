"""The demo project's settings for benchmarks: what ``BENCHMARK_SETTINGS`` says, as JSON, goes over them."""

import json
import os

from project.settings import *  # noqa: F403
from project.settings import DATABASES, RESPONSES_WS

_given = json.loads(os.environ.get("BENCHMARK_SETTINGS", "{}"))
RESPONSES_WS |= _given.pop("RESPONSES_WS", {})
globals().update(_given)
if "BENCHMARK_SCHEMA" in os.environ:
    # Several servers share one benchmark's PostgreSQL, each with a schema of its own.
    DATABASES["default"]["OPTIONS"]["options"] = f"-c search_path={os.environ['BENCHMARK_SCHEMA']}"
