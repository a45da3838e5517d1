"""The demo project's settings for benchmarks: what ``BENCHMARK_SETTINGS`` says, as JSON, goes over them."""

import json
import os
import sys

from project.settings import *  # noqa: F403
from project.settings import DATABASES, RESPONSES_WS

if "BENCHMARK_WITHOUT" in os.environ:
    # As if it were not installed.
    sys.modules[os.environ["BENCHMARK_WITHOUT"]] = None  # type: ignore[assignment]
_given = json.loads(os.environ.get("BENCHMARK_SETTINGS", "{}"))
RESPONSES_WS |= _given.pop("RESPONSES_WS", {})
globals().update(_given)
if "BENCHMARK_SCHEMA" in os.environ:
    # Several servers share one benchmark's PostgreSQL, each with a schema of its own.
    DATABASES["default"]["OPTIONS"]["options"] = f"-c search_path={os.environ['BENCHMARK_SCHEMA']}"
