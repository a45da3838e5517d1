"""The office in django-unfold: the same tests of its pages, in a process whose admin is dressed by it."""

import os
import subprocess
import sys
from pathlib import Path

from responses_ws.admin import base

ROOT = Path(__file__).resolve().parents[2]


def test_without_it_the_pages_are_djangos_own():
    assert not base.HAS_UNFOLD
    assert {made.__module__.split(".")[0] for made in (base.ModelAdmin, base.TabularInline, base.Textarea)} == {
        "django"
    }


def test_every_page_opens_in_unfold_too():
    # The base classes are chosen when the pages are imported, so it takes a process of its own.
    chosen = ["tests/admin/test_pages.py", "-k", "opens"]
    # What unfold overrides in an old way is its own.
    chosen += ["-W", "ignore:Overriding get_action_choices"]
    command = [sys.executable, "-m", "pytest", "--ds=tests.unfold_settings", "-p", "no:cacheprovider", "-q", *chosen]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )

    assert ran.returncode == 0, ran.stdout[-5000:]
    assert " passed" in ran.stdout
