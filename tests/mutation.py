"""What the tests of money and ownership miss: each place of that code broken in its turn, as mutmut breaks it.

    python -m tests.mutation [--jobs 2] ['responses_ws.billing.credits.*' …]

mutmut's own runner begins a pytest for every mutant, which takes longer than the tests that notice. Here one pytest
runs them all once, to learn what each of them calls, and is then forked for every mutant, with its database as it was.
Files and tests are named in ``pyproject.toml`` under ``[tool.mutmut]``.
"""

import argparse
import difflib
import fnmatch
import gc
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import SyncToAsync

HOME = Path("mutants")
PART, ASKED, FOUND = "MUTATION_PART", "asked.json", "found.{}.json"
SECONDS_OF_TESTS = 10.0
"""What may be spent on a mutant: of the tests that call its function first those of its module, then the fastest."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Break money and ownership, and see which tests notice.")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tests", default="", help="instead of those of pyproject.toml: what pytest is told")
    parser.add_argument("names", nargs="*", help="patterns of mutants; all without any")
    options = parser.parse_args()
    settings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["mutmut"]
    shutil.rmtree(HOME, ignore_errors=True)
    for name in (*settings["source_paths"], *settings["also_copy"], "tests", "pyproject.toml"):
        shutil.copytree(name, HOME / name) if Path(name).is_dir() else _copy_file(Path(name))
    diffs = _break(settings["only_mutate"], options.names)
    # In no order: who has no time for all has looked at some of each.
    (HOME / ASKED).write_text(json.dumps(random.Random(0).sample(sorted(diffs), len(diffs))))
    (HOME / "diffs.json").write_text(json.dumps(diffs))
    tests = options.tests.split() or settings["pytest_add_cli_args_test_selection"]
    command = [sys.executable, "-m", "pytest", *settings["pytest_add_cli_args"], "-p", "tests.mutation", *tests]
    running = [
        subprocess.Popen(
            command, cwd=HOME, env={**os.environ, PART: f"{part}/{options.jobs}", "PYTHONPATH": str(HOME.resolve())}
        )
        for part in range(options.jobs)
    ]
    failed = [process.returncode for process in running if process.wait()]
    fates = {}
    for part in range(options.jobs):
        found = HOME / FOUND.format(part)
        fates |= json.loads(found.read_text()) if found.exists() else {}
    _tell(fates, diffs)
    return 1 if failed or len(fates) < len(diffs) else 0


def _copy_file(path: Path) -> None:
    (HOME / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, HOME / path)


def _break(patterns: list[str], names: list[str]) -> dict[str, str]:
    """Put mutants of these files into the copy. Returns what each changes, by its name; of some only by ``names``."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    diffs: dict[str, str] = {}
    for path in sorted({path for pattern in patterns for path in Path().glob(pattern)}):
        module = get_mutant_name(path, "")
        if names and not any(name.startswith(module) or fnmatch.fnmatch(module, name) for name in names):
            continue
        broken = mutate_file_contents(str(path), path.read_text())
        (HOME / path).write_text(broken.code)
        lines, spans = broken.code.splitlines(), broken.line_span_by_function_name
        for mutant in broken.mutant_names:
            name = get_mutant_name(path, mutant)
            if names and not any(fnmatch.fnmatch(name, pattern) for pattern in names):
                continue
            whole = (spans[f"{mutant.partition('__mutmut_')[0]}__mutmut_orig"], spans[mutant])
            before, after = (lines[span.start : span.end] for span in whole)
            changes = [
                line
                for line in difflib.unified_diff(before, after, n=0, lineterm="")
                if line[:2] not in ("--", "++", "@@")
            ]
            diffs[name] = "\n".join(changes)
    return diffs


def _tell(fates: dict[str, str], diffs: dict[str, str]) -> None:
    by_module: dict[str, Counter[str]] = defaultdict(Counter)
    for name, fate in sorted(fates.items()):
        by_module[name.rpartition(".")[0]][fate] += 1
        if fate in ("survived", "not called"):
            print(f"\n{name}: {fate}\n{diffs[name]}")
    print(f"\n{'':44}{'mutants':>8}{'killed':>8}{'hung':>6}{'survived':>10}{'not called':>12}{'killed, %':>11}")
    whole = sum(by_module.values(), Counter())
    for module, fate in [*sorted(by_module.items()), ("all", whole)]:
        killed = 100 * (fate["killed"] + fate["hung"]) / max(1, fate.total())
        counts = "".join(
            f"{fate[name]:>{width}}"
            for name, width in (("killed", 8), ("hung", 6), ("survived", 10), ("not called", 12))
        )
        print(f"{module:44}{fate.total():>8}{counts}{killed:>11.1f}")


def pytest_runtestloop(session: Any) -> bool | None:
    """pytest's hook, in the processes that `main` starts."""
    if PART not in os.environ or session.config.option.collectonly:
        return None
    from mutmut.configuration import config
    from mutmut.mutation.trampoline import set_mutant_under_test
    from mutmut.state import state

    config()
    part, parts = map(int, os.environ[PART].split("/"))
    asked = json.loads(Path(ASKED).read_text())[part::parts]
    set_mutant_under_test("stats")
    callers: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for number, item in enumerate(session.items):
        began_at = time.perf_counter()
        _run(session, item)
        for function in state()._stats:
            callers[function].append((time.perf_counter() - began_at, number))
        state()._stats.clear()
        if session.testsfailed:
            raise session.Failed("a test fails before anything is broken")
    set_mutant_under_test("")
    _Database.keep()
    # A fork copies what it writes to, and a collection writes to everything.
    gc.freeze()
    # What fails in a fork fails for nothing, and would be counted as a mutant that was noticed.
    if _in_fork("", session.items, session, seconds=600) != "survived":
        raise session.Failed("a test fails in a fork, before anything is broken")
    fates: dict[str, str] = {}
    for name in asked:
        tests = callers.get(name.partition("__mutmut_")[0])
        fates[name] = _fate(session, name, tests) if tests else "not called"
        if len(fates) % 50 == 0 or len(fates) == len(asked):
            Path(FOUND.format(part)).write_text(json.dumps(fates))
            with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                print(f"[{part}] {len(fates)} of {len(asked)}: {dict(Counter(fates.values()))}", flush=True)
    return True


def pytest_runtest_makereport(call: Any) -> None:
    """pytest's hook: in a fork nobody reads why a test has failed."""
    if _is_fork and call.excinfo is not None and not isinstance(call.excinfo.value, pytest.skip.Exception):
        os._exit(1)


_is_fork = False


def _run(session: Any, item: Any) -> None:
    """One test, in any order. What whole sessions share, such as the database, stays: there is always a next one."""
    session._setupstate.teardown_exact(item)
    another = next(one for one in session.items if one is not item)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=another)


def _fate(session: Any, name: str, tests: list[tuple[float, int]]) -> str:
    # Of `invoices` also those of test_invoice_lines.py.
    module, chosen, seconds = name.split(".")[-2].rstrip("s"), [], 0.0
    for taken, number in sorted(tests, key=lambda one: (module not in session.items[one[1]].path.stem, one)):
        if chosen and seconds + taken > SECONDS_OF_TESTS:
            break
        chosen.append(session.items[number])
        seconds += taken
    return _in_fork(name, chosen, session, seconds=10 + 10 * seconds)


def _in_fork(name: str, tests: list[Any], session: Any, *, seconds: float) -> str:
    from mutmut.mutation.trampoline import set_mutant_under_test

    for left in _Database.kept.parent.glob("*.fork*"):
        left.unlink()
    database = _Database.copy()
    pid = os.fork()
    if not pid:
        global _is_fork
        _is_fork = True
        session.config.pluginmanager.unregister(name="terminalreporter")
        os.setpgid(0, 0)
        # Nothing handles it, so it ends the process.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        # The thread of this one has stayed in the parent.
        SyncToAsync.single_thread_executor = ThreadPoolExecutor(max_workers=1)
        _Database.use(database)
        set_mutant_under_test(name)
        for item in tests:
            _run(session, item)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return "survived" if status == 0 else "hung" if status == -signal.SIGALRM else "killed"


class _Database:
    """The file of SQLite, as it was when all tests had passed: a mutant may leave anything in it.

    Each fork has a copy by a name of its own. Threads of this process may still be connected to the first one, and a
    fork that opened the same file would have half of what SQLite knows of these.
    """

    kept = Path()

    @classmethod
    def keep(cls) -> None:
        from django.db import connections

        connections.close_all()
        name = connections["default"].settings_dict["NAME"]
        cls.kept = Path(f"{name}.kept")
        # Not the file alone: what other threads have written may still be in its log.
        with closing(sqlite3.connect(name)) as whole, closing(sqlite3.connect(cls.kept)) as kept:
            whole.backup(kept)

    @classmethod
    def copy(cls) -> Path:
        return Path(shutil.copy(cls.kept, cls.kept.with_suffix(".fork")))

    @classmethod
    def use(cls, copy: Path) -> None:
        from django.db import connections

        # Of all threads: they share this dict.
        connections["default"].settings_dict["NAME"] = connections.settings["default"]["NAME"] = str(copy)


if __name__ == "__main__":
    raise SystemExit(main())
