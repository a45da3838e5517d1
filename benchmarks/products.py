"""Other people's servers of the same API: how each is installed, started, and asked.

Each gets an environment of its own in a cache directory outside of the repository, and its files in a temporary one.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .stack import Server, free_port
from .wire import BenchmarkError

INSTALL_SECONDS, START_SECONDS = 900, 120
KEY = "sk-benchmark"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one is started: its programs, a directory for its files, its port, and what it is to serve."""

    programs: Path
    home: Path
    port: int
    engine: str
    """The engine's URL, ending in ``/v1``."""
    models: Sequence[str]

    @property
    def engine_root(self) -> str:
        return self.engine.removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class Product:
    """``packages`` are pip's; the first one's version is told. ``ways`` are those in which it can be asked."""

    name: str
    packages: tuple[str, ...]
    command: Callable[[Place], list[str]]
    ways: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    ready: str = "/health"
    """A path that answers when it serves."""
    prefixes: dict[str, str] = field(default_factory=dict)
    """What stands before the names of models, by way."""
    passed_on: tuple[str, ...] = ()
    """Ways in which it hands requests to the engine's own Responses API as they are, and knows nothing of the turn."""


def _litellm(place: Place) -> list[str]:
    told = {"api_base": place.engine, "api_key": KEY}
    # Of a model that it does not know it would not stream.
    streams = {"model_info": {"supports_native_streaming": True}}
    models = []
    for model in place.models:
        models.append({"model_name": model, "litellm_params": {"model": f"openai/{model}", **told}, **streams})
        # Its WebSocket mode reaches an engine without TLS through its adapter for chat completions only.
        models.append({"model_name": f"chat-{model}", "litellm_params": {"model": f"hosted_vllm/{model}", **told}})
    config = place.home / "config.yaml"
    # YAML is a superset of JSON.
    config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": KEY}}))
    return [str(place.programs / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(place.port)]


PRODUCTS = (
    Product(
        "agentic-api",
        ("agentic-api==0.9.0",),
        lambda place: [
            str(place.programs / "agentic-api"),
            *("serve", "--vllm-base-url", place.engine_root),
            *("--host", "127.0.0.1", "--port", str(place.port)),
        ],
        ("http-keep", "http-prev", "ws"),
        passed_on=("http-keep",),
    ),
    Product(
        "smg",
        ("smg==1.13.0",),
        lambda place: [
            str(place.programs / "smg"),
            *("launch", "--worker-urls", place.engine_root, "--host", "127.0.0.1", "--port", str(place.port)),
            *("--backend", "openai", "--history-backend", "memory", "--prometheus-port", str(free_port())),
            *("--log-level", "warn"),
        ],
        ("http-keep", "http-prev"),
        passed_on=("http-keep",),
    ),
    Product(
        "LiteLLM",
        ("litellm[proxy]==1.108.7",),
        _litellm,
        ("http-keep", "ws"),
        {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True"},
        ready="/health/liveliness",
        prefixes={"ws": "chat-"},
    ),
)


def cache() -> Path:
    """Where their environments are kept between two runs."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "responses-ws-benchmarks"


def installed(product: Product, directory: Path) -> Path:
    """The programs of its environment, made if it is not there.

    Raises:
        BenchmarkError: pip could not.
    """
    named = hashlib.sha256(repr((product.packages, sys.version_info[:2])).encode()).hexdigest()[:8]
    home = directory / f"{product.name}-{named}"
    mark = home / "installed"
    if not mark.exists():
        print(f"  installing {' '.join(product.packages)} into {home}", file=sys.stderr, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, *product.packages], capture_output=True, text=True, timeout=INSTALL_SECONDS)
        if done.returncode:
            raise BenchmarkError(f"{product.name} cannot be installed: {done.stderr[-1000:]}")
        mark.touch()
    return home / "bin"


def version_of(product: Product, programs: Path) -> str:
    package = product.packages[0].partition("==")[0].partition("[")[0]
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([programs / "python", "-c", code], capture_output=True, text=True, timeout=60).stdout.strip()


@contextlib.contextmanager
def started(product: Product, programs: Path, engine: Server, models: Sequence[str]) -> Iterator[Server]:
    """The product in front of our engine, on loopback; it ends with the block.

    Raises:
        BenchmarkError: it ended, or does not answer; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="responses-ws-peer-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        place = Place(programs, home, free_port(), engine.url, models)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        environment = kept | {"HOME": directory, "OPENAI_API_KEY": KEY} | product.environment
        log = home / "log.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                product.command(place),
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Launchers have children, which must end with them.
                start_new_session=True,
            )
        try:
            _wait(f"http://127.0.0.1:{place.port}{product.ready}", process, product.name, log)
            yield Server(f"http://127.0.0.1:{place.port}/v1", KEY, process.pid)
        finally:
            _end(process)


def _wait(url: str, process: "subprocess.Popen[bytes]", name: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise BenchmarkError(f"{name} does not serve; its log ends:\n{log.read_text(errors='replace')[-2000:]}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    for sent, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            if sent == signal.SIGKILL:
                return
